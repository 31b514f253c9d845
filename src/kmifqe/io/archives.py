"""Zip, HDF5 and safetensors files read as data: nothing in them leads to other files or runs.

HDF5 files are read by the child process alone: what its library does with a damaged one ends with the child.
"""

from __future__ import annotations

import io
import math
import struct
import sys
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open

from kmifqe.errors import InputError, listed, shown
from kmifqe.io.files import open_file, require_file

# Real logs compress 1-3 times (flags alone a thousand) and weights hardly: beyond a hundred it is neither.
MAX_EXPANSION, FREE_BYTES = 100, 16 * 2**20
MEMBER_LIMIT = 512 * 2**20  # bytes, uncompressed: far above any policy, far below a decompression bomb
MOST_DIMENSIONS, MOST_NUMBERS = 32, 2**48  # of an array; far above any policy, far below where integers wrap
# What the standard library and NumPy raise on damaged archives and headers, found by damaging them at random.
ZIP_ERRORS = (
    *(OSError, ValueError, EOFError, OverflowError, RuntimeError, KeyError, TypeError, MemoryError),
    *(
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        tokenize.TokenError,
        SyntaxError,
    ),  # headers are tokenized
)
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)
_NOT_IN_NUMPY = (TypeError, KeyError, ValueError, AttributeError)  # safetensors on a type that NumPy lacks
_KEEP_LENGTH = {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}  # the latter but for its four bytes
# The only methods that NumPy, PyTorch and Stable-Baselines3 use; others expand without bound inside one read.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADER_LIMIT = 65_536  # bytes; NumPy would read as many as the header claims, up to 4 GiB
SAFETENSORS_HEADER_LIMIT = 4 * 2**20  # bytes of JSON; a checkpoint's has some ten thousand


def check_declared_bytes(declared: int, stored: int, name: str, what: str) -> None:
    """Refuse a file whose headers declare more than 16 MiB + 100 times the bytes it has on disk.

    declared: the bytes that the file says it unpacks to.
    stored: the bytes that the file has.
    name: the file, for the message.
    what: the part of the file that declares them, for the message.
    """
    if declared > FREE_BYTES + MAX_EXPANSION * stored:
        raise InputError(
            f"{name}: {what} declares {declared:,} bytes, but the file has {stored:,}; "
            f"expected at most {MAX_EXPANSION} times the file's size"
        )


class Archive:
    """The members of one zip file by name; a member name is only ever compared, never used as a path."""

    def __init__(self, source: str | Path | bytes, where: str) -> None:
        self.where = where
        if not isinstance(source, bytes):
            require_file(source)
        try:
            packed = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
            self._limit = self._budget = min(MEMBER_LIMIT, FREE_BYTES + MAX_EXPANSION * packed)
            self._zip = zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source)
        except ZIP_ERRORS as error:
            raise InputError(f"{where}: cannot be read as a zip archive ({shown(error)})") from error
        self.sizes = {info.filename: info.file_size for info in self._zip.infolist()}

    def open(self, member: str) -> IO[bytes]:
        """Return a member as a stream of its unpacked bytes."""
        where = f"{self.where}: member {shown(member)}"
        if member not in self.sizes:
            raise InputError(f"{where} is missing; found {listed(self.sizes)}")
        method = self._zip.getinfo(member).compress_type
        if method not in _METHODS:
            raise InputError(f"{where} is compressed by method {method}; expected deflate")
        return self._zip.open(member)

    def read(self, member: str) -> bytes:
        """Return a member's bytes; all reads together stay below `MEMBER_LIMIT`, and below what the file allows."""
        self._budget -= self.sizes.get(member, 0)
        if self._budget < 0:
            raise InputError(
                f"{self.where}: member {shown(member)} unpacks to {self.sizes[member]:,} bytes; "
                f"expected at most {self._limit:,} in all"
            )
        try:
            with self.open(member) as stream:
                return stream.read()
        except InputError:
            raise
        except ZIP_ERRORS as error:
            raise InputError(f"{self.where}: member {shown(member)} is damaged ({shown(error)})") from error


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` by name; object arrays (pickles) are refused unread."""
    archive = Archive(path, str(path))
    names = [member.removesuffix(".npy") for member in archive.sizes if member.endswith(".npy")]
    return {name: _parse_npy(archive.read(f"{name}.npy"), f"{path}: {shown(name)}") for name in names}


def read_safetensors(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays and the metadata of a safetensors file.

    The process that needs the arrays reads it itself: the file is a short JSON header and the arrays' bytes, nothing
    is unpacked, the library is memory-safe, and a child would hand its arrays over in just such a file. The header
    is bounded before the library parses it, since parsed JSON takes many times its length.
    """
    with open_file(path, "a safetensors file") as stream:
        start = stream.read(8)
    declared = int.from_bytes(start, "little")
    if len(start) == 8 and declared > SAFETENSORS_HEADER_LIMIT:
        raise InputError(
            f"{path}: declares a header of {declared:,} bytes; expected at most {SAFETENSORS_HEADER_LIMIT:,} "
            "in a safetensors file"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            return arrays, dict(file.metadata() or {})
    except (OSError, SafetensorError, *_NOT_IN_NUMPY) as error:
        raise InputError(f"{path}: not a readable safetensors file ({shown(error)})") from error


def read_npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, whether the order is Fortran's, and type of the array that begins here."""
    version = npy.read_magic(stream)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"format version {version} is not used for numbers")
    prefix = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(prefix, "little")
    if length > _HEADER_LIMIT:
        raise ValueError(f"the array's header claims {length:,} bytes")
    shape, by_columns, dtype = read(io.BytesIO(prefix + stream.read(length)))
    shape = tuple(int(length) for length in shape)  # NumPy takes True for a length
    if any(length < 0 for length in shape):
        raise ValueError(f"shape {shape} has a negative length")
    return shape, by_columns, dtype


def _parse_npy(blob: bytes, where: str) -> np.ndarray:
    # np.load allocates what the header claims; here the claim is held against the bytes that are there.
    stream = io.BytesIO(blob)
    try:
        shape, by_columns, dtype = read_npy_header(stream)
    except ZIP_ERRORS as error:
        raise InputError(f"{where} is not a readable array ({shown(error)})") from error
    if dtype.hasobject:
        raise InputError(f"{where} holds pickled Python objects; expected numbers (not unpickled)")
    if dtype.kind not in "biufSU":
        raise InputError(f"{where} has type {shown(dtype)}; expected numbers or text")
    held = len(blob) - stream.tell()
    plausible = len(shape) <= MOST_DIMENSIONS and dtype.itemsize > 0
    if not plausible or math.prod(shape) * dtype.itemsize != held:
        raise InputError(f"{where} claims shape {shown(shape)} of {shown(dtype)}; found {held:,} bytes")
    array = np.frombuffer(blob, dtype, math.prod(shape), stream.tell())
    # NumPy makes Python strings of letters that do not exist, which then break whatever touches them.
    if dtype.kind == "U" and (array.reshape(-1).view(dtype.str[0] + "u4") > sys.maxunicode).any():
        raise InputError(f"{where} holds letters that are none; expected text")
    return array.reshape(shape, order="F" if by_columns else "C")


def hdf5_member(group: h5py.Group, path: str, name: str) -> Any:
    """Return what lies at `path`, None if nothing does; a link is refused, as it may lead into another file.

    Even asking h5py whether a path exists would open the file that a link on the way names.

    group: where `path` begins.
    path: keys with slashes between them.
    name: the file, for the message.
    """
    for key in path.split("/"):
        link = group.get(key, getlink=True) if isinstance(group, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            where = shown(f"{group.name}/{key}".lstrip("/"))
            raise InputError(f"{name}: {where} is a link to another file or field; expected an array")
        group = group[key]
    return group


def check_hdf5_array(dataset: h5py.Dataset, name: str) -> None:
    """Refuse an array that lies in other files, or claims far more than its file holds."""
    where = shown(str(dataset.name).lstrip("/"))
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{name}: {where} is stored in other files; expected an array in this one")
    for shape in (dataset.shape or (), dataset.chunks or ()):
        declared = math.prod((dataset.dtype.itemsize, *map(int, shape)))
        check_declared_bytes(declared, Path(dataset.file.filename).stat().st_size, name, where)
    if dataset.chunks:
        _check_hdf5_chunks(dataset, f"{name}: {where}")


def _check_hdf5_chunks(dataset: h5py.Dataset, where: str) -> None:
    """Refuse an array with a chunk that does not unpack to a chunk's bytes: HDF5 would take what lies in memory.

    Only gzip is unpacked here, which is what D4RL and Minari write. LZF and others are left to HDF5.
    """
    filters = dataset.id.get_create_plist()
    kinds = [filters.get_filter(number)[0] for number in range(filters.get_nfilters())]
    expected = math.prod((dataset.dtype.itemsize, *dataset.chunks))
    is_gzip = h5py.h5z.FILTER_DEFLATE in kinds and set(kinds) <= _KEEP_LENGTH | {h5py.h5z.FILTER_DEFLATE}

    def check(chunk: Any) -> None:
        if chunk.byte_offset is None or not is_gzip:
            return
        skipped = {kind for place, kind in enumerate(kinds) if chunk.filter_mask >> place & 1}
        has_checksum = h5py.h5z.FILTER_FLETCHER32 in set(kinds) - skipped
        if h5py.h5z.FILTER_DEFLATE in skipped:
            found = chunk.size - 4 * has_checksum
        else:
            _, packed = dataset.id.read_direct_chunk(chunk.chunk_offset)
            try:
                found = len(zlib.decompressobj().decompress(packed, expected + 1))
            except zlib.error as error:
                raise InputError(f"{where}: a chunk is damaged ({shown(error)})") from error
        if found != expected:
            more = "more" if found > expected else f"{found:,}"
            raise InputError(f"{where}: a chunk unpacks to {more} bytes; expected {expected:,}")

    dataset.id.chunk_iter(check)
