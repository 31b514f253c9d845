"""Files in and out: logs, policies, and writing that never leaves half a file."""
