"""Where episodes end, and which row follows which: the only place that decides it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kmifqe.data.fill import row_slices
from kmifqe.errors import InputError

# Of a column's largest size. A compiler that works out one observation twice may round it in two ways; the first
# states of two episodes are further apart.
ROUNDING = 1e-6


@dataclass
class Columns:
    """A flat log in memory, converted and checked field by field, not yet cut into episodes."""

    states: np.ndarray  # (n, q) float32
    actions: np.ndarray  # (n, d) float32
    rewards: np.ndarray  # (n,) float32
    terminated: np.ndarray  # (n,) bool
    cut: np.ndarray  # (n,) bool: the episode ends here for another reason (timeout, new id, end of a file)
    cuts_are_marked: bool  # False: the log has no `timeouts` and no `episode`, so `cut` may miss ends
    next_states: np.ndarray | None = None  # (n, q) float32, ours to write to; a row of NaN: not logged
    log_mu: np.ndarray | None = None
    name: str = "arrays"


@dataclass(frozen=True)
class Alignment:
    """Which rows end an episode, and the successors of those that do not."""

    ends: np.ndarray  # (n,) bool
    next_states: np.ndarray  # (n, q) float32
    next_actions: np.ndarray  # (n, d) float32
    has_next_state: np.ndarray  # (n,) bool
    notes: tuple[str, ...]  # what had to be decided, one sentence each


def align(log: Columns, *, max_episode_steps: int | None = None, check_finite: bool = True) -> Alignment:
    """Cut a flat log into episodes; a row is followed by its episode's next row, never by another's first."""
    notes: list[str] = []
    ends = log.terminated | log.cut
    ends[-1] = True
    next_states, logged = log.next_states, None
    if next_states is not None:
        logged, broken = _compare_with_next_rows(log, next_states, ends, check_finite)
        notes += _unmarked_ends_note(log, broken, int((~ends).sum()))
        ends |= broken
    if max_episode_steps:
        notes += _cut_long_episodes(ends, max_episode_steps)
    inside = ~ends
    if next_states is None or logged is None:
        next_states, logged = _rows_that_follow(log.states, inside), inside
    return Alignment(ends, next_states, _rows_that_follow(log.actions, inside), logged, tuple(notes))


def _rows_that_follow(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return row i + 1 of `values` on every row i that has a successor, and zeros elsewhere."""
    following = np.zeros_like(values)
    for rows in row_slices(len(values) - 1, values.itemsize * values.shape[1]):
        np.copyto(following[rows], values[rows.start + 1 : rows.stop + 1], where=inside[rows, None])
    return following


def _compare_with_next_rows(
    log: Columns, next_states: np.ndarray, ends: np.ndarray, check_finite: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows have a logged next state, and which unmarked rows are not followed by it.

    A next state that was not logged (a row of NaN where an episode ends) is set to zeros.
    """
    n = len(next_states)
    logged, broken = np.ones(n, bool), np.zeros(n, bool)
    sizes: np.ndarray | None = None  # of the columns; a log whose ends are all marked needs none
    for rows in row_slices(n, 3 * next_states.itemsize * next_states.shape[1]):
        block, marked = next_states[rows], ends[rows]
        finite = np.isfinite(block).all(axis=1)
        absent = np.isnan(block).all(axis=1) & (marked | (not log.cuts_are_marked))
        wrong = ~finite & ~absent
        if check_finite and wrong.any():
            raise InputError(
                f"{log.name}: next_observations holds NaN or infinity at row "
                f"{rows.start + int(np.argmax(wrong))}; expected finite numbers, or a row of NaN where an "
                "episode ends and its last state was not logged"
            )
        following = log.states[rows.start + 1 : rows.stop + 1]
        differs = (block[: len(following)] != following).any(axis=1) & ~marked[: len(following)]
        if differs.any():
            sizes = _column_sizes(log.states) if sizes is None else sizes
            with np.errstate(invalid="ignore"):  # a state that is not finite is no rounding of another
                gaps = np.abs(block[: len(following)][differs] - following[differs])
            differs[differs] = ~(gaps <= ROUNDING * sizes).all(axis=1)
        if not check_finite:  # a broken state says nothing about where its episode began
            differs &= np.isfinite(following).all(axis=1)
        broken[rows][: len(following)] = differs & (finite | absent)[: len(following)]
        logged[rows] = ~absent
        block[absent] = 0.0
    return logged, broken


def _column_sizes(states: np.ndarray) -> np.ndarray:
    """Return the largest finite size in each column."""
    sizes = np.zeros(states.shape[1], states.dtype)
    for rows in row_slices(len(states), 2 * states.itemsize * states.shape[1]):
        block = np.abs(states[rows])
        np.maximum(sizes, np.max(block, axis=0, initial=0.0, where=np.isfinite(block)), out=sizes)
    return sizes


def _unmarked_ends_note(log: Columns, broken: np.ndarray, unmarked: int) -> list[str]:
    count = int(broken.sum())
    if count == 0:
        return []
    if count > unmarked / 2:
        raise InputError(
            f"{log.name}: next_observations differs from the following row's observations in {count:,} of "
            f"{unmarked:,} rows inside episodes, first at row {int(np.argmax(broken))}; expected rows in "
            "time order (if they are, drop next_observations)"
        )
    if not log.cuts_are_marked:
        return [
            f"timeouts is missing; {count:,} episode ends were found where next_observations leaves the log"
        ]
    return [
        f"{count:,} episode ends were not marked: the following row does not begin at next_observations there"
    ]


def _cut_long_episodes(ends: np.ndarray, max_episode_steps: int) -> list[str]:
    last_rows = np.flatnonzero(ends)
    first_rows = np.concatenate(([0], last_rows[:-1] + 1))
    long = last_rows - first_rows + 1 > max_episode_steps
    for first, last in zip(first_rows[long], last_rows[long]):
        ends[first + max_episode_steps - 1 : last : max_episode_steps] = True
    added = int(ends.sum()) - len(last_rows)
    return [f"{added:,} episodes were cut after max_episode_steps = {max_episode_steps:,}"] if added else []
