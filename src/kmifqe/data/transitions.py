"""Logged transitions: validated once, aligned inside episodes only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kmifqe.data.align import Columns, align
from kmifqe.data.gather import columns_from_arrays


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
    has_next_state: (
        np.ndarray
    )  # (n,) bool: s' was logged (not so on the last row of a cut episode in a flat log)
    has_next_action: np.ndarray  # (n,) bool: a' was logged at s' in the same episode
    episode: np.ndarray  # (n,) int32, 0-based
    log_mu: np.ndarray | None = None  # (n,) or (n, d) float32: logged log-density of `actions`, if any
    name: str = "arrays"
    notes: tuple[
        str, ...
    ] = ()  # what the reader had to decide (unmarked episode ends, ...), one sentence each

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

        An episode ends where `terminals` or `timeouts` is set; the last row of the log ends one too. A state
        follows its predecessor only inside an episode: the row after an end is another episode's first state
        and is never read as a next state. `next_observations`, where given, is the next state on every row; a
        row that it shows not to be followed by the next row ends an episode too. A row of NaN in it, where an
        episode ends, says that the last state was not logged.
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
        """Build from a checked flat log by cutting it into episodes."""
        alignment = align(columns, max_episode_steps=max_episode_steps, check_finite=check_finite)
        ends = alignment.ends
        episode = np.zeros(len(ends), np.int32)
        np.cumsum(ends[:-1], out=episode[1:])
        return cls(
            states=columns.states,
            actions=columns.actions,
            rewards=columns.rewards,
            next_states=alignment.next_states,
            next_actions=alignment.next_actions,
            terminated=columns.terminated,
            truncated=ends & ~columns.terminated,
            has_next_state=alignment.has_next_state,
            has_next_action=~ends,
            episode=episode,
            log_mu=columns.log_mu,
            name=columns.name,
            notes=alignment.notes,
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
    def first_rows(self) -> np.ndarray:
        """Row numbers at which episodes begin."""
        return np.flatnonzero(np.diff(self.episode, prepend=-1))

    @property
    def n_episodes(self) -> int:
        """How many episodes the log holds."""
        return int(self.episode[-1]) + 1

    def __repr__(self) -> str:
        return (
            f"Transitions({self.name}: {len(self):,} steps in {self.n_episodes:,} episodes, "
            f"states {self.state_dim}, actions {self.action_dim}, {int(self.terminated.sum()):,} terminated, "
            f"{int(self.truncated.sum()):,} truncated{'' if self.log_mu is None else ', logged densities'})"
        )
