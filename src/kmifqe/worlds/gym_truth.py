"""The value of a policy on a Gymnasium task, by playing whole episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kmifqe.behavior.gaussian import GaussianBehavior
from kmifqe.errors import InputError
from kmifqe.mdp.ask import Policy
from kmifqe.worlds.gym_envs import EnvPool, check_policy_fits_task, describe_task

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


TOLERANCE = 1e-5  # the weight γ^t of what comes after the last step played
MOST_ENVS = 64


@dataclass(frozen=True)
class Truth:
    """Means over episodes and their standard errors (nan for a single episode)."""

    value: float  # normalised: (1 − γ) E Σ γ^t r_t, past the task's time limit
    value_standard_error: float
    discounted_return: float  # value / (1 − γ)
    discounted_return_standard_error: float
    episode_return: float  # undiscounted, up to the task's own time limit
    episode_return_standard_error: float
    length: float  # mean steps, up to the task's own time limit
    episodes: int
    gamma: float
    steps_played: int  # the longest an episode may go on
    left_out: float  # mean γ^t at which episodes were cut: what a reward of 1 a step would add to V


def measure_truth(
    env_id: str,
    policy: Policy,
    *,
    episodes: int = 1_000,
    gamma: float = 0.99,
    noise: float | Sequence[float] = 0.0,
    uniform_share: float | Sequence[float] = 0.0,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Truth:
    """Return the value of `policy`, with Gaussian noise and uniform actions as in `collect` if wished.

    A time limit is not part of the task's dynamics: an estimator bootstraps past it, so the value plays on
    until γ^t < TOLERANCE. The undiscounted return stops at the task's own limit. Episode k starts in the same
    state for every policy, whatever `workers`. `progress` is told how many episodes have ended.
    """
    if not 0.0 <= gamma < 1.0:
        raise InputError(f"gamma is {gamma}; expected 0 <= gamma < 1")
    if episodes < 1:
        raise InputError(f"episodes is {episodes}; expected 1 or more")
    task = describe_task(env_id)
    check_policy_fits_task(policy, task)
    act: Callable[[np.ndarray], np.ndarray] = policy
    if np.any(noise) or np.any(uniform_share):
        behavior = GaussianBehavior(policy, noise, task.low, task.high, uniform_share)
        rng = np.random.default_rng(seed)

        def act(states: np.ndarray) -> np.ndarray:
            return behavior.sample(rng, states)

    steps = max(task.time_limit or 1, _steps_until_negligible(gamma))
    envs = min(episodes, MOST_ENVS)
    with EnvPool(task, envs, seed=seed, workers=workers, max_episode_steps=steps) as pool:
        played = play_episodes(pool, act, episodes, gamma=gamma, progress=progress)
    discounted, discounted_error = mean_and_error(played.discounted)
    episode_return, return_error = mean_and_error(played.returns)
    return Truth(
        value=(1.0 - gamma) * discounted,
        value_standard_error=(1.0 - gamma) * discounted_error,
        discounted_return=discounted,
        discounted_return_standard_error=discounted_error,
        episode_return=episode_return,
        episode_return_standard_error=return_error,
        length=float(played.lengths.mean()),
        episodes=episodes,
        gamma=gamma,
        steps_played=steps,
        left_out=float(played.discounts_left.mean()),
    )


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error, nan where a single value shows no spread."""
    n = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return float(values.mean()), error


def _steps_until_negligible(gamma: float) -> int:
    return 1 if gamma == 0.0 else math.ceil(math.log(TOLERANCE) / math.log(gamma))
