"""D4RL's HDF5: flat arrays in time order, checked before the HDF5 library is let near them, read slice by slice."""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kmifqe.errors import InputError, check_declared_bytes, sentence_for, shown
from kmifqe.mdp.columns import ALIASES, Header, Piece, require_fields, resolve_names, row_slices

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


HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)


class D4rlFile:
    """A D4RL file (a FlatFile). Only the schema's fields are opened; links to other files are refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        with sentence_for(path, "an HDF5 file", HDF5_ERRORS), h5py.File(path, "r") as file:
            if "episode_0" in set(file):
                raise InputError(
                    f"{path}: is the inside of a Minari dataset; give the directory that holds it"
                )
            for alias in sorted({alias for names in ALIASES.values() for alias in names}):
                # First of all: even asking whether `infos/x` exists would open the file that a link names.
                refuse_links(file, alias, self.name)
            available = set(file) | {alias for names in ALIASES.values() for alias in names if alias in file}
            self._stored_names = resolve_names(available, self.name)
            require_fields(self._stored_names, set(file), self.name)
            self.headers = {
                field: self._header(file, stored, field) for field, stored in self._stored_names.items()
            }
        declared = sum(header.declared_bytes for header in self.headers.values())
        check_declared_bytes(declared, path.stat().st_size, self.name, "the header")

    def pieces(self, field: str) -> Iterator[Piece]:
        """Yield a field's rows, whole HDF5 chunks at a time (a chunk is decompressed once)."""
        with (
            sentence_for(self.path, f"an HDF5 file at {field}", HDF5_ERRORS),
            h5py.File(self.path, "r") as file,
        ):
            dataset = file[self._stored_names[field]]
            row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:]))
            for rows in row_slices(
                len(dataset), row_bytes, multiple=dataset.chunks[0] if dataset.chunks else 1
            ):
                yield rows, dataset[rows]

    def _header(self, file: h5py.File, stored: str, field: str) -> Header:
        dataset = file[stored]
        if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
            raise InputError(
                f"{self.name}: {field} is not an array; expected (steps, dimensions) or (steps,)"
            )
        check_dataset(dataset, self.path.stat().st_size, self.name)
        return Header(dataset.shape, dataset.dtype)


def refuse_links(group: h5py.Group, path: str, name: str) -> None:
    """Refuse a path any part of which is a link: it may lead, by others, into another file."""
    for key in path.split("/"):
        link = group.get(key, getlink=True)
        if link is None:
            return
        if not isinstance(link, h5py.HardLink):
            where = shown(f"{group.name}/{key}".lstrip("/"))
            raise InputError(
                f"{name}: {where} is a link to another file or field; expected an array in its place"
            )
        member = group[key]
        if not isinstance(member, h5py.Group):
            return
        group = member


def check_dataset(dataset: h5py.Dataset, file_bytes: int, name: str) -> None:
    """Refuse an HDF5 array kept in other files, or one that claims far more than the file holds."""
    if dataset.is_virtual or dataset.external:
        raise InputError(
            f"{name}: {shown(dataset.name)} is stored in other files; expected an array in this one"
        )
    for shape in (dataset.shape or (), dataset.chunks or ()):
        declared = Header(shape, dataset.dtype).declared_bytes
        check_declared_bytes(declared, file_bytes, name, shown(str(dataset.name).lstrip("/")))
    check_chunks(dataset, file_bytes, name)
    check_free_lengths(dataset, file_bytes, name)
