"""The value of a policy on a Gymnasium task, by playing it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kmifqe.behavior.gaussian import GaussianBehavior
from kmifqe.errors import InputError
from kmifqe.policies.base import Policy
from kmifqe.worlds.gym_episodes import play_episodes
from kmifqe.worlds.gym_pool import EnvPool
from kmifqe.worlds.gym_task import check_policy_fits_task, describe_task

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
