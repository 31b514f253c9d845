"""A log's fields as arrays: their sizes and types, filled in place and checked piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kmifqe.errors import InputError, shown

Place = slice | tuple[slice, int]
Piece = tuple[Place, np.ndarray]  # where the values go (rows, or rows of one column), and the values


@dataclass(frozen=True)
class Header:
    """What a file claims about one field before any of it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def declared_bytes(self) -> int:
        """The memory the field would take as stored (Python integers: a hostile shape cannot overflow)."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= int(length)
        return size


_NUMBERS, _FLAGS, _INTEGERS = "iufb", "biuf", "iu"


@dataclass(frozen=True)
class Layout:
    """n rows of q-wide states and d-wide actions, and which optional fields come with them."""

    rows: int
    state_dim: int
    action_dim: int
    log_mu_dim: int | None  # None: no logged densities; 0: one number a row; d: one a dimension
    optional: frozenset[str]


def layout_of(headers: Mapping[str, Header], name: str) -> Layout:
    """Return the layout of a log whose required fields are present; refuse wrong types, shapes, lengths."""
    for field, header in headers.items():
        _check_type(field, header, name)
    rows = headers["observations"].shape[0] if headers["observations"].shape else 0
    width = {
        field: _width(field, header, name, matrix=field in ("observations", "next_observations", "actions"))
        for field, header in headers.items()
    }
    if rows == 0:
        raise InputError(f"{name}: observations is empty; expected at least one transition")
    for field, header in headers.items():
        if header.shape[0] != rows:
            raise InputError(f"{name}: {field} has {header.shape[0]:,} rows; observations has {rows:,}")
    q, d = width["observations"], width["actions"]
    if width.get("next_observations", q) != q:
        raise InputError(
            f"{name}: next_observations has {width['next_observations']} columns; observations has {q}"
        )
    log_mu_dim = width.get("action_log_probs")
    if log_mu_dim not in (None, 0, d):
        raise InputError(f"{name}: action_log_probs has {log_mu_dim} columns; actions has {d}")
    optional = frozenset(headers) & {"timeouts", "next_observations", "action_log_probs", "episode"}
    return Layout(rows, q, d, log_mu_dim, optional)


def _check_type(field: str, header: Header, name: str) -> None:
    kinds, expected = {
        "terminals": (_FLAGS, "true/false flags"),
        "timeouts": (_FLAGS, "true/false flags"),
        "episode": (_INTEGERS, "integers"),
    }.get(field, (_NUMBERS, "numbers"))
    if header.dtype.kind not in kinds:
        raise InputError(f"{name}: {field} has type {shown(header.dtype)}; expected {expected}")


def _width(field: str, header: Header, name: str, *, matrix: bool) -> int:
    """Return the columns of a field, 0 for a vector; a single column and a vector are the same thing."""
    shape = header.shape
    if matrix:
        if len(shape) not in (1, 2) or 0 in shape[1:]:
            raise InputError(f"{name}: {field} has shape {shape}; expected (steps, dimensions)")
        return shape[1] if len(shape) == 2 else 1
    per_dimension = field == "action_log_probs"
    if len(shape) == 1 or (len(shape) == 2 and (shape[1] == 1 or (per_dimension and shape[1] > 1))):
        return shape[1] if len(shape) == 2 and shape[1] > 1 else 0
    or_per_dimension = ", or (steps, action dimensions)" if per_dimension else ""
    raise InputError(f"{name}: {field} has shape {shape}; expected (steps,){or_per_dimension}")


CHUNK_BYTES = 4 * 2**20
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def row_slices(rows: int, row_bytes: int, multiple: int = 1) -> Iterator[slice]:
    """Yield consecutive slices over `rows` of `row_bytes` each, about 4 MiB a slice, in multiples of `multiple`."""
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
    """Write `pieces` into `target`, float32; refuse what float32 cannot hold, and NaN and infinity.

    `field` and `name`, the file, are for messages; with `check_finite` False, every value passes.
    """
    checked = _checked(pieces, target.size, field, name) if check_finite else pieces
    for place, values in checked:
        with np.errstate(over="ignore"):
            target[place] = values.reshape(target[place].shape)


def fill_flags(target: np.ndarray, pieces: Iterable[Piece], field: str, name: str) -> None:
    """Write `pieces` into `target`, bool; refuse other values than 0 and 1, naming `field` and file, `name`.

    A file may store a bool as any byte. NumPy counts a 2 as true and computes with it as if it were false, so bools
    are looked at as numbers too.
    """
    for place, values in pieces:
        flags = values.reshape(target[place].shape)
        numbers = flags.view(np.uint8) if flags.dtype == bool else flags
        wrong = (numbers != 0) & (numbers != 1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"{name}: {field} holds {numbers[row]} at row {first_row(place) + row}; "
                "expected true/false flags (0 or 1)"
            )
        target[place] = flags


def float32_array(array: np.ndarray, field: str, name: str) -> np.ndarray:
    """Return `array` as contiguous float32; float32 is not copied. Messages name `field` and file, `name`."""
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
        _check_range(values, first_row(place), field, name)
        finite = np.isfinite(values)
        if not finite.all():
            row = first_row(place) + int(np.flatnonzero(~finite.reshape(len(values), -1).all(axis=1))[0])
            first = row if bad == 0 else min(first, row)
            bad += int(finite.size - finite.sum())
        yield place, values
    if bad:
        raise InputError(
            f"{name}: {field} holds NaN or infinity in {bad:,} of {size:,} values, first at row {first}; "
            "expected finite numbers"
        )


def first_row(place: Place) -> int:
    """Return the first row that a piece fills."""
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


@dataclass
class Columns:
    """A flat log in memory, converted and checked field by field, not yet cut into episodes."""

    states: np.ndarray  # (n, q) float32
    actions: np.ndarray  # (n, d) float32
    rewards: np.ndarray  # (n,) float32
    terminated: np.ndarray  # (n,) bool
    cut: np.ndarray  # (n,) bool: the episode ends here for another reason (timeout, new id, end of a file)
    cuts_are_marked: bool  # False: the log has no `timeouts` and no `episode`, so `cut` may miss ends
    has_episode_ids: bool = False  # True: every end is known, because a new id begins after it
    # True: the source sets one flag for both, on every last row; a time limit given by the user tells them apart.
    ends_may_be_cuts: bool = False
    next_states: np.ndarray | None = None  # (n, q) float32, ours to write to; a row of NaN: not logged
    log_mu: np.ndarray | None = None
    name: str = "arrays"


Allocate = Callable[[str, tuple[int, ...], type], np.ndarray]  # of a field's name, shape and type; zeros


def in_memory(field: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Return zeros of this `shape` and `dtype` in memory, whatever the `field`."""
    return np.zeros(shape, dtype)


def empty_columns(layout: Layout, name: str, allocate: Allocate = in_memory) -> Columns:
    """Return columns of the sizes of `layout`, not yet filled, of the log `name`.

    `allocate` makes the arrays, by default in memory.
    """
    n, q, d = layout.rows, layout.state_dim, layout.action_dim
    log_mu_shape = {None: None, 0: (n,)}.get(layout.log_mu_dim, (n, d))
    has_next = "next_observations" in layout.optional
    return Columns(
        states=allocate("states", (n, q), np.float32),
        actions=allocate("actions", (n, d), np.float32),
        rewards=allocate("rewards", (n,), np.float32),
        terminated=allocate("terminated", (n,), np.bool_),
        cut=allocate("cut", (n,), np.bool_),
        cuts_are_marked=bool(layout.optional & {"timeouts", "episode"}),
        has_episode_ids="episode" in layout.optional,
        next_states=allocate("next_states", (n, q), np.float32) if has_next else None,
        log_mu=None if log_mu_shape is None else allocate("log_mu", log_mu_shape, np.float32),
        name=name,
    )


def columns_from_arrays(arrays: Mapping[str, np.ndarray], name: str) -> Columns:
    """Return columns over arrays in memory; float32 arrays are used as they are, not copied."""
    layout = layout_of({field: Header(array.shape, array.dtype) for field, array in arrays.items()}, name)
    n, q, d = layout.rows, layout.state_dim, layout.action_dim
    columns = Columns(
        states=float32_array(arrays["observations"], "observations", name).reshape(n, q),
        actions=float32_array(arrays["actions"], "actions", name).reshape(n, d),
        rewards=float32_array(arrays["rewards"], "rewards", name).reshape(n),
        terminated=np.zeros(n, bool),
        cut=np.zeros(n, bool),
        cuts_are_marked="timeouts" in arrays,
        name=name,
    )
    fill_flags(columns.terminated, pieces_of(arrays["terminals"]), "terminals", name)
    if "timeouts" in arrays:
        fill_flags(columns.cut, pieces_of(arrays["timeouts"]), "timeouts", name)
    if "next_observations" in arrays:
        # Always a copy: rows not logged are zeroed in it, and the caller's array is not ours to change.
        columns.next_states = np.empty((n, q), np.float32)
        pieces = pieces_of(arrays["next_observations"])
        fill_numbers(columns.next_states, pieces, "next_observations", name, check_finite=False)
    if "action_log_probs" in arrays:
        log_mu = float32_array(arrays["action_log_probs"], "action_log_probs", name)
        columns.log_mu = log_mu if layout.log_mu_dim else log_mu.reshape(n)
    return columns
