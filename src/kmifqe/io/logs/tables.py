"""Parquet and Arrow tables: a field is a list column, a plain column, or columns `observation_0, ...`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.errors import InputError, sentence_for, shown
from kmifqe.io.logs.d4rl import ALIASES, require_fields, resolve_names
from kmifqe.mdp.columns import Header, Piece, row_slices

_BATCH_ROWS = 65_536
_NUMBERED = re.compile(r"(.+?)_(\d+)")


def import_pyarrow(name: str) -> Any:
    """Return pyarrow with its Parquet and IPC parts, or say which extra brings it."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{name}: tables need pyarrow; pip install 'kmifqe[parquet]'") from error
    return pyarrow


class TableFile:
    """A Parquet or Arrow (IPC file or stream) table (a FlatFile).

    `aliases` are the names that its fields may have, by default D4RL's; with None no field is looked for. A null in a
    field of `nullable` is read as NaN, by default where no next state was logged; in another field it is refused.
    """

    def __init__(
        self,
        path: Path,
        *,
        parquet: bool,
        aliases: Mapping[str, tuple[str, ...]] | None = ALIASES,
        nullable: Collection[str] = ("next_observations",),
    ) -> None:
        self.path, self._nullable = path, nullable
        self.name = str(path)
        self._pa = import_pyarrow(self.name)
        self._errors = (
            *(OSError, ValueError, LookupError, TypeError, MemoryError, OverflowError),
            self._pa.ArrowException,
        )
        self._parquet = parquet
        self._expected = "a Parquet table" if parquet else "an Arrow table"
        with sentence_for(path, self._expected, self._errors):
            self._schema = self._read_schema()
            self.names: list[str] = self._schema.names
            if aliases is None:
                return
            self._columns = self._find_columns(aliases)
            self._rows = self._count_rows()
            self.headers = {field: self._header(field, self._rows) for field in self._columns}

    def pieces(self, field: str) -> Iterator[Piece]:
        """Yield a field's rows, a slice of a record batch at a time."""
        columns, where = self._columns[field], f"{self.name}: {field}"
        width = self._width(field)
        with sentence_for(self.path, f"{self._expected} at {field}", self._errors):
            for number, column in enumerate(columns):
                start = 0
                for array in self._arrays(column):
                    if start + len(array) > self._rows:
                        raise InputError(f"{where} has more than the {self._rows:,} rows declared")
                    for part in row_slices(len(array), 8 * max(1, width)):
                        chunk = array.slice(part.start, part.stop - part.start)
                        rows = slice(start + part.start, start + part.stop)
                        values = self._values(chunk, field, width, rows.start)
                        yield (rows if len(columns) == 1 else (rows, number)), values
                    start += len(array)
                if start != self._rows:
                    raise InputError(f"{where} has {start:,} rows; the file declares {self._rows:,}")

    def _read_schema(self) -> Any:
        if self._parquet:
            return self._pa.parquet.read_schema(self.path)
        with self._pa.memory_map(str(self.path)) as source:
            return self._reader(source, None).schema

    def _find_columns(self, aliases: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
        """Return field -> its column names: one, or the numbered ones in order."""
        names = self._schema.names
        if len(set(names)) != len(names):
            raise InputError(f"{self.name}: two columns have the same name")
        numbered: dict[str, dict[int, str]] = {}
        for column in names:
            match = _NUMBERED.fullmatch(column)
            if match and any(match[1] in known for known in aliases.values()):
                same = numbered.setdefault(match[1], {}).setdefault(int(match[2]), column)
                self._refuse_both(same, column)
                self._refuse_both(match[1] if match[1] in names else column, column)
        found = resolve_names({*names, *numbered}, self.name, aliases)
        require_fields(found, names, self.name, aliases)
        columns = {}
        for field, stored in found.items():
            if stored in names:
                columns[field] = [stored]
                continue
            by_number = numbered[stored]
            if sorted(by_number) != list(range(len(by_number))):
                gap = next(i for i in range(len(by_number)) if i not in by_number)
                raise InputError(f"{self.name}: {field} has numbered columns, but no {stored}_{gap}")
            columns[field] = [by_number[i] for i in range(len(by_number))]
        return columns

    def _refuse_both(self, first: str, second: str) -> None:
        """Refuse two columns that name the same numbers of a step: observation_0 and observation_00."""
        if first != second:
            raise InputError(
                f"{self.name}: holds both {shown(first)} and {shown(second)}, which mean the same; keep one"
            )

    def _count_rows(self) -> int:
        if self._parquet:
            return int(self._pa.parquet.read_metadata(self.path).num_rows)
        return sum(len(array) for array in self._arrays(self._columns["rewards"][0]))

    def _header(self, field: str, rows: int) -> Header:
        kinds = [self._schema.field(column).type for column in self._columns[field]]
        is_list = len(kinds) == 1 and _is_list(self._pa, kinds[0])
        values = [kinds[0].value_type] if is_list else kinds
        dtype = np.result_type(*(_numpy_type(self._pa, kind, field, self.name) for kind in values))
        if is_list:
            return Header((rows, self._width(field)), dtype)
        return Header((rows, len(kinds)) if len(kinds) > 1 else (rows,), dtype)

    def _width(self, field: str) -> int:
        """Return how many numbers a row of a single column holds: a list's length, as its first list says."""
        kind = self._schema.field(self._columns[field][0]).type
        if not _is_list(self._pa, kind):
            return 1
        if self._pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for array in self._arrays(self._columns[field][0]):
            lengths = array.value_lengths().drop_null()
            if len(lengths):
                return int(lengths[0].as_py())
        return 0

    def _values(self, array: Any, field: str, width: int, first_row: int) -> np.ndarray:
        absent, where = np.zeros(len(array), bool), f"{self.name}: {field}"
        if array.null_count:
            if field not in self._nullable:
                row = first_row + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
                raise InputError(f"{where} holds {array.null_count:,} nulls, first at row {row}")
            absent = array.is_null().to_numpy(zero_copy_only=False)
        if not _is_list(self._pa, array.type):
            return array.to_numpy(zero_copy_only=False)
        kept = array.drop_null()
        lengths = kept.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != width).any():
            row = first_row + int(np.flatnonzero(~absent)[np.argmax(lengths != width)])
            found = int(lengths[lengths != width][0])
            raise InputError(f"{where} has {found} values at row {row}; expected {width} on every row")
        values = kept.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
        if not absent.any():
            return values
        spread = np.full((len(array), width), np.nan)
        spread[~absent] = values
        return spread

    def _arrays(self, column: str) -> Iterator[Any]:
        """Yield one column, batch after batch, decoding no other."""
        if self._parquet:
            with self._pa.parquet.ParquetFile(self.path, pre_buffer=False) as file:
                for batch in file.iter_batches(_BATCH_ROWS, columns=[column], use_threads=False):
                    yield _validated(batch.column(0))
            return
        with self._pa.memory_map(str(self.path)) as source:
            index = self._schema.get_field_index(column)
            for batch in _batches(self._reader(source, [index])):
                yield _validated(batch.column(0))

    def _reader(self, source: Any, included: list[int] | None) -> Any:
        options = self._pa.ipc.IpcReadOptions(included_fields=included or [], use_threads=False)
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        opener = self._pa.ipc.open_file if is_file else self._pa.ipc.open_stream
        return opener(source, options=options)


def _batches(reader: Any) -> Iterable[Any]:
    if hasattr(reader, "num_record_batches"):
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return reader


def _validated(array: Any) -> Any:
    # Arrow believes the lengths and offsets in a file; a false one would be read beyond the end of memory.
    array.validate(full=True)
    return array


def _is_list(pa: Any, kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _numpy_type(pa: Any, kind: Any, field: str, name: str) -> np.dtype:
    """Return the NumPy type of an Arrow type of numbers or flags; refuse all others."""
    if pa.types.is_boolean(kind):
        return np.dtype(bool)
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
        return np.dtype(f"{letter}{kind.bit_width // 8}")
    raise InputError(f"{name}: {field} has type {kind}; expected numbers")
