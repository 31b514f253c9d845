"""Run directories: what a run has reached, kept so that it survives kills, full disks and lost power.

Only files that a run wrote itself are ever replaced or removed there.
"""

from kmifqe.store.checkpoints import CheckpointFolder, Interrupted
from kmifqe.store.directory import RunDirectory, open_run

__all__ = ["CheckpointFolder", "Interrupted", "RunDirectory", "open_run"]
