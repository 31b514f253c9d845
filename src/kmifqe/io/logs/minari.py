"""Minari datasets, read through the `minari` package without any environment, and written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kmifqe.errors import InputError, sentence_for, shown
from kmifqe.io.archives import HDF5_ERRORS, check_declared_bytes, check_hdf5_array, hdf5_member
from kmifqe.io.files import read_file, whole_folder
from kmifqe.io.logs.tables import import_pyarrow
from kmifqe.mdp.columns import Allocate, Columns, Layout, empty_columns, fill_flags, fill_numbers, in_memory
from kmifqe.mdp.transitions import Transitions

_ERRORS = (*HDF5_ERRORS, AssertionError, AttributeError, IndexError, NotImplementedError, ImportError)
_DENSITIES = "action_log_probs"
_HDF5_BATCH = 64
_METADATA_LIMIT = 2**20  # bytes of JSON, which take fifty times as much in memory; a few KiB are usual
_MOST_MEMBERS = 1_000  # of an episode
_MOST_COLUMNS = 1_000_000  # in a step
_PLAIN_TYPE = re.compile(r"(float|int|uint)(8|16|32|64)|bool")


def minari_data_directory(path: Path) -> Path | None:
    """Return the folder that holds a Minari dataset's metadata.json, given it or its parent, or None."""
    for folder in (path / "data", path):
        if (folder / "metadata.json").is_file():
            return folder
    return None


def minari_root() -> Path:
    """Return where Minari keeps local datasets: MINARI_DATASETS_PATH, or ~/.minari/datasets."""
    chosen = os.environ.get("MINARI_DATASETS_PATH")
    return Path(chosen) if chosen else Path.home() / ".minari" / "datasets"


def import_minari_storage(name: str) -> Any:
    """Return minari's storage class, or say which extra brings it."""
    try:
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise InputError(
            f"{name}: Minari datasets need the minari package; install it with: pip install 'kmifqe[minari]'"
        ) from error
    return MinariStorage


def read_minari(
    folder: Path, *, name: str, check_finite: bool = True, allocate: Allocate = in_memory
) -> Columns:
    """Return a Minari dataset as columns: T + 1 observations give T states and T next states per episode.

    folder: the directory that holds metadata.json.
    name: the dataset as the user knows it, for messages.
    check_finite: refuse NaN and infinity, by default True.
    allocate: makes the arrays, by default in memory.
    """
    storage_class = import_minari_storage(name)
    _refuse_other_places(folder, name)
    metadata = _read_metadata(folder, name)
    with sentence_for(name, "a Minari dataset", _ERRORS):
        widths = (
            _width(metadata["observation_space"], "observations", name),
            _width(metadata["action_space"], "actions", name),
        )
        storage = storage_class.read(folder)
        layout = _layout(storage, metadata, widths, name)
        _check_declared_steps(folder, layout, name)
        columns = empty_columns(layout, name, allocate)
        _fill(columns, storage, layout, metadata["total_episodes"], check_finite)
    return columns


def _refuse_other_places(folder: Path, name: str) -> None:
    """Refuse a dataset with a file that really lies elsewhere, or is none (a pipe would be waited on)."""
    home = folder.resolve()
    for file in folder.rglob("*"):
        exists = file.is_file() or file.is_dir()  # what a link leads to, not the link
        if not exists or not file.resolve().is_relative_to(home):
            where = shown(file.relative_to(folder))
            raise InputError(f"{name}: {where} is no file of this directory; expected the data itself")


def _read_metadata(folder: Path, name: str) -> dict[str, Any]:
    with sentence_for(folder / "metadata.json", "JSON", (ValueError, RecursionError)):
        metadata = json.loads(read_file(folder / "metadata.json", _METADATA_LIMIT))
    if not isinstance(metadata, dict):
        raise InputError(f"{name}: metadata.json holds {type(metadata).__name__}; expected an object")
    # Without the spaces minari would import and build the environment named in the file: data runs no code.
    kinds = {"observation_space": str, "action_space": str, "total_steps": int, "total_episodes": int}
    for key, kind in kinds.items():
        if not isinstance(metadata.get(key), kind):
            raise InputError(f"{name}: metadata.json has no {key}; expected one of Minari 0.5 or later")
    return metadata


def _width(serialized: str, field: str, name: str) -> int:
    """Return the width of a Box of vectors; checked before minari builds the space, which takes its size."""
    with sentence_for(name, f"a Minari dataset at the space of {field}", (ValueError, RecursionError)):
        space = json.loads(serialized)
    kind = space.get("type") if isinstance(space, dict) else None
    if kind != "Box":
        raise InputError(
            f"{name}: {field} come from a {shown(kind, 40)} space; expected a Box of numbers (flatten it first)"
        )
    shape = space.get("shape")
    is_vector = isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int
    if not is_vector or not 0 < shape[0] <= _MOST_COLUMNS:
        raise InputError(f"{name}: {field} have shape {shown(shape, 40)} per step; expected a vector")
    if not _PLAIN_TYPE.fullmatch(str(space.get("dtype"))):
        raise InputError(f"{name}: {field} have type {shown(space.get('dtype'), 40)}; expected numbers")
    return shape[0]


def _layout(storage: Any, metadata: Mapping[str, Any], widths: tuple[int, int], name: str) -> Layout:
    steps = metadata["total_steps"]
    if steps < 1 or metadata["total_episodes"] < 1:
        raise InputError(f"{name}: the dataset is empty ({steps} steps); expected at least one transition")
    first = next(_episodes(storage, 1), None)
    if first is None:
        raise InputError(f"{name}: episode 0 holds no data; expected at least one transition")
    densities = (first["infos"] or {}).get(_DENSITIES)
    log_mu_dim = None
    if densities is not None:
        log_mu_dim = 0 if np.ndim(densities) == 1 or np.shape(densities)[1] == 1 else np.shape(densities)[1]
        if log_mu_dim not in (0, widths[1]):
            raise InputError(f"{name}: infos/{_DENSITIES} has {log_mu_dim} columns; actions has {widths[1]}")
    optional = {"timeouts", "next_observations"} | ({_DENSITIES} if densities is not None else set())
    return Layout(steps, widths[0], widths[1], log_mu_dim, frozenset(optional))


def _check_declared_steps(folder: Path, layout: Layout, name: str) -> None:
    stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    declared = 4 * layout.rows * (2 * layout.state_dim + layout.action_dim + 1)
    check_declared_bytes(declared, stored, name, "metadata.json")


def _datasets(group: h5py.Group, name: str) -> Iterator[h5py.Dataset]:
    """Yield the arrays under a group, one that several names share as often as it would be read."""
    waiting, members = [group], 0
    while waiting:
        holder = waiting.pop()
        for key in holder:
            members += 1
            if members > _MOST_MEMBERS:  # groups that hold each other have no end
                raise InputError(f"{name}: {shown(group.name)} holds more than {_MOST_MEMBERS:,} members")
            member = hdf5_member(holder, key, name)
            if isinstance(member, h5py.Group):
                waiting.append(member)
            elif isinstance(member, h5py.Dataset):
                yield member


def _episodes(storage: Any, count: int) -> Iterator[dict[str, Any]]:
    # Arrow episodes one by one: minari pairs them with record batches, which drift if an episode has several.
    # HDF5 episodes by the batch: each call opens the file anew, which frees what HDF5 keeps of every array.
    batch = _HDF5_BATCH if storage.FORMAT == "hdf5" else 1
    for start in range(0, count, batch):
        numbers = range(start, min(start + batch, count))
        if storage.FORMAT == "hdf5":
            _check_stored_arrays(storage.data_path / "main_data.hdf5", numbers)
        else:
            _check_stored_tables(storage.data_path / str(start))
        yield from storage.get_episodes(numbers)


def _check_stored_tables(folder: Path) -> None:
    pa = import_pyarrow(str(folder))
    for file in sorted(folder.rglob("*")):
        if file.is_dir() or file.name.startswith(("_", ".", "metadata.json")):  # as minari tells them apart
            continue
        with pa.memory_map(str(file)) as source:
            if source.read(6) == b"ARROW1":  # its lengths are believed by whoever reads a value
                reader = pa.ipc.open_file(source)
                for number in range(reader.num_record_batches):
                    reader.get_batch(number).validate(full=True)


def _check_stored_arrays(main_file: Path, episodes: range) -> None:
    name = str(main_file)
    with h5py.File(main_file, "r") as file:
        for number in episodes:
            episode = hdf5_member(file, f"episode_{number}", name)
            for dataset in _datasets(episode, name):
                check_hdf5_array(dataset, name)


def _fill(columns: Columns, storage: Any, layout: Layout, episodes: int, check_finite: bool) -> None:
    assert columns.next_states is not None
    start, name = 0, columns.name
    for number, episode in enumerate(_episodes(storage, episodes)):
        where = f"{name}, episode {number}"
        length = _check_lengths(episode, layout, where)
        rows = slice(start, start + length)
        if rows.stop > layout.rows:
            raise InputError(f"{name}: metadata.json declares {layout.rows:,} steps, the episodes hold more")
        observations, whole = episode["observations"], slice(0, length)
        numbers = [
            (columns.states, observations[:-1], "observations", check_finite),
            (columns.next_states, observations[1:], "observations", False),  # align checks them
            (columns.actions, episode["actions"], "actions", check_finite),
            (columns.rewards, episode["rewards"], "rewards", check_finite),
        ]
        if columns.log_mu is not None:
            logged = episode["infos"][_DENSITIES]
            numbers.append((columns.log_mu, logged, f"infos/{_DENSITIES}", check_finite))
        for target, values, field, check in numbers:
            fill_numbers(target[rows], [(whole, np.asarray(values))], field, where, check_finite=check)
        fill_flags(columns.terminated[rows], [(whole, episode["terminations"])], "terminations", where)
        fill_flags(columns.cut[rows], [(whole, episode["truncations"])], "truncations", where)
        for field, flags in (("terminations", columns.terminated[rows]), ("truncations", columns.cut[rows])):
            if flags[:-1].any():
                raise InputError(f"{where}: {field} is set before the last step; an episode ends once")
        columns.cut[rows.stop - 1] = True
        start = rows.stop
    if start != layout.rows:
        raise InputError(f"{name}: metadata.json declares {layout.rows:,} steps, the episodes hold {start:,}")


def _check_lengths(episode: Mapping[str, Any], layout: Layout, where: str) -> int:
    """Return T; refuse an episode whose fields are not T + 1 observations and T of everything else."""
    length = len(episode["rewards"])
    if length == 0:
        raise InputError(f"{where}: has no step; expected at least one")
    expected = {"observations": length + 1, "actions": length, "terminations": length, "truncations": length}
    fields = {field: np.asarray(episode[field]) for field in expected}
    if layout.log_mu_dim is not None:
        densities = (episode["infos"] or {}).get(_DENSITIES)
        if densities is None:
            raise InputError(f"{where}: infos/{_DENSITIES} is missing; episode 0 has it")
        expected[f"infos/{_DENSITIES}"], fields[f"infos/{_DENSITIES}"] = length, np.asarray(densities)
    for field, array in fields.items():
        if len(array) != expected[field]:
            raise InputError(
                f"{where}: {field} has {len(array)} rows; expected {expected[field]} ({length} rewards)"
            )
        if array.dtype.kind not in "iufb":
            raise InputError(f"{where}: {field} has type {array.dtype}; expected numbers")
    return length


def write_minari(transitions: Transitions, path: Path) -> None:
    """Write `path/data/` as minari does; inside Minari's own root the dataset is found by its id."""
    storage_class = import_minari_storage(str(path))
    from gymnasium.spaces import Box
    from minari import __version__

    root, place = minari_root().resolve(), path.resolve()
    dataset_id = place.relative_to(root).as_posix() if place.is_relative_to(root) else path.name
    with whole_folder(path) as partial:
        storage = storage_class.new(
            partial / "data",
            observation_space=Box(-np.inf, np.inf, (transitions.state_dim,), np.float32),
            action_space=Box(-np.inf, np.inf, (transitions.action_dim,), np.float32),
        )
        storage.update_metadata({"dataset_id": dataset_id, "minari_version": __version__})
        storage.update_episodes(_split_episodes(transitions))


def _split_episodes(transitions: Transitions) -> Iterator[Any]:
    from minari.data_collector import EpisodeBuffer

    # An episode of Minari's has no gaps: what follows lost rows becomes an episode of its own.
    after_lost_rows = np.flatnonzero(transitions.before_lost_rows) + 1
    bounds = np.sort([*transitions.first_rows, *after_lost_rows, len(transitions)])
    for number, (start, stop) in enumerate(pairwise(bounds)):
        rows, last = slice(start, stop), stop - 1
        # A last state that was not logged is a row of NaN, as in the flat formats.
        final = transitions.next_states[last] if transitions.has_next_state[last] else np.nan
        observations = np.empty((stop - start + 1, transitions.state_dim), np.float32)
        observations[:-1], observations[-1] = transitions.states[rows], final
        log_mu = transitions.log_mu
        yield EpisodeBuffer(
            id=number,
            observations=observations,
            actions=transitions.actions[rows],
            rewards=transitions.rewards[rows],
            terminations=transitions.terminated[rows],
            truncations=transitions.truncated[rows] | transitions.before_lost_rows[rows],
            infos=None if log_mu is None else {"action_log_probs": log_mu[rows]},
        )
