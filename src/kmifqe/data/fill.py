"""Values in pieces -> arrays, converted and checked piece by piece: no full-size temporary exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kmifqe.data.fields import Piece, Place
from kmifqe.errors import InputError

CHUNK_BYTES = 4 * 2**20
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def row_slices(rows: int, row_bytes: int, multiple: int = 1) -> Iterator[slice]:
    """Yield consecutive slices over `rows` of about 4 MiB each, whole multiples of `multiple` rows."""
    step = max(1, CHUNK_BYTES // max(1, row_bytes) // multiple) * multiple
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def pieces_of(array: np.ndarray) -> Iterator[Piece]:
    """Yield an array in memory as pieces."""
    row_bytes = array.itemsize * int(np.prod(array.shape[1:]))
    for rows in row_slices(len(array), row_bytes):
        yield rows, array[rows]


def fill_numbers(
    target: np.ndarray, pieces: Iterable[Piece], field: str, name: str, *, check_finite: bool = True
) -> None:
    """Write pieces into a float32 array; refuse NaN, infinity and what float32 cannot hold."""
    checked = _checked(pieces, target.size, field, name) if check_finite else pieces
    for place, values in checked:
        with np.errstate(over="ignore"):
            target[place] = values.reshape(target[place].shape)


def fill_flags(target: np.ndarray, pieces: Iterable[Piece], field: str, name: str) -> None:
    """Write pieces into a bool array; refuse values other than 0 and 1."""
    for place, values in pieces:
        flags = values.reshape(target[place].shape)
        if flags.dtype != bool:
            wrong = (flags != 0) & (flags != 1)
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise InputError(
                    f"{name}: {field} holds {flags[row]} at row {_first_row(place) + row}; "
                    "expected true/false flags (0 or 1)"
                )
        target[place] = flags


def mark_new_episodes(ends: np.ndarray, pieces: Iterable[Piece], name: str) -> None:
    """Set `ends` on the last row of every run of one episode id; refuse an id that comes back later."""
    previous: int | None = None
    ids: list[np.ndarray] = []
    for place, values in pieces:
        start, run = _first_row(place), values.reshape(-1)
        changes = np.flatnonzero(np.diff(run)) + 1
        if previous is None or run[0] != previous:
            changes = np.concatenate(([0], changes))
        ids.append(run[changes])
        ends[start + changes[start + changes > 0] - 1] = True
        previous = run[-1]
    seen, counts = np.unique(np.concatenate(ids), return_counts=True)
    if (counts > 1).any():
        raise InputError(
            f"{name}: episode {seen[counts > 1][0]} appears in {counts.max()} separate runs of rows; "
            "expected the rows of an episode together, in time order"
        )


def float32_array(array: np.ndarray, field: str, name: str) -> np.ndarray:
    """Return an array as contiguous float32, checked by pieces; float32 is not copied."""
    if array.dtype == np.float32 and array.flags.c_contiguous:
        for _ in _checked(pieces_of(array), array.size, field, name):
            pass
        return array
    target = np.empty(array.shape, np.float32)
    fill_numbers(target, pieces_of(array), field, name)
    return target


def _checked(pieces: Iterable[Piece], size: int, field: str, name: str) -> Iterator[Piece]:
    """Pass pieces through; refuse values beyond float32 at once, NaN and infinity at the end, counted."""
    bad, first = 0, -1
    for place, values in pieces:
        _check_range(values, _first_row(place), field, name)
        finite = np.isfinite(values)
        if not finite.all():
            row = _first_row(place) + int(np.flatnonzero(~finite.reshape(len(values), -1).all(axis=1))[0])
            first = row if bad == 0 else min(first, row)
            bad += int(finite.size - finite.sum())
        yield place, values
    if bad:
        raise InputError(
            f"{name}: {field} holds NaN or infinity in {bad:,} of {size:,} values, first at row {first}; "
            "expected finite numbers"
        )


def _first_row(place: Place) -> int:
    return place.start if isinstance(place, slice) else place[0].start


def _check_range(values: np.ndarray, first_row: int, field: str, name: str) -> None:
    if values.dtype.kind != "f" or values.dtype.itemsize <= 4:
        return
    beyond = (np.abs(values) > _FLOAT32_MAX) & np.isfinite(values)
    if beyond.any():
        row = int(np.flatnonzero(beyond.reshape(len(values), -1).any(axis=1))[0])
        raise InputError(
            f"{name}: {field} holds {values[beyond].flat[0]:g} at row {first_row + row}, "
            f"beyond float32's range (±{_FLOAT32_MAX:.3g})"
        )
