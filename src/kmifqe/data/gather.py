"""Arrays or files with the schema's fields -> Columns: allocated once, filled in place and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kmifqe.data.align import Columns
from kmifqe.data.fields import FlatFile, Header
from kmifqe.data.fill import fill_flags, fill_numbers, float32_array, mark_new_episodes, pieces_of
from kmifqe.data.layout import Layout, layout_of
from kmifqe.errors import InputError


def empty_columns(layout: Layout, name: str) -> Columns:
    """Return columns of the right sizes, not yet filled."""
    n, q, d = layout.rows, layout.state_dim, layout.action_dim
    log_mu_shape = {None: None, 0: (n,)}.get(layout.log_mu_dim, (n, d))
    return Columns(
        states=np.empty((n, q), np.float32),
        actions=np.empty((n, d), np.float32),
        rewards=np.empty(n, np.float32),
        terminated=np.zeros(n, bool),
        cut=np.zeros(n, bool),
        cuts_are_marked=bool(layout.optional & {"timeouts", "episode"}),
        next_states=np.empty((n, q), np.float32) if "next_observations" in layout.optional else None,
        log_mu=None if log_mu_shape is None else np.empty(log_mu_shape, np.float32),
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


def columns_from_files(files: Sequence[FlatFile], name: str, *, check_finite: bool = True) -> Columns:
    """Return columns over the rows of all files in order; the last row of each file ends an episode."""
    layouts = [layout_of(file.headers, file.name) for file in files]
    for file, layout in zip(files[1:], layouts[1:]):
        _check_same_layout(layouts[0], files[0].name, layout, file.name)
    columns = empty_columns(replace(layouts[0], rows=sum(layout.rows for layout in layouts)), name)
    start = 0
    for file, layout in zip(files, layouts):
        _fill_from(file, columns, slice(start, start + layout.rows), check_finite)
        start += layout.rows
    return columns


def _fill_from(file: FlatFile, columns: Columns, rows: slice, check_finite: bool) -> None:
    numbers = {
        "observations": columns.states,
        "actions": columns.actions,
        "rewards": columns.rewards,
        "action_log_probs": columns.log_mu,
    }
    for field, target in numbers.items():
        if target is not None:
            fill_numbers(target[rows], file.pieces(field), field, file.name, check_finite=check_finite)
    if columns.next_states is not None:
        # Rows of NaN are legal at episode ends, which are not known yet: align checks them.
        target, pieces = columns.next_states[rows], file.pieces("next_observations")
        fill_numbers(target, pieces, "next_observations", file.name, check_finite=False)
    fill_flags(columns.terminated[rows], file.pieces("terminals"), "terminals", file.name)
    cut = columns.cut[rows]
    if "timeouts" in file.headers:
        fill_flags(cut, file.pieces("timeouts"), "timeouts", file.name)
    if "episode" in file.headers:
        _cut_between_ids(columns.terminated[rows], cut, file)
    cut[-1] = True


def _cut_between_ids(terminated: np.ndarray, cut: np.ndarray, file: FlatFile) -> None:
    """End an episode where the id changes; a flag in the middle of an id contradicts it."""
    ends = np.zeros(len(cut), bool)
    mark_new_episodes(ends, file.pieces("episode"), file.name)
    ends[-1] = True
    for flags, field in ((terminated, "terminals"), (cut, "timeouts")):
        inside = flags & ~ends
        if inside.any():
            raise InputError(
                f"{file.name}: {field} is set at row {int(np.argmax(inside))}, but the next row has the same "
                "episode id; expected it only on an episode's last row"
            )
    cut |= ends


def _check_same_layout(first: Layout, first_name: str, other: Layout, other_name: str) -> None:
    for what, a, b in (
        ("observations' columns", first.state_dim, other.state_dim),
        ("actions' columns", first.action_dim, other.action_dim),
        ("action_log_probs' columns", first.log_mu_dim, other.log_mu_dim),
        ("optional fields", sorted(first.optional), sorted(other.optional)),
    ):
        if a != b:
            raise InputError(
                f"{other_name}: {what}: {b}, but {first_name} has {a}; expected one layout throughout"
            )
