"""What an Arrow file's packed buffers unpack to, by the lengths they begin with: the reader allocates those."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from kmifqe.data.limits import check_declared_bytes

_MAGIC, _CONTINUES = b"ARROW1", 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # kinds of message
_HEADER_KIND, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of a Message
_BUFFERS, _COMPRESSION = 2, 3  # fields of a RecordBatch
_DATA = 1  # field of a DictionaryBatch
_DICTIONARIES, _BATCHES = 2, 3  # fields of a file's Footer


def check_buffers(path: Path, name: str) -> None:
    """Refuse an Arrow file or stream whose compressed buffers claim to unpack to far more than it holds."""
    declared, stored = 0, path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for message, body in _messages(data):
            declared += _unpacked_bytes(data, message, body)
            check_declared_bytes(declared, stored, name, "the table")


def _messages(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield where each message's table and each message's body begin, in the order the reader takes them from."""
    if data[:6] != _MAGIC:
        at = 0
        while at + 8 <= len(data):
            message, body = _message_at(data, at)
            if message < 0:
                return
            yield message, body
            place = _field(data, message, _BODY_LENGTH)
            at = body + (_number(data, "<q", place) if place else 0)
        return
    length = _number(data, "<i", len(data) - 10)
    footer_start = len(data) - 10 - length
    footer = footer_start + _number(data, "<I", footer_start)
    for kind in (_DICTIONARIES, _BATCHES):
        for block in _vector(data, footer, kind, 24):
            yield _message_at(data, _number(data, "<q", block))


def _message_at(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return where the message's table and its body begin; the table at -1 says that the stream ends here."""
    length = _number(data, "<I", at)
    start = at + 4
    if length == _CONTINUES:
        length, start = _number(data, "<I", start), start + 4
    if length == 0:
        return -1, -1
    return start + _number(data, "<I", start), start + length


def _unpacked_bytes(data: mmap.mmap, message: int, body: int) -> int:
    kind_at, header_at = _field(data, message, _HEADER_KIND), _field(data, message, _HEADER)
    kind = data[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or not header_at:
        return 0
    batch = header_at + _number(data, "<I", header_at)
    if kind == _DICTIONARY_BATCH:
        data_at = _field(data, batch, _DATA)
        if not data_at:
            return 0
        batch = data_at + _number(data, "<I", data_at)
    if not _field(data, batch, _COMPRESSION):
        return 0
    total = 0
    for buffer in _vector(data, batch, _BUFFERS, 16):
        offset, length = _number(data, "<q", buffer), _number(data, "<q", buffer + 8)
        if length > 8:
            total += max(0, _number(data, "<q", body + offset))  # -1: this one is not packed
    return total


def _field(data: mmap.mmap, table: int, number: int) -> int:
    """Return where a flatbuffer table's field lies, or 0 where it has none."""
    vtable = table - _number(data, "<i", table)
    if 4 + 2 * number >= _number(data, "<H", vtable):
        return 0
    offset = _number(data, "<H", vtable + 4 + 2 * number)
    return table + offset if offset else 0


def _vector(data: mmap.mmap, table: int, number: int, size: int) -> Iterator[int]:
    """Yield where each element of a field that is a vector of structs lies."""
    place = _field(data, table, number)
    if place:
        start = place + _number(data, "<I", place)
        count = _number(data, "<I", start)
        if start + 4 + count * size > len(data):
            raise ValueError("a list of buffers lies outside the file")
        yield from range(start + 4, start + 4 + count * size, size)


def _number(data: mmap.mmap, form: str, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(form):
        raise ValueError("an offset lies outside the file")
    return int(struct.unpack_from(form, data, at)[0])
