"""A log's files -> its columns: what a file is, is decided by what is in it. The child process runs this."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.archives import check_declared_bytes
from kmifqe.io.files import open_file
from kmifqe.io.logs.arrays import ArrayFolder
from kmifqe.io.logs.d4rl import FlatFile, Hdf5File, NpzFile
from kmifqe.io.logs.minari import minari_data_directory, read_minari
from kmifqe.io.logs.robots import ends_may_be_cuts, lerobot_data_directory, open_table
from kmifqe.mdp.columns import (
    Allocate,
    Columns,
    Layout,
    Piece,
    empty_columns,
    fill_flags,
    fill_numbers,
    first_row,
    in_memory,
    layout_of,
)

READABLE = "D4RL .hdf5, .npz, .parquet, .arrow, a LeRobot or a Minari directory"
# What a new format adds a line to: its suffixes, how its content begins, and its reader (docs/develop/add_format.md).
SUFFIXES = {
    **dict.fromkeys((".hdf5", ".h5"), "hdf5"),
    ".npz": "npz",
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".csv", ".tsv", ".json", ".jsonl"), "text"),
}
MAGIC = {b"\x89HDF\r\n\x1a\n": "hdf5", b"PK\x03\x04": "npz", b"PAR1": "parquet", b"ARROW1": "arrow"}
READERS: dict[str, Callable[[Path], FlatFile]] = {
    "hdf5": Hdf5File,
    "npz": NpzFile,
    "parquet": partial(open_table, parquet=True),
    "arrow": partial(open_table, parquet=False),
}


def write_columns(folder: str, paths: list[str], name: str, check_finite: bool, needs_ends: bool) -> None:
    """Read a log and write its fields as plain arrays into `folder`: what the child process does.

    folder: an empty directory.
    paths: a file, several of one format, a directory of such files, a LeRobot or a Minari directory.
    name: the log as the user knows it, for messages.
    check_finite: refuse NaN and infinity.
    needs_ends: refuse a log that does not mark where episodes were cut.
    """
    new = ArrayFolder(Path(folder))
    columns = read_columns(
        *map(Path, paths), name=name, check_finite=check_finite, needs_ends=needs_ends, allocate=new.allocate
    )
    new.finish(columns)


def read_columns(
    *paths: Path,
    name: str,
    check_finite: bool = True,
    needs_ends: bool = False,
    allocate: Allocate = in_memory,
) -> Columns:
    """Return the columns of the log in the files `paths`, called `name` in messages; `allocate` makes the arrays.

    `check_finite` refuses NaN and infinities, as it does by default. `needs_ends` refuses a log that does not say
    where episodes end without a terminal state; by default it may.
    """
    folder = minari_data_directory(paths[0]) if paths[0].is_dir() else None
    if folder is not None:
        return read_minari(folder, name=name, check_finite=check_finite, allocate=allocate)
    files = [_open_file(file) for file in log_files(*paths)]
    for file in files:
        require_episode_ends(
            {"timeouts", "next_observations", "episode"} & set(file.headers) or not needs_ends, file.name
        )
    return _columns_from_files(files, name, check_finite=check_finite, allocate=allocate)


def natural_order(path: Path) -> list[int | str]:
    """Return a key that sorts paths by the numbers in them: part-2 before part-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def log_files(*paths: Path) -> list[Path]:
    """Return the files that together are a log: `paths` themselves, or those of one directory in natural order."""
    path = paths[0]
    if not path.is_dir():
        members = list(paths)
    else:
        data = lerobot_data_directory(path)
        inside = path.iterdir() if data is None else data.rglob("*.parquet")
        members = sorted(
            (file for file in inside if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")),
            key=natural_order,
        )
    if not members:
        deeper = next((file for file in sorted(path.rglob("*")) if file.suffix.lower() in SUFFIXES), None)
        pattern = "" if deeper is None else deeper.relative_to(path).with_name(f"*{deeper.suffix}")
        hint = f" (folders inside it are read by a pattern, such as {pattern})" if pattern else ""
        raise InputError(f"{path}: holds no data file{hint}; expected {READABLE}")
    formats = {format_of(file): file.name for file in members}
    if len(formats) > 1:
        held = " and ".join(f"{kind} ({file})" for kind, file in sorted(formats.items()))
        raise InputError(f"{path}: holds files of several formats, {held}; expected one format")
    return members


def _open_file(path: Path) -> FlatFile:
    file = READERS[format_of(path)](path)
    declared = sum(header.declared_bytes for header in file.headers.values())
    check_declared_bytes(declared, path.stat().st_size, file.name, "the header")
    return file


def format_of(path: Path) -> str:
    """Return the format by the file's first bytes, or its suffix where those say nothing (Arrow streams)."""
    with open_file(path, READABLE) as file:
        start = file.read(8)
    if not start:
        raise InputError(f"{path}: the file is empty (0 bytes); expected {READABLE}")
    for magic, kind in MAGIC.items():
        if start.startswith(magic):
            return kind
    kind = SUFFIXES.get(path.suffix.lower(), "unknown")
    if kind == "text":
        raise InputError(
            f"{path}: {path.suffix} is text, which loses digits and types; write the table as Parquet "
            "(for example pandas.read_csv(...).to_parquet(...))"
        )
    if kind == "arrow" and start[:4] == b"\xff\xff\xff\xff":
        return kind
    if start.startswith(b"\x93NUMPY"):
        raise InputError(f"{path}: is a single array (.npy); expected {READABLE}")
    if kind == "unknown":
        raise InputError(f"{path}: is of no format known here; expected {READABLE}")
    raise InputError(f"{path}: does not begin like {path.suffix} data (broken or another format)")


def require_episode_ends(are_known: object, name: str) -> None:
    """Refuse the log or file `name` unless `are_known`: where its episodes were cut."""
    if not are_known:
        raise InputError(
            f"{name}: timeouts is missing, and without next_observations an episode cut by a time limit "
            "cannot be told from one that goes on; add timeouts, or give the time limit with --max-episode-steps "
            "(max_episode_steps=), 0 where terminals marks every end"
        )


def _columns_from_files(
    files: Sequence[FlatFile], name: str, *, check_finite: bool, allocate: Allocate
) -> Columns:
    """Return columns over the rows of all files in order; the last row of each file ends an episode."""
    layouts = [layout_of(file.headers, file.name) for file in files]
    for file, layout in zip(files[1:], layouts[1:]):
        _check_same_layout(layouts[0], files[0].name, layout, file.name)
    layout = replace(layouts[0], rows=sum(layout.rows for layout in layouts))
    columns = empty_columns(layout, name, allocate)
    start, before = 0, None
    for file, layout in zip(files, layouts):
        is_marked = _fill_from(file, columns, slice(start, start + layout.rows), check_finite)
        if before is not None:
            _refuse_split_episode(before, file, columns, start)
        start += layout.rows
        before = None if is_marked else file
    columns.ends_may_be_cuts = ends_may_be_cuts(files, columns.terminated, columns.cut)
    return columns


def _fill_from(file: FlatFile, columns: Columns, rows: slice, check_finite: bool) -> bool:
    """Write a file's values into its rows; return whether a flag marks its last row as an episode's last."""
    numbers = {
        "observations": columns.states,
        "actions": columns.actions,
        "rewards": columns.rewards,
        "action_log_probs": columns.log_mu,
    }
    for field, target in numbers.items():
        if target is not None:
            fill_numbers(target[rows], file.pieces(field), field, file.name, check_finite=check_finite)
    if columns.next_states is not None:
        # Rows of NaN are legal at episode ends, which are not known yet: align checks them.
        target, pieces = columns.next_states[rows], file.pieces("next_observations")
        fill_numbers(target, pieces, "next_observations", file.name, check_finite=False)
    fill_flags(columns.terminated[rows], file.pieces("terminals"), "terminals", file.name)
    cut = columns.cut[rows]
    if "timeouts" in file.headers:
        fill_flags(cut, file.pieces("timeouts"), "timeouts", file.name)
    is_marked = bool(columns.terminated[rows][-1] or cut[-1])
    if "episode" in file.headers:
        _cut_between_ids(columns.terminated[rows], cut, file)
    cut[-1] = True
    return is_marked


def _refuse_split_episode(file: FlatFile, following: FlatFile, columns: Columns, row: int) -> None:
    """Refuse an episode that goes on from one file to the next: what follows would count as a first state.

    `row` is the first of the `following` file; no flag marks the end of `file`. An episode's number that both files
    hold says so only where a missing flag says something: each file may count its episodes anew.
    """
    goes_on = columns.next_states is not None and np.array_equal(
        columns.next_states[row - 1], columns.states[row]
    )
    if not goes_on and {"episode", "timeouts"} <= set(file.headers):
        *_, (_, last) = file.pieces("episode")
        _, first = next(iter(following.pieces("episode")))
        goes_on = last.flat[-1] == first.flat[0]
    if goes_on:
        raise InputError(
            f"{following.name}: goes on with the episode at the end of {file.name}, which no flag ends; expected "
            "whole episodes in every file (write them into one, or set timeouts where an episode was cut)"
        )


def _cut_between_ids(terminated: np.ndarray, cut: np.ndarray, file: FlatFile) -> None:
    """End an episode where the id changes; a flag in the middle of an id contradicts it."""
    ends = np.zeros(len(cut), bool)
    mark_new_episodes(ends, file.pieces("episode"), file.name)
    ends[-1] = True
    for flags, field in ((terminated, "terminals"), (cut, "timeouts")):
        inside = flags & ~ends
        if inside.any():
            raise InputError(
                f"{file.name}: {field} is set at row {int(np.argmax(inside))}, but the next row has the same "
                "episode id; expected it only on an episode's last row"
            )
    cut |= ends


def _check_same_layout(first: Layout, first_name: str, other: Layout, other_name: str) -> None:
    for what, a, b in (
        ("observations' columns", first.state_dim, other.state_dim),
        ("actions' columns", first.action_dim, other.action_dim),
        ("action_log_probs' columns", first.log_mu_dim, other.log_mu_dim),
        ("optional fields", sorted(first.optional), sorted(other.optional)),
    ):
        if a != b:
            raise InputError(f"{other_name}: {what}: {b}, but {first_name} has {a}; expected one layout")


def mark_new_episodes(ends: np.ndarray, pieces: Iterable[Piece], name: str) -> None:
    """Set `ends` on the last row of every run of one episode id; refuse an id that comes back later.

    `pieces` are the ids in the rows' order; `name` is the file, for the message.
    """
    previous: int | None = None
    ids: list[np.ndarray] = []
    for place, values in pieces:
        start, run = first_row(place), values.reshape(-1)
        changes = np.flatnonzero(np.diff(run)) + 1
        if previous is None or run[0] != previous:
            changes = np.concatenate(([0], changes))
        ids.append(run[changes])
        ends[start + changes[start + changes > 0] - 1] = True
        previous = run[-1]
    seen, counts = np.unique(np.concatenate(ids), return_counts=True)
    if (counts > 1).any():
        raise InputError(
            f"{name}: episode {seen[counts > 1][0]} appears in {counts.max()} separate runs of rows; "
            "expected the rows of an episode together, in time order"
        )
