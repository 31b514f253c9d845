"""Transitions -> a file or a Minari directory, written whole or not at all."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.lib import format as npy

from kmifqe.errors import InputError, listed
from kmifqe.io.files import whole_file
from kmifqe.io.logs.minari import minari_data_directory, write_minari
from kmifqe.io.logs.tables import import_pyarrow
from kmifqe.mdp.columns import row_slices
from kmifqe.mdp.transitions import Transitions

WRITABLE = ".hdf5, .h5 (D4RL layout), .npz, .parquet, .arrow, or a Minari name ending in -v0, -v1, ..."
OF_MINARI = re.compile(r"metadata\.json|\w+\.hdf5|\d+")  # the names in a dataset's folder


def save_dataset(transitions: Transitions, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a log to a file or a Minari directory, whole or not at all.

    transitions: the log.
    path: where to; its suffix names the format, and a name such as `hopper-v0` makes a Minari dataset.
    overwrite: replace what lies at `path`; False by default.
    """
    path = Path(path).expanduser()
    refuse_target(path, overwrite=overwrite)
    if _is_minari_name(path):
        write_minari(transitions, path)
        return
    with whole_file(path) as partial:
        _WRITERS[path.suffix.lower()](transitions, partial)


def refuse_target(path: str | Path, *, overwrite: bool) -> None:
    """Refuse a name of no known format, and anything in the way that the user did not ask to replace."""
    path = Path(path).expanduser()
    to_minari = _is_minari_name(path)
    if not to_minari and path.suffix.lower() not in _WRITERS:
        suffix = path.suffix or "(none)"
        raise InputError(f"{path}: the suffix {suffix} names no format to write; expected {WRITABLE}")
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise InputError(f"{path}: exists already; give --force (overwrite=True) to replace it")
    if to_minari and minari_data_directory(path) is None:
        raise InputError(f"{path}: exists and is not a Minari dataset; it is not replaced")
    if to_minari and (others := _not_minaris(path)):
        raise InputError(
            f"{path}: holds more than a Minari dataset ({listed(others, 3)}); it is not replaced"
        )
    if not to_minari and not path.is_file():
        raise InputError(f"{path}: exists and is not a file; it is not replaced")


def _not_minaris(path: Path) -> list[str]:
    """Return what a Minari dataset holds, here and in its folder data, that minari has not written."""
    inside = path / "data"
    names = [name for name in os.listdir(path) if name != inside.name]
    if inside.is_dir():
        names += [name for name in os.listdir(inside) if not OF_MINARI.fullmatch(name)]
    return names


def _is_minari_name(path: Path) -> bool:
    return re.fullmatch(r"[\w-]+-v\d+", path.name) is not None


def flat_fields(transitions: Transitions) -> dict[str, np.ndarray]:
    """Return the log as flat arrays by D4RL's names, without next_observations where they say nothing new."""
    fields = {
        "observations": transitions.states,
        "actions": transitions.actions,
        "rewards": transitions.rewards,
        "terminals": transitions.terminated,
        "timeouts": transitions.truncated,
    }
    if not np.array_equal(transitions.has_next_state, transitions.has_next_action):
        fields["next_observations"] = transitions.next_states
    if transitions.log_mu is not None:
        fields["action_log_probs"] = transitions.log_mu
    return fields


def _rows_of(transitions: Transitions, field: str, array: np.ndarray, rows: slice) -> np.ndarray:
    """Return rows of a field as written: NaN stands for a next state that was not logged."""
    if field != "next_observations":
        return array[rows]
    return np.where(transitions.has_next_state[rows, None], array[rows], np.float32(np.nan))


def _write_d4rl(transitions: Transitions, path: Path) -> None:
    with h5py.File(path, "w") as file:
        for field, array in flat_fields(transitions).items():
            stored = "infos/action_log_probs" if field == "action_log_probs" else field
            packing = {"chunks": True, "compression": "gzip", "shuffle": True}
            dataset = file.create_dataset(stored, array.shape, array.dtype, **packing)
            for rows in row_slices(len(array), _row_bytes(array), dataset.chunks[0]):
                dataset[rows] = _rows_of(transitions, field, array, rows)


def _write_npz(transitions: Transitions, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for field, array in flat_fields(transitions).items():
            with archive.open(f"{field}.npy", "w", force_zip64=True) as stream:
                described = {"descr": npy.dtype_to_descr(array.dtype), "fortran_order": False}
                npy.write_array_header_1_0(stream, described | {"shape": array.shape})
                for rows in row_slices(len(array), _row_bytes(array)):
                    stream.write(np.ascontiguousarray(_rows_of(transitions, field, array, rows)).data)


def _write_table(transitions: Transitions, path: Path) -> None:
    pa = import_pyarrow(str(path))
    batches = _batches(pa, transitions)
    first = next(batches)
    open_writer = pa.parquet.ParquetWriter if path.suffix.lower() == ".parquet" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, open_writer(sink, first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)


def _batches(pa: Any, transitions: Transitions) -> Iterator[Any]:
    """Yield the log as record batches: matrices become columns of fixed-size lists."""
    fields = flat_fields(transitions)
    for rows in row_slices(len(transitions), sum(map(_row_bytes, fields.values()))):
        columns = {}
        for field, array in fields.items():
            values = _rows_of(transitions, field, array, rows)
            flat = pa.array(values.reshape(-1))
            is_matrix = values.ndim == 2
            columns[field] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if is_matrix else flat
        yield pa.RecordBatch.from_pydict(columns)


def _row_bytes(array: np.ndarray) -> int:
    return array.itemsize * int(np.prod(array.shape[1:]))


_WRITERS: dict[str, Callable[[Transitions, Path], None]] = {
    ".hdf5": _write_d4rl,
    ".h5": _write_d4rl,
    ".npz": _write_npz,
    ".parquet": _write_table,
    ".arrow": _write_table,
}
