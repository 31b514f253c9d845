"""A path or a Minari id -> Transitions: what the file is, is decided by what is in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kmifqe.errors import InputError, printable, sentence_for, shown
from kmifqe.io.logs.d4rl import D4rlFile
from kmifqe.io.logs.minari import minari_data_directory, minari_root, read_minari
from kmifqe.io.logs.npz import NpzFile
from kmifqe.io.logs.tables import TableFile
from kmifqe.mdp.columns import FlatFile, columns_from_files
from kmifqe.mdp.transitions import Columns, Transitions

READABLE = "D4RL .hdf5, .npz, .parquet, .arrow, or a Minari directory"
_SUFFIXES = {
    ".hdf5": "hdf5",
    ".h5": "hdf5",
    ".npz": "npz",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "text",
    ".tsv": "text",
    ".json": "text",
    ".jsonl": "text",
}
_MAGIC = {b"\x89HDF\r\n\x1a\n": "hdf5", b"PK\x03\x04": "npz", b"PAR1": "parquet", b"ARROW1": "arrow"}


def load_dataset(
    path_or_id: str | Path, *, max_episode_steps: int | None = None, check_finite: bool = True
) -> Transitions:
    """Return the transitions of a file, a directory of files of one format, or a Minari dataset.

    `max_episode_steps` says where a time limit cut episodes: it is required for flat logs without `timeouts`,
    `next_observations` and `episode` (0: there was no limit, `terminals` marks every end), and cuts longer
    episodes in any log. `check_finite=False` lets NaN and infinity through: to inspect, never to learn.
    """
    if max_episode_steps is not None and max_episode_steps < 0:
        raise InputError(
            f"max_episode_steps is {max_episode_steps}; expected a positive number, or 0 for no limit"
        )
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
    return columns_from_files(files, name, check_finite=check_finite)


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
        raise InputError(
            f"{path}: holds files of several formats, {held}; expected one format in a directory"
        )
    return [_open_file(file) for file in members]


def _open_file(path: Path) -> FlatFile:
    kind = _format_of(path)
    if kind == "hdf5":
        return D4rlFile(path)
    if kind == "npz":
        return NpzFile(path)
    return TableFile(path, parquet=kind == "parquet")


def _format_of(path: Path) -> str:
    """Return the format by the file's first bytes, or its suffix where those say nothing (Arrow streams)."""
    if not path.is_file():
        raise InputError(f"{path}: is not a file or directory; expected {READABLE}")
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror})") from error
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
