"""A log as plain arrays in a folder: one `.npy` for each field, and a header that says what they are."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec
import numpy as np
from numpy.lib import format as npy

from kmifqe.errors import InputError
from kmifqe.io.archives import ZIP_ERRORS, read_npy_header
from kmifqe.io.files import disk_sentence, open_file
from kmifqe.io.serialize import read_json, to_json
from kmifqe.mdp.columns import Columns, row_slices

SCHEMA = "kmifqe.log/1"
HEADER = "header.json"
FIELDS = {
    **dict.fromkeys(("states", "actions", "rewards", "next_states", "log_mu"), np.dtype(np.float32)),
    **dict.fromkeys(("terminated", "cut"), np.dtype(np.bool_)),
}
OPTIONAL = {"next_states", "log_mu"}


class FieldHeader(msgspec.Struct, frozen=True):
    """One array: its shape, and the checksum (CRC-32) of its numbers."""

    shape: tuple[int, ...]
    checksum: int


class LogHeader(msgspec.Struct, frozen=True):
    """What the arrays beside it are; the rest of `Columns`."""

    schema: str
    fields: dict[str, FieldHeader]
    cuts_are_marked: bool
    has_episode_ids: bool
    ends_may_be_cuts: bool = False


class ArrayFolder:
    """A folder into which a log's columns are written as they are read, without holding them in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def allocate(self, field: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """Return zeros that lie in the file of `field`; room on the disk is taken at once."""
        path = self.folder / f"{field}.npy"
        header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        with disk_sentence(path), path.open("wb") as file:
            npy.write_array_header_1_0(file, header)
            start, length = file.tell(), int(np.prod(shape)) * np.dtype(dtype).itemsize
            if hasattr(os, "posix_fallocate"):  # a page that finds no room later would end the process
                os.posix_fallocate(file.fileno(), 0, start + length)
            else:
                file.truncate(start + length)
        return np.asarray(np.memmap(path, dtype, "r+", start, shape))

    def finish(self, columns: Columns) -> None:
        """Write the header, which says that the arrays are whole."""
        held = {field: getattr(columns, field) for field in FIELDS}
        fields = {
            field: FieldHeader(array.shape, _checksum(array))
            for field, array in held.items()
            if array is not None
        }
        header = LogHeader(
            SCHEMA, fields, columns.cuts_are_marked, columns.has_episode_ids, columns.ends_may_be_cuts
        )
        with disk_sentence(self.folder / HEADER):
            (self.folder / HEADER).write_bytes(to_json(header, indent=1))


def map_columns(folder: Path, name: str, *, verify: bool) -> Columns:
    """Return the columns that an `ArrayFolder` holds, mapped, not read; InputError if it is not whole.

    Changes to the arrays stay in this process.

    folder: where the arrays are.
    name: the log as the user knows it.
    verify: compare the checksums, which reads everything once.
    """
    header = read_json(folder / HEADER, LogHeader)
    held = set(header.fields)
    if header.schema != SCHEMA or not set(FIELDS) - OPTIONAL <= held <= set(FIELDS):
        raise InputError(f"{folder / HEADER}: is no header of {SCHEMA}")
    arrays = {field: _map(folder / f"{field}.npy", field, header.fields[field]) for field in held}
    for field, array in arrays.items():
        if verify and _checksum(array) != header.fields[field].checksum:
            raise InputError(f"{folder / field}.npy: its checksum does not match its content")
    rows, q, d = len(arrays["rewards"]), arrays["states"].shape[-1], arrays["actions"].shape[-1]
    shapes = {"states": (rows, q), "actions": (rows, d), "next_states": (rows, q)}
    for field, array in arrays.items():
        if array.shape != shapes.get(field, (rows,)) and not (field == "log_mu" and array.shape == (rows, d)):
            raise InputError(f"{folder / field}.npy: has shape {array.shape}, beside {rows} rewards")
    return Columns(
        states=arrays["states"],
        actions=arrays["actions"],
        rewards=arrays["rewards"],
        terminated=arrays["terminated"],
        cut=arrays["cut"],
        cuts_are_marked=header.cuts_are_marked,
        has_episode_ids=header.has_episode_ids,
        ends_may_be_cuts=header.ends_may_be_cuts,
        next_states=arrays.get("next_states"),
        log_mu=arrays.get("log_mu"),
        name=name,
    )


def _map(path: Path, field: str, expected: FieldHeader) -> np.ndarray:
    with open_file(path) as file:
        try:
            shape, by_columns, dtype = read_npy_header(file)
        except ZIP_ERRORS as error:
            raise InputError(f"{path}: is not a readable array") from error
        start, end = file.tell(), os.fstat(file.fileno()).st_size
        is_whole = end == start + int(np.prod(shape)) * dtype.itemsize > start
        if not is_whole or by_columns or dtype != FIELDS[field] or shape != expected.shape:
            raise InputError(f"{path}: is not the array that {HEADER} describes")
        return np.asarray(np.memmap(file, dtype, "c", start, shape))


def _checksum(array: np.ndarray) -> int:
    found = 0
    for rows in row_slices(len(array), array.itemsize * int(np.prod(array.shape[1:]))):
        found = zlib.crc32(np.ascontiguousarray(array[rows]).data, found)
    return found
