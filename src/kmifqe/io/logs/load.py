"""A path or a Minari id -> Transitions: what the file is, is decided by what is in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError, printable, sentence_for, shown
from kmifqe.io.archives import check_declared_bytes
from kmifqe.io.files import open_file
from kmifqe.io.logs.d4rl import FlatFile, Hdf5File, NpzFile
from kmifqe.io.logs.minari import minari_data_directory, minari_root, read_minari
from kmifqe.io.logs.tables import TableFile
from kmifqe.mdp.columns import (
    Columns,
    Layout,
    Piece,
    empty_columns,
    fill_flags,
    fill_numbers,
    first_row,
    layout_of,
)
from kmifqe.mdp.transitions import Transitions

READABLE = "D4RL .hdf5, .npz, .parquet, .arrow, or a Minari directory"
_SUFFIXES = {
    **dict.fromkeys((".hdf5", ".h5"), "hdf5"),
    ".npz": "npz",
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".csv", ".tsv", ".json", ".jsonl"), "text"),
}
_MAGIC = {b"\x89HDF\r\n\x1a\n": "hdf5", b"PK\x03\x04": "npz", b"PAR1": "parquet", b"ARROW1": "arrow"}


def load_dataset(
    path_or_id: str | Path, *, max_episode_steps: int | None = None, check_finite: bool = True
) -> Transitions:
    """Return the transitions of a file, a directory of files of one format, or a Minari dataset.

    path_or_id: a file or directory, or the id of a Minari dataset in Minari's own folder.
    max_episode_steps: after how many steps a time limit cut episodes, 0 if there was no limit. Flat logs without
        `timeouts`, `next_observations` and `episode` need it; in any log it cuts longer episodes. None by default.
    check_finite: refuse NaN and infinity, by default True; False is for inspecting a log, never for learning.
    """
    if max_episode_steps is not None and max_episode_steps < 0:
        raise InputError(f"max_episode_steps is {max_episode_steps}; expected a count, or 0 for no limit")
    name = str(path_or_id)
    with sentence_for(shown(name), "the name of a file", (OSError, RuntimeError)):  # too long, or ~nobody
        path = Path(path_or_id).expanduser()
        path.exists()
    columns = _read(path, name, max_episode_steps, check_finite)
    columns.name = printable(columns.name)  # a name that a report will show; a file may be called anything
    return Transitions.from_columns(columns, max_episode_steps=max_episode_steps, check_finite=check_finite)


def _read(path: Path, name: str, max_episode_steps: int | None, check_finite: bool) -> Columns:
    if not path.exists():
        path = _local_minari_dataset(name)
    if path.is_dir():
        folder = minari_data_directory(path)
        if folder is not None:
            return read_minari(folder, name=name, check_finite=check_finite)
        files = _open_directory(path)
    else:
        files = [_open_file(path)]
    for file in files:
        _require_episode_ends(file, max_episode_steps)
    return _columns_from_files(files, name, check_finite=check_finite)


def _local_minari_dataset(name: str) -> Path:
    root = minari_root()
    is_id = re.fullmatch(r"[\w-]+(/[\w-]+)*-v\d+", name) is not None
    if is_id and (root / name).is_dir():
        return root / name
    hint = f", and no Minari dataset of that id under {root}" if is_id else ""
    raise InputError(f"{name}: no such file or directory{hint}; expected {READABLE}")


def _open_directory(path: Path) -> Sequence[FlatFile]:
    members = sorted(
        (
            file
            for file in path.iterdir()
            if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")
        ),
        key=lambda file: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", file.name)],
    )
    if not members:
        raise InputError(f"{path}: holds no data file; expected {READABLE}")
    formats = {_format_of(file): file.name for file in members}
    if len(formats) > 1:
        held = " and ".join(f"{kind} ({file})" for kind, file in sorted(formats.items()))
        raise InputError(f"{path}: holds files of several formats, {held}; expected one format")
    return [_open_file(file) for file in members]


def _open_file(path: Path) -> FlatFile:
    kind = _format_of(path)
    file: FlatFile
    if kind == "hdf5":
        file = Hdf5File(path)
    elif kind == "npz":
        file = NpzFile(path)
    else:
        file = TableFile(path, parquet=kind == "parquet")
    declared = sum(header.declared_bytes for header in file.headers.values())
    check_declared_bytes(declared, path.stat().st_size, file.name, "the header")
    return file


def _format_of(path: Path) -> str:
    """Return the format by the file's first bytes, or its suffix where those say nothing (Arrow streams)."""
    with open_file(path, READABLE) as file:
        start = file.read(8)
    if not start:
        raise InputError(f"{path}: the file is empty (0 bytes); expected {READABLE}")
    for magic, kind in _MAGIC.items():
        if start.startswith(magic):
            return kind
    kind = _SUFFIXES.get(path.suffix.lower(), "unknown")
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


def _require_episode_ends(file: FlatFile, max_episode_steps: int | None) -> None:
    if max_episode_steps is None and not {"timeouts", "next_observations", "episode"} & set(file.headers):
        raise InputError(
            f"{file.name}: timeouts is missing, and without next_observations an episode cut by a time limit "
            "cannot be told from one that goes on; add timeouts, or give max_episode_steps (0: terminals "
            "marks every end)"
        )


def _columns_from_files(files: Sequence[FlatFile], name: str, *, check_finite: bool = True) -> Columns:
    """Return columns over the rows of all files in order; the last row of each file ends an episode."""
    layouts = [layout_of(file.headers, file.name) for file in files]
    for file, layout in zip(files[1:], layouts[1:]):
        _check_same_layout(layouts[0], files[0].name, layout, file.name)
    columns = empty_columns(replace(layouts[0], rows=sum(layout.rows for layout in layouts)), name)
    start = 0
    for file, layout in zip(files, layouts):
        _fill_from(file, columns, slice(start, start + layout.rows), check_finite)
        start += layout.rows
    return columns


def _fill_from(file: FlatFile, columns: Columns, rows: slice, check_finite: bool) -> None:
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
    if "episode" in file.headers:
        _cut_between_ids(columns.terminated[rows], cut, file)
    cut[-1] = True


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
