"""Checks: what is measured of a log and a finished fit, and what speaks against its value."""
