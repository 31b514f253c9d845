"""The size of a log, checked from headers alone, before any value is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kmifqe.data.fields import Header
from kmifqe.data.limits import shown
from kmifqe.errors import InputError

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
