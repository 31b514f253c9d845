"""Robots' tables: LeRobot datasets, and RLDS datasets that were exported to Parquet or Arrow."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.logs.d4rl import ALIASES, FlatFile
from kmifqe.io.logs.tables import TableFile
from kmifqe.mdp.columns import Header, Piece

LEROBOT = {
    "observations": ("observation.state",),
    "actions": ("action",),
    "rewards": ("next.reward",),
    "terminals": ("next.done",),
    "action_log_probs": ("action_log_probs",),
    "episode": ("episode_index",),
    "frame": ("frame_index",),
}
RLDS = {
    **{field: ALIASES[field] for field in ("actions", "rewards", "action_log_probs")},
    "observations": (*ALIASES["observations"], "observation.state", "observation/state"),
    "terminals": ("is_terminal",),
    "last": ("is_last",),
}


def lerobot_data_directory(path: Path) -> Path | None:
    """Return the folder of the Parquet files of a LeRobot dataset, None if `path` is no such dataset."""
    folder = path / "data"
    return folder if (path / "meta" / "info.json").is_file() and folder.is_dir() else None


def open_table(path: Path, *, parquet: bool) -> FlatFile:
    """Return the reader of a table, which its columns' names decide; `parquet` is False for Arrow."""
    table = TableFile(path, parquet=parquet, aliases=None)
    if "next.done" in table.names or {"episode_index", "frame_index"} <= set(table.names):
        return LeRobotFile(path, parquet=parquet)
    if {"is_last", "is_terminal"} <= set(table.names):
        return RldsFile(path, parquet=parquet)
    return TableFile(path, parquet=parquet)


class LeRobotFile(TableFile):
    """A file of a LeRobot dataset (a FlatFile). `next.done` may be an end or a cut, see `ends_may_be_cuts`."""

    def __init__(self, path: Path, *, parquet: bool) -> None:
        super().__init__(path, parquet=parquet, aliases=LEROBOT)
        if "episode" not in self.headers:
            raise InputError(f"{self.name}: episode_index is missing; expected it in a LeRobot table")
        if "frame" in self.headers:
            self._check_frames()
            del self.headers["frame"]

    def _check_frames(self) -> None:
        """Refuse frames out of order or lost, and episodes that begin in the middle: the first row starts one."""
        frames, episodes = (_whole(self, field, np.int64) for field in ("frame", "episode"))
        follows = np.diff(episodes, prepend=episodes[:1] - 1) == 0
        expected = np.where(follows, np.roll(frames, 1) + 1, 0)
        if (frames != expected).any():
            row = int(np.argmax(frames != expected))
            raise InputError(
                f"{self.name}: frame_index is {frames[row]} at row {row}, of episode {episodes[row]}; expected "
                f"{expected[row]}: frames in time order, none missing, and whole episodes in every file"
            )


class RldsFile:
    """RLDS steps, one a row (a FlatFile). An episode's last step holds a state alone, and makes no row of a log."""

    def __init__(self, path: Path, *, parquet: bool) -> None:
        undefined = ("actions", "rewards", "action_log_probs")  # on a last step
        self._table = TableFile(path, parquet=parquet, aliases=RLDS, nullable=undefined)
        self.name = self._table.name
        self._last = _whole(self._table, "last", np.bool_)
        self._terminal = _whole(self._table, "terminals", np.bool_)
        if not len(self._last) or not self._last[-1]:
            raise InputError(
                f"{self.name}: is_last is not set on the last row; expected whole episodes in every file"
            )
        early = self._terminal & ~self._last
        if early.any():
            raise InputError(
                f"{self.name}: is_terminal is set at row {int(np.argmax(early))}, where is_last is not; expected it "
                "on an episode's last step alone"
            )
        self._place = np.concatenate(([0], np.cumsum(~self._last)))  # of a step among the rows that are made
        rows = int(self._place[-1])
        if not rows:
            raise InputError(f"{self.name}: no episode has two steps; expected at least one transition")
        held = {field: header for field, header in self._table.headers.items() if field != "last"}
        flag = Header((rows,), np.dtype(bool))
        self.headers = {
            field: Header((rows, *header.shape[1:]), header.dtype) for field, header in held.items()
        }
        self.headers |= {"terminals": flag, "timeouts": flag}
        self.headers["next_observations"] = self.headers["observations"]

    def pieces(self, field: str) -> Iterator[Piece]:
        """Yield a field's rows; the state that follows, and the flags of an end, are the next step's."""
        if field in ("terminals", "timeouts"):
            follows = self._last[1:] & (self._terminal[1:] == (field == "terminals"))
            yield slice(0, int(self._place[-1])), follows[~self._last[:-1]]
            return
        shift = 1 if field == "next_observations" else 0
        for place, values in self._table.pieces("observations" if shift else field):
            rows, column = place if isinstance(place, tuple) else (place, None)
            steps = np.arange(rows.start, rows.stop) - shift
            kept = (steps >= 0) & ~self._last[np.maximum(steps, 0)]
            if kept.any():
                start = int(self._place[steps[kept][0]])
                into = slice(start, start + int(kept.sum()))
                yield (into if column is None else (into, column)), values[kept]


def ends_may_be_cuts(files: Collection[FlatFile], terminated: np.ndarray, cut: np.ndarray) -> bool:
    """Return whether the log's flags cannot tell ends from cuts: a LeRobot log with `next.done` on every last row.

    Where an episode ends without it, it says something, and is believed.

    files: those of the log.
    terminated, cut: flags of its rows.
    """
    return any(isinstance(file, LeRobotFile) for file in files) and bool(terminated[cut].all())


def _whole(table: TableFile, field: str, dtype: type) -> np.ndarray:
    """Return all values of a field with one number a row."""
    found: np.ndarray = np.zeros(table.headers[field].shape[:1], dtype)
    for place, values in table.pieces(field):
        found[place] = values.reshape(-1)
    return found
