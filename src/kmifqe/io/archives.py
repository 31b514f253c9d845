"""Zip and HDF5 files read as data: what they claim is checked before a library acts on it."""

from __future__ import annotations

import io
import math
import mmap
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
from kmifqe.io.files import require_file

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
# The only methods that NumPy, PyTorch and Stable-Baselines3 use; others expand without bound inside one read.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADER_LIMIT = 65_536  # bytes; NumPy would read as many as the header claims, up to 4 GiB


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
    """Return the arrays and the metadata of a safetensors file."""
    require_file(path)
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


_GZIP, _SHUFFLE, _CHECKSUM = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
_LZF = h5py.h5z.FILTER_LZF
_CHECKSUM_BYTES = 4
_MANY, _SMALL = 10_000, 1024
# A text or list as stored: how many elements, the heap's address, and the number of the object that holds them.
_ELEMENT = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
_HEAP_HEADER = 16  # bytes, of a heap and of each object in it


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
    """Refuse an array that lies in other files, claims far more than its file holds, or would not unpack soundly."""
    where = shown(str(dataset.name).lstrip("/"))
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{name}: {where} is stored in other files; expected an array in this one")
    file_bytes = Path(dataset.file.filename).stat().st_size
    for shape in (dataset.shape or (), dataset.chunks or ()):
        declared = math.prod((dataset.dtype.itemsize, *map(int, shape)))
        check_declared_bytes(declared, file_bytes, name, where)
    if dataset.chunks:
        _check_chunks(dataset, file_bytes, name, where)
    if dataset.dtype.hasobject:
        _check_free_lengths(dataset, file_bytes, name, where)


def _check_chunks(dataset: h5py.Dataset, file_bytes: int, name: str, where: str) -> None:
    """Refuse an array any of whose chunks would not unpack to exactly the size of a chunk.

    The library unpacks a chunk into as much memory as it fills, and then reads a whole chunk from it, however
    little came out. Chunks are therefore unpacked here once, never beyond a chunk's size.
    """
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    known = set(filters) <= {_GZIP, _SHUFFLE, _CHECKSUM, _LZF}
    if not known or len(set(filters)) != len(filters) or {_GZIP, _LZF} <= set(filters):
        raise InputError(
            f"{name}: {where} is packed by the HDF5 filters {filters}; expected gzip or lzf, once, "
            "with or without shuffle and checksum"
        )
    is_free = h5py.check_vlen_dtype(dataset.dtype) is not None or dataset.dtype == object
    element = _ELEMENT.itemsize if is_free else dataset.id.get_type().get_size()
    expected = math.prod((element, *map(int, dataset.chunks)))
    count = math.prod(-(-int(length) // int(chunk)) for length, chunk in zip(dataset.shape, dataset.chunks))
    if count > _MANY and expected < _SMALL:  # the library keeps near a kilobyte about each chunk it looks for
        raise InputError(
            f"{name}: {where} is cut into {count:,} chunks of {expected:,} bytes; expected fewer, larger ones"
        )
    for info in _chunks(dataset):
        if info.size > file_bytes or _unpacked_bytes(dataset, info, filters, expected) != expected:
            raise InputError(
                f"{name}: {where} has a chunk at {tuple(info.chunk_offset)} that does not unpack to "
                f"{expected:,} bytes; the file is damaged"
            )


def _chunks(dataset: h5py.Dataset) -> list[Any]:
    infos: list[Any] = []
    dataset.id.chunk_iter(infos.append)
    return infos


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
            most = expected + _CHECKSUM_BYTES  # where the checksum came before packing
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
            if control < 32:  # a run of control + 1 bytes comes next
                at += control + 2
                size += control + 1
            else:  # a copy of earlier bytes
                longer = control >> 5 == 7
                size += 9 + raw[at + 1] if longer else (control >> 5) + 2
                at += 3 if longer else 2
    except IndexError:
        return -1
    return size if at == len(raw) else -1


def _check_free_lengths(dataset: h5py.Dataset, file_bytes: int, name: str, where: str) -> None:
    """Refuse an array of texts or lists that claim more than the file holds, or that lie in no sound heap."""
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    base = np.dtype("u1") if is_text else h5py.check_vlen_dtype(dataset.dtype)
    properties = dataset.id.get_create_plist()
    is_plain = properties.get_nfilters() == 0 and properties.get_layout() != h5py.h5d.COMPACT
    if not is_plain or base is None or np.dtype(base).hasobject:
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
        heaps = {int(address): _heap_objects(data, int(address)) for address in np.unique(elements["heap"])}
        for length, address, number in elements.tolist():
            # The library copies the whole object into memory for as many elements as the array claims.
            if heaps[address].get(number) != length * np.dtype(base).itemsize:
                raise InputError(f"{name}: {where} lies in a damaged heap at byte {address:,}")


def _stored(dataset: h5py.Dataset, data: mmap.mmap) -> bytes:
    """Return an unpacked array's bytes as they lie in the file; nothing where nothing was written."""
    if dataset.chunks:
        return b"".join(dataset.id.read_direct_chunk(info.chunk_offset)[1] for info in _chunks(dataset))
    offset = dataset.id.get_offset()
    return b"" if offset is None else data[offset : offset + dataset.id.get_storage_size()]


def _heap_objects(data: mmap.mmap, address: int) -> dict[int, int]:
    """Return number -> bytes of a global heap's objects; none unless they follow each other to its end.

    In any other heap the library may walk for ever.
    """
    if not 0 <= address <= len(data) - _HEAP_HEADER or data[address : address + 5] != b"GCOL\x01":
        return {}
    (size,) = struct.unpack_from("<Q", data, address + 8)
    at, end = address + _HEAP_HEADER, address + size
    if end > len(data):
        return {}
    held: dict[int, int] = {}
    while at + _HEAP_HEADER <= end:
        number, _, length = struct.unpack_from("<HH4xQ", data, at)
        # Object 0 is the free rest: it counts its own header, the others are padded to eight bytes.
        step = length if number == 0 else _HEAP_HEADER + (length + 7) // 8 * 8
        if step < _HEAP_HEADER:
            return {}
        held[number] = length
        at += step
    return held if at <= end else {}
