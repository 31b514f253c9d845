"""Whether Q keeps its own promise from the first states on, near the target's actions.

With δ_t = (1−γ) r_t + γ Q(s_{t+1}, π̃(s_{t+1})) − Q(s_t, a_t), a right Q makes E[g δ_t] = 0 for every weighting g of
logged states and actions. Here g prefers actions near the target's, and Σ_t γᵗ E[g δ_t]/E[g] is what V̂ misses along
the log's episodes. A network that is coarse where episodes begin and where the target acts, because the log is mostly
elsewhere, shows here and nowhere else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kmifqe.estimators.base import Estimate, Estimator
from kmifqe.problem import Problem
from kmifqe.trust.landscape import surface_of
from kmifqe.trust.measure_log import in_time_order
from kmifqe.trust.measure_overlap import Nearby, root_mean_square, whitening

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
