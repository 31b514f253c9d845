"""What the pages of a Parquet file and the buffers of an Arrow file unpack to, by their own headers."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kmifqe.errors import InputError
from kmifqe.io.archives import check_declared_bytes

_ARROW_MAGIC, _CONTINUES = b"ARROW1", 0xFFFFFFFF
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
    if data[:6] != _ARROW_MAGIC:
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


_PARQUET_MAGIC = b"PAR1"
_VALUE_BYTES = 8 + 4  # the widest number, and the two levels that say where lists and nulls are
_DICTIONARY_PAGE = 2
# Field numbers of the format's Thrift structs.
_ROW_GROUPS, _COLUMNS, _OTHER_FILE, _COLUMN = 4, 1, 1, 3
_NUM_VALUES, _PACKED_BYTES, _DATA_AT, _DICTIONARY_AT = 5, 7, 9, 11
_PAGE_KIND, _PAGE_UNPACKED, _PAGE_PACKED, _PAGE_1, _PAGE_2, _PAGE_VALUES = 1, 2, 3, 5, 8, 1
# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_MOST_NESTED, _MOST_VALUES = 16, 1_000_000


def check_pages(path: Path, name: str) -> None:
    """Refuse a file whose pages hold more values than it says elsewhere, or unpack past the limit."""
    declared, stored = 0, path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for column in _columns(data):
            expected = _integer(column, _NUM_VALUES)
            values, unpacked = _chunk_size(data, column, expected)
            if values != expected:
                raise InputError(
                    f"{name}: the pages of a column hold {values:,} values; expected {expected:,}, as the "
                    "file says elsewhere"
                )
            declared += unpacked + values * _VALUE_BYTES
            check_declared_bytes(declared, stored, name, "the table")


def _columns(data: mmap.mmap) -> Iterator[dict[int, Any]]:
    """Yield the metadata of every column of every row group."""
    length = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != _PARQUET_MAGIC or length > len(data) - 12:
        raise ValueError("the file does not end as Parquet does")
    footer = _Thrift(data, len(data) - 8 - length).read_struct()
    for group in _list(footer, _ROW_GROUPS):
        for chunk in _list(group, _COLUMNS):
            if _OTHER_FILE in chunk or not isinstance(chunk.get(_COLUMN), dict):
                raise ValueError("a column lies in another file")
            yield chunk[_COLUMN]


def _chunk_size(data: mmap.mmap, column: dict[int, Any], expected: int) -> tuple[int, int]:
    """Return how many values a column chunk's pages hold, and how many bytes they unpack to."""
    at = _integer(column, _DATA_AT)
    if _DICTIONARY_AT in column:
        at = min(at, _integer(column, _DICTIONARY_AT) or at)
    end = at + _integer(column, _PACKED_BYTES)
    if not 0 < at <= end <= len(data):
        raise ValueError("a column lies outside the file")
    values = unpacked = 0
    while at < end and values < expected:
        reader = _Thrift(data, at)
        header = reader.read_struct()
        packed, size = _integer(header, _PAGE_PACKED), _integer(header, _PAGE_UNPACKED)
        if size < 0 or not 0 <= packed <= end - reader.at:
            raise ValueError("a page has an impossible size")
        page = header.get(_PAGE_1) or header.get(_PAGE_2)
        if _integer(header, _PAGE_KIND) != _DICTIONARY_PAGE and isinstance(page, dict):
            values += max(0, _integer(page, _PAGE_VALUES))
        unpacked += size
        at = reader.at + packed
    return values, unpacked


def _integer(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if not isinstance(value, int):
        raise ValueError("a number is missing")
    return value


def _list(fields: Any, number: int) -> list[Any]:
    value = fields.get(number) if isinstance(fields, dict) else None
    if not isinstance(value, list):
        raise ValueError("a list is missing")
    return value


class _Thrift:
    """Reads structs in Thrift's compact protocol, as field number -> value; `at` is where the next byte lies."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data, self.at = data, at
        self._left = _MOST_VALUES

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the struct that begins here."""
        if depth > _MOST_NESTED:
            raise ValueError("the metadata is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("the metadata holds too many values")
        if kind == _STRUCT:
            return self.read_struct(depth + 1)
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind in (_LIST, _SET):
            return self._values(depth)
        if kind == _DOUBLE:
            return struct.unpack("<d", self._bytes(8))[0]
        return self._byte() if kind in (_BYTE, _TRUE, _FALSE) else self._signed()

    def _values(self, depth: int) -> list[Any]:
        if depth > _MOST_NESTED:
            raise ValueError("the metadata is nested too deeply")
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        return [self._value(head & 15, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _bytes(self, length: int) -> bytes:
        self.at += length
        if self.at > len(self.data):
            raise ValueError("a text lies outside the file")
        return self.data[self.at - length : self.at]

    def _signed(self) -> int:
        raw = self._unsigned()
        return (raw >> 1) ^ -(raw & 1)

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number has no end")
        return value | byte << shift
