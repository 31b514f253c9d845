"""Are an HDF5 array's chunks what its header says? The HDF5 library trusts them, and crashes or swells where not."""

from __future__ import annotations

import zlib
from typing import Any

import h5py

from kmifqe.data.hdf5_heaps import FREE_LENGTH_BYTES
from kmifqe.data.limits import shown
from kmifqe.errors import InputError

_GZIP, _SHUFFLE, _CHECKSUM = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
_LZF = h5py.h5z.FILTER_LZF
_CHECKSUM_BYTES = 4
_MANY, _SMALL = 10_000, 1024


def check_chunks(dataset: h5py.Dataset, file_bytes: int, name: str) -> None:
    """Refuse an array any of whose chunks would not unpack to exactly the size of a chunk.

    The library unpacks a chunk into as much memory as it fills, and then reads a whole chunk from it, however
    little came out. Chunks are therefore unpacked here once, never beyond a chunk's size.
    """
    if not dataset.chunks:
        return
    where = shown(str(dataset.name).lstrip("/"))
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    known = set(filters) <= {_GZIP, _SHUFFLE, _CHECKSUM, _LZF}
    if not known or len(set(filters)) != len(filters) or {_GZIP, _LZF} <= set(filters):
        raise InputError(
            f"{name}: {where} is packed by the HDF5 filters {filters}; expected gzip or lzf, once, "
            "with or without shuffle and checksum"
        )
    is_free = h5py.check_vlen_dtype(dataset.dtype) is not None or dataset.dtype == object
    expected = FREE_LENGTH_BYTES if is_free else dataset.id.get_type().get_size()
    for length in dataset.chunks:
        expected *= int(length)
    count = 1
    for length, chunk in zip(dataset.shape, dataset.chunks):
        count *= -(-int(length) // int(chunk))
    if count > _MANY and expected < _SMALL:  # the library keeps near a kilobyte about each chunk it looks for
        raise InputError(
            f"{name}: {where} is cut into {count:,} chunks of {expected:,} bytes; expected larger ones"
        )
    infos: list[Any] = []
    dataset.id.chunk_iter(infos.append)
    for info in infos:
        if info.size > file_bytes or _unpacked_bytes(dataset, info, filters, expected) != expected:
            raise InputError(
                f"{name}: {where} has a chunk at {tuple(info.chunk_offset)} that does not unpack to "
                f"{expected:,} bytes; the file is damaged"
            )


def _unpacked_bytes(dataset: h5py.Dataset, info: Any, filters: list[int], expected: int) -> int:
    """Return a chunk's size once unpacked, or some other number where it does not unpack to `expected`."""
    size = info.size
    for number in reversed(range(len(filters))):
        if info.filter_mask >> number & 1:  # the filter was skipped for this chunk
            continue
        if filters[number] == _CHECKSUM:
            size -= _CHECKSUM_BYTES
        elif filters[number] in (_GZIP, _LZF):
            raw = dataset.id.read_direct_chunk(info.chunk_offset)[1][: max(size, 0)]
            most = expected + _CHECKSUM_BYTES  # where the checksum was taken before packing
            size = _gzip_bytes(raw, most) if filters[number] == _GZIP else _lzf_bytes(raw)
        if size <= 0:
            return -1
    return int(size)


def _gzip_bytes(raw: bytes, most: int) -> int:
    unpacker = zlib.decompressobj()
    try:
        size = len(unpacker.decompress(raw, most + 1))
    except zlib.error:
        return -1
    return size if unpacker.eof else -1


def _lzf_bytes(raw: bytes) -> int:
    """Return the size that an LZF stream unpacks to, by its control bytes alone."""
    at = size = 0
    try:
        while at < len(raw):
            control = raw[at]
            if control < 32:  # a run of control + 1 bytes follows
                at += control + 2
                size += control + 1
            else:  # a copy of earlier bytes
                longer = control >> 5 == 7
                size += 9 + raw[at + 1] if longer else (control >> 5) + 2
                at += 3 if longer else 2
    except IndexError:
        return -1
    return size if at == len(raw) else -1
