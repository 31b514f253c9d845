"""`.npz` with D4RL's field names: members are streamed, nothing is unpickled."""

from __future__ import annotations

import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from kmifqe.errors import InputError, check_declared_bytes, sentence_for
from kmifqe.mdp.columns import Header, Piece, require_fields, resolve_names, row_slices

_ERRORS = (
    *(OSError, EOFError, ValueError, RuntimeError, KeyError, TypeError, OverflowError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError),  # header: tokenized
)
_HEADER_LIMIT = 65_536  # bytes; NumPy would read as many as the header claims, up to 4 GiB
# NumPy writes only these two; the others can expand without bound inside one read.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class NpzFile:
    """A NumPy archive (a FlatFile)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.headers: dict[str, Header] = {}
        with sentence_for(path, "an .npz archive", _ERRORS), zipfile.ZipFile(path) as archive:
            available = {member.removesuffix(".npy") for member in archive.namelist()}
            self._stored_names = resolve_names(available, self.name)
            require_fields(self._stored_names, available, self.name)
            for field, stored in self._stored_names.items():
                self.headers[field] = self._header(archive, f"{stored}.npy", field)
        declared = sum(header.declared_bytes for header in self.headers.values())
        check_declared_bytes(declared, path.stat().st_size, self.name, "the header")

    def pieces(self, field: str) -> Iterator[Piece]:
        """Yield a field's values in the file's order: by rows, or by columns (Fortran order)."""
        with (
            sentence_for(self.path, f"an .npz archive at {field}", _ERRORS),
            zipfile.ZipFile(self.path) as archive,
            archive.open(f"{self._stored_names[field]}.npy") as stream,
        ):
            shape, by_columns, dtype = _read_header(stream)
            columns = shape[1] if len(shape) == 2 else 1
            if not by_columns or columns == 1:
                for rows in row_slices(shape[0], dtype.itemsize * columns):
                    yield rows, _read(stream, dtype, (rows.stop - rows.start, *shape[1:]))
                return
            for column in range(columns):
                for rows in row_slices(shape[0], dtype.itemsize):
                    yield (rows, column), _read(stream, dtype, (rows.stop - rows.start,))

    def _header(self, archive: zipfile.ZipFile, member: str, field: str) -> Header:
        info = archive.getinfo(member)
        if info.compress_type not in _METHODS:
            raise InputError(
                f"{self.name}: {field} is compressed by method {info.compress_type}; expected deflate"
            )
        with archive.open(member) as stream:
            shape, _, dtype = _read_header(stream)
            header = Header(shape, dtype)
            held = info.file_size - stream.tell()
        if not dtype.hasobject and header.declared_bytes != held:
            raise InputError(
                f"{self.name}: {field} declares shape {shape} ({header.declared_bytes:,} bytes), "
                f"but the archive holds {held:,} bytes of it"
            )
        return header


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
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


def _read(stream: IO[bytes], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    values = np.empty(shape, dtype)
    raw = values.reshape(-1).view(np.uint8)
    filled = 0
    while filled < len(raw):
        block = stream.read(len(raw) - filled)
        if not block:
            raise EOFError("the file ends too early")
        raw[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
        filled += len(block)
    return values
