"""Experiments that run by command, one file each."""
