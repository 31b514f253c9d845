"""Run directories to one self-contained HTML page."""
