"""Whole episodes of a policy in a pool of environments, and their returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kmifqe.errors import InputError
from kmifqe.worlds.gym_pool import EnvPool

Act = Callable[[np.ndarray], np.ndarray]  # states (n, q) -> actions (n, d)


@dataclass(frozen=True)
class Episodes:
    """One row per episode, in the order of their numbers."""

    discounted: np.ndarray  # Σ γ^t r_t over the whole episode
    returns: np.ndarray  # Σ r_t up to the task's own time limit
    lengths: np.ndarray  # steps, up to the task's own time limit
    discounts_left: np.ndarray  # γ^steps where the episode was cut, 0 where the environment ended it

    def __len__(self) -> int:
        return len(self.returns)


def play_episodes(
    pool: EnvPool,
    act: Act,
    episodes: int,
    *,
    gamma: float = 1.0,
    slots: range | None = None,
    first_round: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Episodes:
    """Return the returns of exactly `episodes` episodes played in `slots` (default: all) of the pool.

    How many episodes a slot plays is fixed beforehand: taking those that finish first would favour short
    ones. `first_round` numbers the slots' episodes from there; the same numbers start in the same states.
    `progress` is told how many episodes have ended.
    """
    if episodes < 1:
        raise InputError(f"{episodes} episodes; expected 1 or more")
    slots = range(pool.n_envs) if slots is None else slots
    members = np.asarray(slots)
    limit = pool.task.time_limit or np.inf
    finished = _Finished(episodes, members)
    discounted, returns = np.zeros(pool.n_envs), np.zeros(pool.n_envs)
    elapsed, discount = np.zeros(pool.n_envs, np.int64), np.ones(pool.n_envs)
    active = np.zeros(pool.n_envs, bool)
    active[members] = finished.quota > 0
    actions = np.zeros((pool.n_envs, pool.task.action_dim), np.float32)
    pool.reset(active, first_round)
    while active.any():
        actions[active] = act(pool.states[active])
        stepped = pool.step(actions, active)
        discounted[active] += discount[active] * stepped.rewards[active]
        counted = active & (elapsed < limit)
        returns[counted] += stepped.rewards[counted]
        elapsed[active] += 1
        discount[active] *= gamma
        over = active & (stepped.terminated | stepped.truncated)
        for slot in np.flatnonzero(over):
            left = 0.0 if stepped.terminated[slot] else float(discount[slot])
            more = finished.add(
                int(slot), discounted[slot], returns[slot], int(min(elapsed[slot], limit)), left
            )
            active[slot] = more
        discounted[over], returns[over], elapsed[over], discount[over] = 0.0, 0.0, 0, 1.0
        if progress is not None and over.any():
            progress(finished.count)
    return finished.result


class _Finished:
    """Results of the episodes that ended, filed under their numbers."""

    def __init__(self, episodes: int, members: np.ndarray) -> None:
        self.quota = episodes // len(members) + (np.arange(len(members)) < episodes % len(members))
        self.count = 0
        self.result = Episodes(
            np.zeros(episodes), np.zeros(episodes), np.zeros(episodes, np.int64), np.zeros(episodes)
        )
        self._place = {int(slot): place for place, slot in enumerate(members)}
        self._played = np.zeros(len(members), np.int64)

    def add(
        self, slot: int, discounted: float, episode_return: float, length: int, discount_left: float
    ) -> bool:
        """File an episode; return whether its slot has more to play."""
        place = self._place[slot]
        number = self._played[place] * len(self._played) + place
        self.result.discounted[number] = discounted
        self.result.returns[number] = episode_return
        self.result.lengths[number] = length
        self.result.discounts_left[number] = discount_left
        self._played[place] += 1
        self.count += 1
        return bool(self._played[place] < self.quota[place])
