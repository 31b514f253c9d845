"""A path or a Minari id -> Transitions: read once by the child process, from then on mapped from the user's cache."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError, printable, sentence_for, shown
from kmifqe.io.cache import CacheWarning
from kmifqe.io.child import run_in_child
from kmifqe.io.logs import kept
from kmifqe.io.logs.arrays import FIELDS, map_columns
from kmifqe.io.logs.minari import minari_data_directory
from kmifqe.io.logs.places import find_log, several
from kmifqe.io.logs.read import format_of, log_files, require_episode_ends
from kmifqe.mdp.columns import Columns
from kmifqe.mdp.transitions import Transitions

# What the child imports once for each format, before it forks; pyarrow asks for pandas on its own.
TABLES = ("pyarrow.compute", "pyarrow.ipc", "pyarrow.parquet", "pandas")
LIBRARIES = {
    "parquet": TABLES,
    "arrow": TABLES,
    "minari": ("minari.dataset.minari_storage", "pyarrow.dataset", *TABLES),
}


def load_dataset(
    path_or_id: str | Path | Sequence[str | Path],
    *,
    max_episode_steps: int | None = None,
    check_finite: bool = True,
    cache: bool = True,
) -> Transitions:
    """Return the transitions of a file, a directory of files of one format, or a Minari dataset.

    The files are read by a second process under limits of memory and time, which writes their fields as plain arrays.
    These are mapped, and kept in the user's cache folder: a log that was read before is there at once.

    path_or_id: a file or directory; several files of one format as a list or a pattern such as "logs/*.parquet"; the
        id of a Minari dataset in Minari's own folder, or `minari:ID`, which downloads it; a dataset of the Hugging
        Face hub, "hf://datasets/OWNER/NAME".
    max_episode_steps: after how many steps a time limit cut episodes, 0 if there was no limit. Flat logs without
        `timeouts`, `next_observations` and `episode` need it; in any log it cuts longer episodes. None by default.
    check_finite: refuse NaN and infinity, by default True; False is for inspecting a log, never for learning.
    cache: keep what was read in the user's cache folder, and take it from there; by default True.
    """
    if max_episode_steps is not None and max_episode_steps < 0:
        raise InputError(f"max_episode_steps is {max_episode_steps}; expected a count, or 0 for no limit")
    files = None if isinstance(path_or_id, str | Path) else list(path_or_id)
    name = str(path_or_id) if files is None else ", ".join(map(str, files)) or "an empty list"
    # A name may be too long, or ~nobody.
    with sentence_for(shown(name), "the name of a file", (OSError, RuntimeError, ValueError)):
        paths = find_log(name) if files is None else several(files, name)
    needs_ends = max_episode_steps is None
    columns = _columns(paths, name, check_finite, needs_ends, _cache() if cache else None)
    known = columns.cuts_are_marked or columns.next_states is not None
    require_episode_ends(known or not needs_ends, name)
    if columns.ends_may_be_cuts and needs_ends:
        raise InputError(
            f"{name}: next.done is set on the last row of every episode, so it cannot tell an end of the task from a "
            "time limit; give --max-episode-steps (max_episode_steps=): the time limit, which cut episodes of that "
            "length, or 0 if the task itself ended every episode"
        )
    return Transitions.from_columns(columns, max_episode_steps=max_episode_steps, check_finite=check_finite)


def _columns(
    paths: Sequence[Path], name: str, check_finite: bool, needs_ends: bool, cache: Path | None
) -> Columns:
    """Return the log's columns, from the cache if they are there, else read by the child."""
    shown_name = printable(name)  # a name that a report will show; a file may be called anything
    with sentence_for(shown(name), "a log", (OSError,)):  # a link to itself, a folder that is locked
        files, kind = _sources(paths)
        before = _states(files)
    key = "" if cache is None else kept.digest_of(files, paths[0] if len(paths) == 1 else paths[0].parent)
    if cache is not None:
        # What was read and found finite serves an inspection as well.
        keys = [key] if check_finite else [key, f"{key}-unchecked"]
        for place in filter(None, (kept.find(cache, each) for each in keys)):
            try:
                return map_columns(place, shown_name, verify=True)
            except InputError:  # damaged, or gone meanwhile: read again, which replaces it
                continue
    with kept.new_entry(cache) as arrays:
        arguments = {
            "paths": [os.fspath(path) for path in paths],
            "name": name,
            "check_finite": check_finite,
            "needs_ends": needs_ends,
        }
        source_bytes = sum(size for _, size, _ in before)
        run_in_child(
            "log", name, source_bytes, LIBRARIES.get(kind, ()), folder=os.fspath(arrays), **arguments
        )
        columns = map_columns(arrays, shown_name, verify=False)
        if os.name != "posix":  # elsewhere a file that is mapped cannot be moved or removed
            held = {field: getattr(columns, field) for field in FIELDS}
            for field, array in held.items():
                setattr(columns, field, None if array is None else np.array(array))
        if cache is not None and _states(files) == before:  # not changed since its digest was taken
            kept.keep(
                arrays,
                cache,
                key if check_finite else f"{key}-unchecked",
                kept.About(shown_name, len(columns.rewards), check_finite),
            )
    return columns


def _cache() -> Path | None:
    """Return the folder of kept logs, None where the user wants none or it cannot be trusted."""
    try:
        return kept.private_cache() if kept.most_kept() else None
    except InputError as error:
        warnings.warn(CacheWarning(f"{error}; the log is read anew and not kept"), stacklevel=3)
        return None


def _sources(paths: Sequence[Path]) -> tuple[list[Path], str]:
    """Return the files that a log consists of, in order, and its format."""
    folder = minari_data_directory(paths[0]) if paths[0].is_dir() else None
    if folder is not None:
        return [file for file in sorted(folder.rglob("*")) if not os.path.isdir(file)], "minari"
    files = log_files(*paths)
    return files, format_of(files[0])


def _states(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of every file."""
    found = [(file, file.stat()) for file in files]
    return [(os.fspath(file), state.st_size, state.st_mtime_ns) for file, state in found]
