"""Logged transitions: where episodes end, which row comes after which, validated once."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kmifqe.errors import InputError
from kmifqe.mdp.columns import Columns, columns_from_arrays, row_slices
from kmifqe.mdp.memory import is_large, mapped_empty

# Of a column's largest size. A compiler that works out one observation twice may round it in two ways; the first
# states of two episodes are further apart.
ROUNDING = 1e-6


def _next_rows(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return row i + 1 of `values` on every row i that has a successor, and zeros elsewhere."""
    empty = mapped_empty if is_large(4 * values.nbytes) else np.zeros
    following = empty(values.shape, values.dtype)
    for rows in row_slices(len(values) - 1, values.itemsize * values.shape[1]):
        np.copyto(following[rows], values[rows.start + 1 : rows.stop + 1], where=inside[rows, None])
    return following


def _compare_with_next_rows(
    log: Columns, next_states: np.ndarray, ends: np.ndarray, check_finite: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows have a logged next state, and which unmarked rows lack it on the next row.

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


def _lost_rows(log: Columns, ends: np.ndarray, broken: np.ndarray) -> np.ndarray:
    """Return which broken rows are followed by a lost row of the same episode, not by another episode.

    With episode ids all are. With marked ends a broken row may also be an end that was not marked: those between two
    marked ends precede lost rows if the rows between them, with the lost ones, are no more than an unbroken episode
    has somewhere.
    Where ends are not marked at all, a broken row is how an end is found.
    """
    if log.has_episode_ids or not (log.cuts_are_marked and broken.any()):
        return broken & log.cuts_are_marked
    stretch = np.zeros(len(ends), np.int64)
    np.cumsum(ends[:-1], out=stretch[1:])
    lengths, breaks = np.bincount(stretch), np.bincount(stretch, weights=broken)
    longest = np.max(lengths, initial=0, where=breaks == 0)
    return broken & (lengths + breaks <= longest)[stretch]


def _broken_rows_notes(log: Columns, broken: np.ndarray, lost: np.ndarray, unmarked: int) -> list[str]:
    """Return what is to be said of rows whose next state is not on the next row; refuse a log of many."""
    if int(broken.sum()) > unmarked / 2:
        raise InputError(
            f"{log.name}: next_observations differs from the following row's observations in "
            f"{int(broken.sum()):,} of {unmarked:,} rows inside episodes, first at row {int(np.argmax(broken))}; "
            "expected rows in time order (if they are, drop next_observations)"
        )
    notes, gaps, ends = [], int(lost.sum()), int((broken & ~lost).sum())
    if gaps:
        notes.append(
            f"rows are missing in {gaps:,} places inside episodes: the following row does not begin at "
            "next_observations there; the row before each is not used"
        )
    if ends and not log.cuts_are_marked:
        notes.append(
            f"timeouts is missing; {ends:,} episode ends were found where next_observations leaves the log"
        )
    elif ends:
        notes.append(
            f"{ends:,} episode ends were not marked: the following row does not begin at next_observations there"
        )
    return notes


def _cuts_told_apart(log: Columns, max_episode_steps: int) -> tuple[Columns, str]:
    """Return the log with the ends of episodes of the time limit's length taken for cuts, and a sentence on them."""
    last_rows = np.flatnonzero(log.terminated | log.cut)
    lengths = np.diff(last_rows, prepend=-1)
    limited = last_rows[lengths >= max_episode_steps]
    terminated, cut = log.terminated.copy(), log.cut.copy()
    terminated[limited], cut[limited] = False, True
    said = (
        f"{len(limited):,} of {len(last_rows):,} episodes have the length of the time limit and count as cut there; "
        "the others ended"
    )
    return replace(log, terminated=terminated, cut=cut), said


def _cut_long_episodes(ends: np.ndarray, max_episode_steps: int) -> list[str]:
    last_rows = np.flatnonzero(ends)
    first_rows = np.concatenate(([0], last_rows[:-1] + 1))
    long = last_rows - first_rows + 1 > max_episode_steps
    for first, last in zip(first_rows[long], last_rows[long]):
        ends[first + max_episode_steps - 1 : last : max_episode_steps] = True
    added = int(ends.sum()) - len(last_rows)
    many = "cuts were" if added > 1 else "cut was"
    limit = f"{max_episode_steps:,} steps"
    return [f"{added:,} {many} added where an episode reached the time limit of {limit}"] if added else []


@dataclass(frozen=True)
class Transitions:
    """A log of n steps in time order, episode after episode.

    `terminated` marks rows after which the environment itself ended (never bootstrap past them); `truncated`
    marks the last row of an episode that was merely cut (time limit, end of the log): its value goes on.
    """

    states: np.ndarray  # (n, q) float32
    actions: np.ndarray  # (n, d) float32, as logged
    rewards: np.ndarray  # (n,) float32
    next_states: np.ndarray  # (n, q) float32; zeros where has_next_state is False
    next_actions: np.ndarray  # (n, d) float32; zeros where has_next_action is False
    terminated: np.ndarray  # (n,) bool
    truncated: np.ndarray  # (n,) bool
    has_next_state: np.ndarray  # (n,) bool: s' was logged (in a flat log not on a cut episode's last row)
    has_next_action: np.ndarray  # (n,) bool: a' was logged at s' in the same episode
    episode: np.ndarray  # (n,) int32, 0-based
    log_mu: np.ndarray | None = None  # (n,) or (n, d) float32: logged log-density of `actions`, if any
    name: str = "arrays"
    notes: tuple[str, ...] = ()  # what the reader had to decide (unmarked ends, ...), one sentence each

    @classmethod
    def from_arrays(
        cls,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminals: np.ndarray,
        timeouts: np.ndarray | None = None,
        next_observations: np.ndarray | None = None,
        action_log_probs: np.ndarray | None = None,
        *,
        name: str = "arrays",
    ) -> Transitions:
        """Build from flat arrays in time order with D4RL's field names.

        observations, actions, rewards: (n, q), (n, d) and (n,).
        terminals: (n,) flags, set where the environment ended an episode.
        timeouts: (n,) flags, set where an episode was cut; None by default. The log's last row ends an episode
            too. The row after an end is another episode's first state and never read as a next state.
        next_observations: (n, q), the next state on every row; None by default: the next row's state. A row
            whose next state is not on the next row ends an episode, or rows of its episode were lost after it. A
            row of NaN at an end was not logged.
        action_log_probs: log-densities of `actions` under the behaviour, (n,) or (n, d); None by default.
        name: what messages call the log.
        """
        given = {
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "terminals": terminals,
            "timeouts": timeouts,
            "next_observations": next_observations,
            "action_log_probs": action_log_probs,
        }
        arrays = {field: np.asarray(array) for field, array in given.items() if array is not None}
        return cls.from_columns(columns_from_arrays(arrays, name))

    @classmethod
    def from_columns(
        cls, columns: Columns, *, max_episode_steps: int | None = None, check_finite: bool = True
    ) -> Transitions:
        """Cut a flat log into episodes: a row's successor is its episode's next row, never another's first.

        columns: the flat log; its `next_states`, where given, are changed in place.
        max_episode_steps: cut longer episodes after so many steps; None (the default) and 0 cut none. A new episode
            begins there, unless episode ids say that it goes on. Where the log cannot tell ends from cuts, an episode
            of this length was cut.
        check_finite: refuse next states with NaN or infinity, by default True.
        """
        notes: list[str] = []
        if columns.ends_may_be_cuts and max_episode_steps:
            columns, note = _cuts_told_apart(columns, max_episode_steps)
            notes.append(note)
        ends = columns.terminated | columns.cut
        ends[-1] = True
        lost = np.zeros(len(ends), bool)
        next_states, logged = columns.next_states, None
        if next_states is not None:
            logged, broken = _compare_with_next_rows(columns, next_states, ends, check_finite)
            lost = _lost_rows(columns, ends, broken)
            notes += _broken_rows_notes(columns, broken, lost, int((~ends).sum()))
            ends |= broken & ~lost
        if max_episode_steps:
            pieces = ends.copy()
            notes += _cut_long_episodes(pieces, max_episode_steps)
            if columns.has_episode_ids:  # the pieces are one episode, which begins once
                lost |= pieces & ~ends
            else:  # the environment was reset where a time limit was not marked
                ends = pieces
        if next_states is None or logged is None:
            next_states, logged = _next_rows(columns.states, ~ends), ~ends
        episode = np.zeros(len(ends), np.int32)
        np.cumsum(ends[:-1], out=episode[1:])
        return cls(
            states=columns.states,
            actions=columns.actions,
            rewards=columns.rewards,
            next_states=next_states,
            next_actions=_next_rows(columns.actions, ~(ends | lost)),
            terminated=columns.terminated,
            truncated=ends & ~columns.terminated,
            has_next_state=logged,
            has_next_action=~(ends | lost),
            episode=episode,
            log_mu=columns.log_mu,
            name=columns.name,
            notes=tuple(notes),
        )

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def state_dim(self) -> int:
        """q, the width of a state."""
        return self.states.shape[1]

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return self.actions.shape[1]

    @property
    def ends(self) -> np.ndarray:
        """Which rows end an episode, (n,) bool."""
        return self.terminated | self.truncated

    @property
    def before_lost_rows(self) -> np.ndarray:
        """Which rows are followed by lost rows of the same episode, (n,) bool."""
        return ~self.ends & ~self.has_next_action

    @property
    def first_rows(self) -> np.ndarray:
        """Row numbers at which episodes begin."""
        return np.flatnonzero(np.diff(self.episode, prepend=-1))

    @property
    def n_episodes(self) -> int:
        """How many episodes the log holds."""
        return int(self.episode[-1]) + 1

    def some_episodes(self, rows: int, seed: int = 0) -> Transitions:
        """Return whole episodes, drawn with `seed`, that have at most so many `rows` together, in time order."""
        lengths = np.bincount(self.episode)
        drawn = np.random.default_rng(seed).permutation(self.n_episodes)
        chosen = np.zeros(self.n_episodes, bool)
        chosen[drawn[np.cumsum(lengths[drawn]) <= rows]] = True
        kept = np.flatnonzero(chosen[self.episode])
        whole = {field.name: getattr(self, field.name) for field in fields(self)}
        part: dict[str, Any] = {
            name: column[kept] for name, column in whole.items() if isinstance(column, np.ndarray)
        }
        numbers = np.cumsum(chosen, dtype=np.int32) - 1  # of the episodes that are kept
        part["episode"] = numbers[part["episode"]]
        return replace(self, **part)

    def __repr__(self) -> str:
        return (
            f"Transitions({self.name}: {len(self):,} steps in {self.n_episodes:,} episodes, "
            f"states {self.state_dim}, actions {self.action_dim}, {int(self.terminated.sum()):,} terminated, "
            f"{int(self.truncated.sum()):,} truncated{'' if self.log_mu is None else ', logged densities'})"
        )
