"""The command line: wires the library together, one file per group of commands; no logic of its own."""

from kmifqe.cli.app import main

__all__ = ["main"]
