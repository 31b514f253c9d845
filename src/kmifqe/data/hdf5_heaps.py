"""Texts and lists of free length in HDF5: the library allocates what they claim, and trusts the heaps they lie in."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import h5py
import numpy as np

from kmifqe.data.limits import check_declared_bytes, shown
from kmifqe.errors import InputError

# As stored: how many elements, the heap's address, and the number of the object in it that holds them.
_ELEMENT = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
FREE_LENGTH_BYTES = _ELEMENT.itemsize
_HEADER = 16  # bytes, of a heap and of each object in it


def check_free_lengths(dataset: h5py.Dataset, file_bytes: int, name: str) -> None:
    """Refuse an array of texts or lists that claim more than the file holds, or that lie in no sound heap."""
    if not dataset.dtype.hasobject:
        return
    where = shown(str(dataset.name).lstrip("/"))
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    base = np.dtype("u1") if is_text else h5py.check_vlen_dtype(dataset.dtype)
    properties = dataset.id.get_create_plist()
    plain = properties.get_nfilters() == 0 and properties.get_layout() != h5py.h5d.COMPACT
    if not plain or base is None or np.dtype(base).hasobject:
        raise InputError(f"{name}: {where} has type {shown(dataset.dtype)}; expected numbers or plain text")
    with (
        open(dataset.file.filename, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        stored = _stored(dataset, data)
        elements = np.frombuffer(stored, _ELEMENT) if stored else np.empty(0, _ELEMENT)
        elements = elements[elements["length"] > 0]
        declared = int(elements["length"].sum(dtype=np.uint64)) * np.dtype(base).itemsize
        check_declared_bytes(declared, file_bytes, name, where)
        for address in np.unique(elements["heap"]):
            if not _heap_is_sound(data, int(address)):
                raise InputError(f"{name}: {where} lies in a damaged heap at byte {int(address):,}")


def _stored(dataset: h5py.Dataset, data: mmap.mmap) -> bytes:
    """Return an unpacked array's bytes as they lie in the file; nothing where nothing was written."""
    if dataset.chunks:
        infos: list[Any] = []
        dataset.id.chunk_iter(infos.append)
        return b"".join(dataset.id.read_direct_chunk(info.chunk_offset)[1] for info in infos)
    offset = dataset.id.get_offset()
    return b"" if offset is None else data[offset : offset + dataset.id.get_storage_size()]


def _heap_is_sound(data: mmap.mmap, address: int) -> bool:
    """Return whether a global heap's objects follow each other to its end: the library may walk for ever if not."""
    if not 0 <= address <= len(data) - _HEADER or data[address : address + 5] != b"GCOL\x01":
        return False
    (size,) = struct.unpack_from("<Q", data, address + 8)
    at, end = address + _HEADER, address + size
    if end > len(data):
        return False
    while at + _HEADER <= end:
        number, _, length = struct.unpack_from("<HH4xQ", data, at)
        # Object 0 is the free rest: it counts its own header, the others are padded to eight bytes.
        step = length if number == 0 else _HEADER + (length + 7) // 8 * 8
        if step < _HEADER:
            return False
        at += step
    return at <= end
