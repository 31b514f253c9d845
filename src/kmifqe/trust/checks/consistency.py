"""Whether Q agrees with itself: TD errors on episodes held out, and from the first states on."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.estimators.base import Estimate, Estimator, bootstrapped
from kmifqe.estimators.kmifqe.algorithm import KMIFQEState
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.log import in_time_order
from kmifqe.trust.checks.overlap import Nearby, root_mean_square, whitening
from kmifqe.trust.checks.weights import clipped, log_mu_of, log_ratios
from kmifqe.trust.landscape import surface_of

LOOKED_AT = 20_000  # rows
HELD_OUT = 0.2  # of the episodes, those with the least weights


class _Rows(NamedTuple):
    """Rows looked at."""

    numbers: np.ndarray
    goes_on: np.ndarray  # bool
    episode: np.ndarray


def td_facts(estimator: Estimator, estimate: Estimate, problem: Problem) -> dict[str, Any]:
    """Return root mean squares and the held-out mean of the TD error over 1 − γ, in units of V̂.

    Empty without a bootstrap, and where there is no Q. A mean TD error of e on the states that the target visits
    moves V̂ by e/(1 − γ); the log's states stand in for them.
    """
    surface = surface_of(estimator, estimate, problem) if estimate.bootstrap else None
    if surface is None:
        return {}
    rows = _rows(estimate, problem)
    keys = jnp.stack([jax.random.key(int(seed)) for seed in surface.seeds])
    episode_weights = np.asarray(bootstrapped(problem, keys).episode_weights)
    positions = np.flatnonzero(np.isin(np.asarray(estimate.seeds), surface.seeds))
    found = []
    for kept, position in enumerate(positions):
        errors = _td_errors(partial(surface.q, kept), estimate, problem, rows)
        weights = _weights(estimator, estimate, problem, rows, int(position))
        drawn = episode_weights[kept]
        held_out = (drawn <= np.quantile(drawn, HELD_OUT))[rows.episode]
        if held_out.any() and not held_out.all():
            found.append(_compared(errors, weights, held_out, rows.episode))
    if not found:
        return {}
    means = np.mean(found, axis=0) / (1.0 - float(problem.gamma))
    names = ("td_rms_trained", "td_rms_held_out", "td_mean_held_out", "td_mean_held_out_error")
    return dict(zip(names, means.tolist()))


def _rows(estimate: Estimate, problem: Problem) -> _Rows:
    """Return rows that the estimator learns from: all, or for in-sample learning those it can use."""
    c = problem.counts
    n = c.in_sample if isinstance(estimate.final_state, KMIFQEState) else c.used
    rng = np.random.default_rng(0)
    numbers = np.arange(n) if n <= LOOKED_AT else np.sort(rng.choice(n, LOOKED_AT, replace=False))
    return _Rows(numbers, ~np.asarray(problem.terminated)[numbers], np.asarray(problem.episode)[numbers])


def _td_errors(q: Any, estimate: Estimate, problem: Problem, rows: _Rows) -> np.ndarray:
    """Return (1−γ) r + γ Q(s', a') − Q(s, a), a' the logged action in-sample and the target's elsewhere."""
    in_sample = isinstance(estimate.final_state, KMIFQEState)
    next_actions = problem.next_actions if in_sample else problem.target_actions
    s, a, after, then = (
        np.asarray(field[rows.numbers])
        for field in (problem.states, problem.actions, problem.next_states, next_actions)
    )
    gamma = float(problem.gamma)
    rewards = np.asarray(problem.rewards, np.float64)[rows.numbers]
    return np.asarray((1.0 - gamma) * rewards + gamma * rows.goes_on * q(after, then) - q(s, a))


def _weights(
    estimator: Estimator, estimate: Estimate, problem: Problem, rows: _Rows, seed: int
) -> np.ndarray:
    """Return what training weights the rows by: the clipped importance weights, their mean where terminal; or 1."""
    state = estimate.final_state
    weights = np.ones(len(rows.numbers))
    if isinstance(state, KMIFQEState) and rows.goes_on.any():
        going_on = rows.numbers[rows.goes_on]
        log_mu = log_mu_of(estimator.config, problem, going_on)
        ratios = log_ratios(state, seed, going_on, log_mu, problem.action_dim)
        weights[rows.goes_on] = clipped(ratios, estimator.config.clip)
        weights[~rows.goes_on] = weights[rows.goes_on].mean()
    return weights


def _compared(
    errors: np.ndarray, weights: np.ndarray, held_out: np.ndarray, episode: np.ndarray
) -> list[float]:
    """Return the RMS trained and held out, and the held-out mean with its standard error by episodes."""

    def mean(x: np.ndarray, part: np.ndarray) -> float:
        return float(np.sum(weights[part] * x[part]) / max(float(weights[part].sum()), 1e-300))

    centre = mean(errors, held_out)
    scatter = np.bincount(episode[held_out], weights=(weights * (errors - centre))[held_out])
    error = float(np.sqrt(np.sum(scatter**2)) / max(float(weights[held_out].sum()), 1e-300))
    return [np.sqrt(mean(errors**2, ~held_out)), np.sqrt(mean(errors**2, held_out)), centre, error]


ROWS = 40_000  # looked at, at most
NEGLIGIBLE = 0.01  # a discount at which a TD error no longer matters here
WIDTH = 0.5  # of g, in typical logged distances


class Early(NamedTuple):
    """Rows of whole episodes while their discount matters."""

    rows: np.ndarray
    time: np.ndarray  # steps since the episode began
    episode: np.ndarray
    targets: np.ndarray  # (n, d): π̃(s_t)
    ends: np.ndarray  # bool: the episode terminates here


def start_facts(estimator: Estimator, estimate: Estimate, problem: Problem, near: Nearby) -> dict[str, Any]:
    """Return what V̂ misses along logged episodes, in its own units, and the standard error; empty without a Q."""
    surface = surface_of(estimator, estimate, problem)
    if surface is None:
        return {}
    early, gamma = early_rows(problem), float(problem.gamma)
    s, a, after, target = (
        np.asarray(field[early.rows])
        for field in (problem.states, problem.actions, problem.next_states, problem.target_actions)
    )
    rewards = np.asarray(problem.rewards, np.float64)[early.rows]
    errors = np.mean(
        [
            (1.0 - gamma) * rewards + gamma * ~early.ends * surface.q(k, after, target) - surface.q(k, s, a)
            for k in range(len(surface.seeds))
        ],
        axis=0,
    )
    distance = root_mean_square((a - early.targets) @ whitening(near).T)
    missed, error = discounted_mean(errors, np.exp(-0.5 * (distance / WIDTH) ** 2), early, gamma)
    return {"start_td": missed, "start_td_error": error}


def discounted_mean(errors: np.ndarray, g: np.ndarray, early: Early, gamma: float) -> tuple[float, float]:
    """Return Σ_t γᵗ Σ g δ_t / Σ g over episodes, and its standard error with episodes as units.

    Time t counts as far as episodes get there without terminating. Where they are cut before the discount has
    faded, what was seen stands for the rest: the sum is divided by the share of the discounts that it covers.
    """
    total = np.maximum(np.bincount(early.time, weights=g), 1e-300)
    means = np.bincount(early.time, weights=g * errors) / total
    going_on = 1.0 - np.bincount(early.time, weights=early.ends) / np.bincount(early.time)
    reached = gamma ** np.arange(len(means) + 1) * np.cumprod([1.0, *going_on])
    discounts = reached[:-1] / (1.0 - reached[-1])
    scatter = discounts[early.time] * g * (errors - means[early.time]) / total[early.time]
    by_episode = np.bincount(early.episode, weights=scatter)
    return float(discounts @ means), float(np.sqrt(np.sum(by_episode**2)))


def early_rows(problem: Problem) -> Early:
    """Return the early rows of all episodes, or of evenly chosen ones where they are too many."""
    gamma, (order, episodes, time) = float(problem.gamma), in_time_order(problem)
    early = time <= (np.log(NEGLIGIBLE) / np.log(gamma) if gamma > 0.0 else 0.0)
    every = -(-int(early.sum()) // ROWS)
    kept = np.flatnonzero(early & (episodes % every == 0))
    first = time[kept] == 0
    targets = np.asarray(problem.target_actions[order[np.maximum(kept - 1, 0)]])
    targets = np.where(first[:, None], np.asarray(problem.first_actions)[episodes[kept]], targets)
    ends = np.asarray(problem.terminated)[order[kept]]
    return Early(order[kept], time[kept], episodes[kept], targets, ends)
