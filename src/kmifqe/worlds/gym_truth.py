"""The value of a policy on a Gymnasium task, by playing whole episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from kmifqe.behavior import GaussianBehavior
from kmifqe.errors import InputError
from kmifqe.mdp.ask import Policy, StochasticPolicy
from kmifqe.worlds.gym_envs import EnvPool, check_policy_fits_task, describe_task

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
    stochastic: bool = False,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Truth:
    """Return the value of a policy at one discount; the arguments are those of `measure_truths`.

    `gamma` is the discount γ, 0 <= gamma < 1, by default 0.99. `env_id`, `policy`, `episodes`, `noise`,
    `uniform_share`, `stochastic`, `seed`, `workers` and `progress` are as there.
    """
    (truth,) = measure_truths(
        env_id,
        policy,
        (gamma,),
        episodes=episodes,
        noise=noise,
        uniform_share=uniform_share,
        stochastic=stochastic,
        seed=seed,
        workers=workers,
        progress=progress,
    )
    return truth


def measure_truths(
    env_id: str,
    policy: Policy,
    gammas: Sequence[float],
    *,
    episodes: int = 1_000,
    noise: float | Sequence[float] = 0.0,
    uniform_share: float | Sequence[float] = 0.0,
    stochastic: bool = False,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> tuple[Truth, ...]:
    """Return the value of a policy at each discount, from the same episodes; by default without `collect`'s noise.

    A time limit is not part of the task's dynamics: an estimator bootstraps past it, so the value plays on
    until γ^t < TOLERANCE. The undiscounted return stops at the task's own limit.

    env_id: a Gymnasium id.
    policy: maps states (n, q) to actions (n, d).
    gammas: the discounts, one or more, each 0 <= γ < 1.
    episodes: how many to play, by default 1,000; episode k starts in the same state for every policy.
    noise: standard deviation of Gaussian noise in half action ranges, one number or one per dimension; default 0.
    uniform_share: share of uniform actions, in [0, 1], one number or one per dimension; default 0.
    stochastic: whether the policy draws its actions by its own `sample`, instead of `noise` and `uniform_share`;
        default False.
    seed: 0 or more, default 0; decides first states and noise.
    workers: processes that step environments, default 1; the result does not depend on it.
    progress: called with the number of episodes that have ended.
    """
    for gamma in gammas:
        if not 0.0 <= gamma < 1.0:
            raise InputError(f"gamma is {gamma}; expected 0 <= gamma < 1")
    task = describe_task(env_id)
    check_policy_fits_task(policy, task)
    act: Callable[[np.ndarray], np.ndarray] = policy
    if stochastic:
        draws = cast(StochasticPolicy, policy)

        def act(states: np.ndarray) -> np.ndarray:
            return draws.sample(states, rng, 1)[:, 0]

    elif np.any(noise) or np.any(uniform_share):
        behavior = GaussianBehavior(policy, noise, task.low, task.high, uniform_share)

        def act(states: np.ndarray) -> np.ndarray:
            return behavior.sample(rng, states)

    largest = max(gammas)
    negligible = 1 if largest == 0.0 else math.ceil(math.log(TOLERANCE) / math.log(largest))
    steps = max(task.time_limit or 1, negligible)
    envs = max(1, min(episodes, MOST_ENVS))
    with EnvPool(task, envs, seed=seed, workers=workers, max_episode_steps=steps) as pool:
        rng = np.random.default_rng(seed)  # not before the pool, which refuses a seed that is none
        played = play_episodes(pool, act, episodes, gammas=gammas, progress=progress)
    return tuple(_truth(gamma, number, played, steps) for number, gamma in enumerate(gammas))


def _truth(gamma: float, number: int, played: Episodes, steps: int) -> Truth:
    """Return the truth at the discount of this `number`, from episodes that went on for at most so many `steps`."""
    discounted, discounted_error = mean_and_error(played.discounted[:, number])
    episode_return, return_error = mean_and_error(played.returns)
    return Truth(
        value=(1.0 - gamma) * discounted,
        value_standard_error=(1.0 - gamma) * discounted_error,
        discounted_return=discounted,
        discounted_return_standard_error=discounted_error,
        episode_return=episode_return,
        episode_return_standard_error=return_error,
        length=float(played.lengths.mean()),
        episodes=len(played.returns),
        gamma=gamma,
        steps_played=steps,
        left_out=float(played.discounts_left[:, number].mean()),
    )


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error, nan where a single value shows no spread."""
    n = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return float(values.mean()), error


@dataclass(frozen=True)
class Episodes:
    """One row per episode, in the order of their numbers."""

    discounted: np.ndarray  # Σ γ^t r_t over the whole episode, a column per discount
    returns: np.ndarray  # Σ r_t up to the task's own time limit
    lengths: np.ndarray  # steps, up to the task's own time limit
    discounts_left: (
        np.ndarray
    )  # γ^steps where the episode was cut, 0 where the environment ended it; likewise


def play_episodes(
    pool: EnvPool,
    act: Callable[[np.ndarray], np.ndarray],
    episodes: int,
    *,
    gammas: Sequence[float] = (1.0,),
    slots: range | None = None,
    first_round: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Episodes:
    """Return the returns of exactly `episodes` episodes.

    How many episodes an environment plays is fixed beforehand: counting those that finish first would favour
    short ones.

    pool: the environments.
    act: maps states (n, q) to actions (n, d).
    gammas: the discounts of `Episodes.discounted`, by default 1 alone.
    slots: the numbers of the environments that play, by default all; the others stay where they are.
    first_round: each environment's episodes are numbered from here, by default 0; the same numbers start in
        the same states.
    progress: called with the number of episodes that have ended.
    """
    if episodes < 1:
        raise InputError(f"episodes is {episodes}; expected 1 or more")
    members = np.arange(pool.n_envs) if slots is None else np.asarray(slots)
    limit = pool.task.time_limit or np.inf
    width = len(gammas)
    result = Episodes(
        discounted=np.zeros((episodes, width)),
        returns=np.zeros(episodes),
        lengths=np.zeros(episodes, np.int64),
        discounts_left=np.zeros((episodes, width)),
    )
    # An environment's next episode has this number in the result; the one after it, `len(members)` more.
    number = np.full(pool.n_envs, episodes)
    number[members] = np.arange(len(members))
    discounted, returns = np.zeros((pool.n_envs, width)), np.zeros(pool.n_envs)
    elapsed, discount = np.zeros(pool.n_envs, np.int64), np.ones((pool.n_envs, width))
    actions = np.zeros((pool.n_envs, pool.task.action_dim), np.float32)
    active = number < episodes
    ended = 0
    pool.reset(active, first_round)
    while active.any():
        actions[active] = act(pool.states[active])
        stepped = pool.step(actions, active)
        discounted[active] += discount[active] * stepped.rewards[active, None]
        counted = active & (elapsed < limit)
        returns[counted] += stepped.rewards[counted]
        elapsed[active] += 1
        discount[active] *= np.asarray(gammas)
        over = active & (stepped.terminated | stepped.truncated)
        if not over.any():
            continue
        rows = number[over]
        result.discounted[rows], result.returns[rows] = discounted[over], returns[over]
        result.lengths[rows] = np.minimum(elapsed[over], limit)
        result.discounts_left[rows] = np.where(stepped.terminated[over, None], 0.0, discount[over])
        number[over] += len(members)
        active = number < episodes
        discounted[over], returns[over], elapsed[over], discount[over] = 0.0, 0.0, 0, 1.0
        ended += len(rows)
        if progress is not None:
            progress(ended)
    return result
