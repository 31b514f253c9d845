"""Zip archives read as data: sizes are checked before anything is allocated, nothing is extracted to disk."""

from __future__ import annotations

import io
import struct
import sys
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError, printable

# What the standard library's reader raises on a damaged archive, found by damaging archives at random.
ZIP_ERRORS = (
    *(OSError, ValueError, EOFError, OverflowError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, struct.error, MemoryError),
)
# What NumPy raises on a header that is not one: it is tokenized and read as a Python literal.
HEADER_ERRORS = (
    *(ValueError, EOFError, OverflowError, SyntaxError, RecursionError, MemoryError, TypeError),
    tokenize.TokenError,
)
MEMBER_LIMIT = 512 * 2**20  # bytes, uncompressed: far above any policy, far below a decompression bomb
# Weights hardly compress, and a small archive needs no more than this beside a hundred times its size.
FREE_BYTES, MAX_EXPANSION = 16 * 2**20, 100
# The only methods that NumPy, PyTorch and Stable-Baselines3 use; others expand without bound inside one read.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MOST_DIMENSIONS, MOST_NUMBERS = 32, 2**48  # of an array; far above any policy, far below where integers wrap


def shown(text: object, most: int = 100) -> str:
    """Return a file's own words fit for one line of a message: printable, and not long."""
    whole = " ".join(str(text).split())
    line = printable(whole[:most])
    return line if len(whole) <= most else line + "..."


class Archive:
    """The members of one zip file by name; a member name is only ever compared, never used as a path."""

    def __init__(self, source: str | Path | bytes, where: str) -> None:
        self.where = where
        try:
            packed = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
            self._limit = self._budget = min(MEMBER_LIMIT, FREE_BYTES + MAX_EXPANSION * packed)
            self._zip = zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source)
        except ZIP_ERRORS as error:
            raise InputError(f"{where}: not a readable zip archive ({shown(error)})") from error
        self.sizes = {info.filename: info.file_size for info in self._zip.infolist()}

    def contents(self) -> str:
        """Return the first members' names, for a message."""
        return ", ".join(shown(member) for member in sorted(self.sizes)[:8]) or "nothing"

    def read(self, member: str) -> bytes:
        """Return a member's bytes; all reads together stay below `MEMBER_LIMIT`, and below what the file allows."""
        if member not in self.sizes:
            raise InputError(f"{self.where}: member {shown(member)} is missing; found {self.contents()}")
        self._budget -= self.sizes[member]
        if self._budget < 0:
            raise InputError(
                f"{self.where}: member {shown(member)} unpacks to {self.sizes[member]:,} bytes; "
                f"expected at most {self._limit:,} in all"
            )
        method = self._zip.getinfo(member).compress_type
        if method not in METHODS:
            raise InputError(
                f"{self.where}: member {shown(member)} is compressed by method {method}; expected deflate"
            )
        try:
            return self._zip.read(member)
        except ZIP_ERRORS as error:
            raise InputError(f"{self.where}: member {shown(member)} is damaged ({shown(error)})") from error


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` by name; object arrays (pickles) are refused unread."""
    archive = Archive(path, str(path))
    return {
        member.removesuffix(".npy"): _parse_npy(
            archive.read(member), f"{path}: {shown(member.removesuffix('.npy'))}"
        )
        for member in archive.sizes
        if member.endswith(".npy")
    }


def _parse_npy(blob: bytes, where: str) -> np.ndarray:
    # np.load allocates what the header claims; here the claim is held against the bytes that are there.
    stream = io.BytesIO(blob)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read_header(stream)
    except HEADER_ERRORS as error:
        raise InputError(f"{where} is not a readable array ({shown(error)})") from error
    if dtype.hasobject:
        raise InputError(
            f"{where} holds pickled Python objects; expected plain numbers (it was not unpickled)"
        )
    shape = tuple(int(size) for size in shape)  # NumPy takes True for a size here, and no more later
    if dtype.kind not in "biufSU":
        raise InputError(f"{where} has type {shown(dtype)}; expected numbers or text")
    count = 1
    for size in shape:
        count *= size
    held = len(blob) - stream.tell()
    plausible = min(shape, default=0) >= 0 and len(shape) <= MOST_DIMENSIONS and dtype.itemsize > 0
    if not plausible or count * dtype.itemsize != held:
        raise InputError(
            f"{where} claims shape {shown(shape)} of {shown(dtype)}; found {held:,} bytes of data"
        )
    array = np.frombuffer(blob, dtype, count, stream.tell())
    # NumPy makes Python strings of letters that do not exist, which then break whatever touches them.
    if dtype.kind == "U" and (array.reshape(-1).view(dtype.str[0] + "u4") > sys.maxunicode).any():
        raise InputError(f"{where} holds letters that are none; expected text")
    return array.reshape(shape, order="F" if fortran else "C")
