"""A D4RL-layout HDF5 log written while it is collected, many environments at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kmifqe.data.atomic import whole_file
from kmifqe.errors import InputError
from kmifqe.worlds.gym_task import Task

BLOCK = 256  # steps of every environment kept in memory before they are written


class LogWriter:
    """Rows that arrive one step of all environments at a time, stored environment after environment.

    Environment i owns `lengths[i]` neighbouring rows, so that its episodes stay in time order. The arrays are
    not compressed: random numbers do not shrink, and rows are written in many places at once.
    """

    def __init__(self, file: h5py.File, task: Task, lengths: np.ndarray, *, densities: bool = True) -> None:
        rows, envs = int(lengths.sum()), len(lengths)
        q, d = task.state_dim, task.action_dim
        columns: dict[str, tuple[tuple[int, ...], type]] = {
            "observations": ((q,), np.float32),
            "actions": ((d,), np.float32),
            "rewards": ((), np.float32),
            "next_observations": ((q,), np.float32),
            "terminals": ((), np.bool_),
            "timeouts": ((), np.bool_),
        }
        if densities:
            columns["infos/action_log_probs"] = ((d,), np.float32)
        self._file, self._lengths = file, lengths
        self._starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        self._block: dict[str, np.ndarray] = {
            name: np.zeros((BLOCK, envs, *shape), dtype) for name, (shape, dtype) in columns.items()
        }
        for name, (shape, dtype) in columns.items():
            file.create_dataset(name, (rows, *shape), dtype)
        self._written = self._held = 0  # steps, the same for every environment

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Take one row of every field from every environment; those past their length are ignored."""
        for name, values in rows.items():
            self._block[name][self._held] = values
        self._held += 1
        if self._held == BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write what is held in memory."""
        for env, (start, length) in enumerate(zip(self._starts, self._lengths)):
            count = min(self._held, int(length) - self._written)
            if count <= 0:
                continue
            first = int(start) + self._written
            for name, block in self._block.items():
                self._file[name][first : first + count] = block[:count, env]
        self._written, self._held = self._written + self._held, 0


@contextmanager
def log_writer(
    path: Path, task: Task, lengths: np.ndarray, settings: Mapping[str, Any], *, densities: bool = True
) -> Iterator[LogWriter]:
    """Give a writer to a file that appears at `path` only when all went well; `settings` go with it.

    `densities=False`: the log says nothing about how likely its actions were.
    """
    try:
        with whole_file(path) as partial, h5py.File(partial, "w") as file:
            file.attrs["kmifqe"] = json.dumps(settings)
            writer = LogWriter(file, task, lengths, densities=densities)
            yield writer
            writer.flush()
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error})") from error
