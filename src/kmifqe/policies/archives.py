"""Zip archives read as data: sizes are checked before anything is allocated, nothing is extracted to disk."""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError

# What the standard library's reader raises on a damaged archive, found by damaging archives at random.
ZIP_ERRORS = (
    *(OSError, ValueError, EOFError, OverflowError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
MEMBER_LIMIT = 512 * 2**20  # bytes, uncompressed: far above any policy, far below a decompression bomb


def shown(text: object) -> str:
    """Return a file's own words fit for one line of a message: printable, and not long."""
    line = "".join(letter if letter.isprintable() else "?" for letter in str(text)[:100])
    return line if len(str(text)) <= 100 else line + "..."


class Archive:
    """The members of one zip file by name; a member name is only ever compared, never used as a path."""

    def __init__(self, source: str | Path | bytes, where: str) -> None:
        self.where = where
        self._budget = MEMBER_LIMIT
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source)
        except ZIP_ERRORS as error:
            raise InputError(f"{where}: not a readable zip archive ({error})") from error
        self.sizes = {info.filename: info.file_size for info in self._zip.infolist()}

    def contents(self) -> str:
        """Return the first members' names, for a message."""
        return ", ".join(shown(member) for member in sorted(self.sizes)[:8]) or "nothing"

    def read(self, member: str) -> bytes:
        """Return a member's bytes; all reads together stay below `MEMBER_LIMIT`."""
        if member not in self.sizes:
            raise InputError(f"{self.where}: member {shown(member)} is missing; found {self.contents()}")
        self._budget -= self.sizes[member]
        if self._budget < 0:
            raise InputError(
                f"{self.where}: member {shown(member)} unpacks to {self.sizes[member]:,} bytes; "
                f"expected at most {MEMBER_LIMIT:,} in all"
            )
        try:
            return self._zip.read(member)
        except ZIP_ERRORS as error:
            raise InputError(f"{self.where}: member {shown(member)} is damaged ({error})") from error


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` by name; object arrays (pickles) are refused unread."""
    archive = Archive(path, str(path))
    return {
        member.removesuffix(".npy"): _parse_npy(
            archive.read(member), f"{path}: {member.removesuffix('.npy')}"
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
    except (ValueError, EOFError, OverflowError) as error:
        raise InputError(f"{where} is not a readable array ({error})") from error
    if dtype.hasobject:
        raise InputError(
            f"{where} holds pickled Python objects; expected plain numbers (it was not unpickled)"
        )
    count = 1
    for size in shape:
        count *= size
    held = len(blob) - stream.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != held:
        raise InputError(f"{where} claims shape {shape} of {dtype}; found {held:,} bytes of data")
    array = np.frombuffer(blob, dtype, count, stream.tell())
    return array.reshape(shape, order="F" if fortran else "C")
