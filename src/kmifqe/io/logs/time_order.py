"""The rows of a log, or of a problem made from it, in the order of time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kmifqe.mdp.transitions import ROUNDING, Transitions

if TYPE_CHECKING:
    from kmifqe.mdp.problem import Problem

LOOKED_AT = 10_000  # rows of a regression: a correlation of 0.05 is then five standard errors
BLOCK = 50  # rows in a row that are looked at together, so that neighbours stay neighbours
UNITS = 20  # episodes: fewer, and blocks of rows take their place as the units of a standard error
BLOCKS = 40  # of them then


@dataclass(frozen=True)
class TimeOrdered:
    """The rows of a log that an estimator can use, episode after episode, each in time order.

    The wide arrays keep their own order: `rows` says where in them each row in time order lies.
    """

    rows: np.ndarray  # (n,) positions in the four wide arrays
    wide_states: np.ndarray  # (·, q) float32
    wide_actions: np.ndarray  # (·, d) float32
    wide_next_states: np.ndarray  # (·, q) float32
    rewards: np.ndarray  # (n,) float32
    has_next_state: np.ndarray  # (n,) bool
    terminated: np.ndarray  # (n,) bool
    is_last: np.ndarray  # (n,) bool: the last row of its episode, ended or cut
    episode: np.ndarray  # (n,) integers, never falling
    episodes: int

    @classmethod
    def of_transitions(cls, t: Transitions) -> TimeOrdered:
        """Return the rows that a `Problem` of the log has."""
        from kmifqe.mdp.problem import row_order  # imports jax, which --help does not wait for

        rows = np.sort(row_order(t)[0])
        return cls._of(t, rows, ~t.has_next_action[rows], t.n_episodes)

    @classmethod
    def of_problem(cls, problem: Problem) -> TimeOrdered:
        """Return the problem's rows in the order in which they were logged."""
        # A stable sort is enough: the rows of one episode are in order already.
        rows = np.argsort(np.asarray(problem.episode), kind="stable")
        return cls._of(problem, rows, rows >= problem.counts.nonterminal, problem.counts.episodes)

    @classmethod
    def _of(
        cls, log: Transitions | Problem, rows: np.ndarray, is_last: np.ndarray, episodes: int
    ) -> TimeOrdered:
        narrow = ("rewards", "has_next_state", "terminated", "episode")
        return cls(
            rows=rows,
            wide_states=np.asarray(log.states),
            wide_actions=np.asarray(log.actions),
            wide_next_states=np.asarray(log.next_states),
            **{name: np.asarray(getattr(log, name))[rows] for name in narrow},
            is_last=is_last,
            episodes=episodes,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def states(self, at: np.ndarray | slice) -> np.ndarray:
        """Return the states of the rows `at`, which count in time order."""
        return np.asarray(self.wide_states[self.rows[at]])

    def actions(self, at: np.ndarray | slice) -> np.ndarray:
        """Return the actions of the rows `at`, which count in time order."""
        return np.asarray(self.wide_actions[self.rows[at]])

    def next_states(self, at: np.ndarray | slice) -> np.ndarray:
        """Return the next states of the rows `at`, which count in time order."""
        return np.asarray(self.wide_next_states[self.rows[at]])

    @cached_property
    def lengths(self) -> np.ndarray:
        """Every episode's length in logged steps; a last row that is not here, its next state unknown, counts."""
        has_last = np.zeros(self.episodes, bool)
        has_last[self.episode[self.is_last]] = True
        return np.bincount(self.episode, minlength=self.episodes) + ~has_last

    @cached_property
    def ended(self) -> np.ndarray:
        """Which episodes terminated."""
        flags = np.zeros(self.episodes, bool)
        flags[self.episode[self.terminated]] = True
        return flags

    @cached_property
    def units(self) -> np.ndarray:
        """What counts as one draw in a standard error: an episode, or a block of rows where episodes are few."""
        if self.episodes >= UNITS:
            return self.episode
        return np.arange(len(self)) * BLOCKS // len(self)

    @cached_property
    def looked_at(self) -> np.ndarray:
        """Up to LOOKED_AT rows, in blocks of neighbours spread evenly over the log."""
        n = len(self)
        if n <= LOOKED_AT:
            return np.arange(n)
        starts = np.linspace(0, n - BLOCK, LOOKED_AT // BLOCK).astype(int)
        return np.unique((starts[:, None] + np.arange(BLOCK)).ravel())

    def lead_to(self, at: np.ndarray) -> np.ndarray:
        """Return which of the rows `at` have their next state on the row before them in the log and episode."""
        before = np.maximum(at - 1, 0)
        same = (at > 0) & (self.episode[before] == self.episode[at]) & self.has_next_state[before]
        states = self.states(at).astype(np.float64)
        gaps = np.abs(self.next_states(before) - states)
        return np.asarray(same & (gaps <= ROUNDING * np.abs(states).max(axis=0, initial=0.0)).all(axis=1))
