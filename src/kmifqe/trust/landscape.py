"""What an estimator's final state says of Q around the target's action, at logged states worth a look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate, Estimator, action_scale
from kmifqe.estimators.fqe import FQEState
from kmifqe.estimators.kmifqe import KMIFQEState
from kmifqe.maths.metric import optimal_metric
from kmifqe.maths.mlp import QParams, action_hessian
from kmifqe.problem import Problem
from kmifqe.trust.landscape_file import Landscape, Points, Surface, read_landscape, write_landscape

FIRST_RANKS = (0.1, 0.5, 0.9)  # of first states, by their value: a poor start, a usual one, a good one
LOGGED_RANKS = (0.02, 0.25, 0.5, 0.75, 0.98)  # of states inside episodes
LOOKED_AT = 5_000  # states are ranked among this many, evenly spaced over the log
KEPT_SEEDS = 3  # a network of the paper's size takes 0.3 MB


def keep_landscape(path: Path, estimator: Estimator, estimate: Estimate, problem: Problem) -> bool:
    """Add an estimator's Q to the landscape at `path`, made if missing; return whether there was one to add.

    All estimators of a file are shown at the same states, those the first of them chose. SR-DICE learns no Q, and
    an estimate that was read back from an earlier process has no final state: nothing is written then.
    """
    surface = surface_of(estimator, estimate, problem)
    if surface is None:
        return False
    landscape = _landscape_so_far(path, problem) or Landscape(
        choose_points(surface, problem), np.asarray(problem.action_low), np.asarray(problem.action_high), ()
    )
    surface = with_metrics(surface, estimator, estimate, landscape.points)
    others = tuple(other for other in landscape.surfaces if other.estimator != surface.estimator)
    write_landscape(path, replace(landscape, surfaces=(*others, surface)))
    return True


def surface_of(estimator: Estimator, estimate: Estimate, problem: Problem) -> Surface | None:
    """Return the Q networks of the first seeds that have a finite value, or None where there are none."""
    state = estimate.final_state
    kept = np.flatnonzero(np.isfinite(estimate.values))[:KEPT_SEEDS]
    if not isinstance(state, (KMIFQEState, FQEState)) or not len(kept):
        return None
    shift, scale = _input_units(problem)
    unit = np.asarray(state.reward_scale)[kept]
    if isinstance(state, KMIFQEState):
        p = state.params
        layers = [(p.w1, p.b1), (p.w2, p.b2), (p.w3[..., None], p.b3[..., None])]
    else:
        layers = state.params
        unit = unit * (1.0 - float(problem.gamma))
        if estimator.config.inputs == "raw":
            shift, scale = np.zeros_like(shift), np.asarray(state.input_scale)[0]
    return Surface(
        estimator=estimate.estimator,
        hidden="tanh" if isinstance(state, KMIFQEState) else "relu",
        seeds=np.asarray(estimate.seeds)[kept],
        values=estimate.values[kept],
        weights=tuple(np.asarray(w)[kept] for w, _ in layers),
        biases=tuple(np.asarray(b)[kept] for _, b in layers),
        shift=shift,
        scale=scale,
        unit=unit,
        h=np.asarray(state.h)[kept] if isinstance(state, KMIFQEState) else None,
    )


def with_metrics(surface: Surface, estimator: Estimator, estimate: Estimate, points: Points) -> Surface:
    """Return the surface with the metric A*(s) that its own Hessian gives at every point, for a kernel's."""
    if surface.h is None:
        return surface
    kept = np.isin(np.asarray(estimate.seeds), surface.seeds)
    d = points.targets.shape[1]
    if estimator.config.metric == "identity":
        metrics: Any = np.broadcast_to(np.eye(d, dtype=np.float32), (len(surface.seeds), len(points), d, d))
    else:
        x = (np.concatenate([points.states, points.targets], axis=1) - surface.shift) / surface.scale
        params = jax.tree.map(lambda part: part[kept], estimate.final_state.params)
        metrics = _metrics(params, jnp.asarray(x, jnp.float32), d, estimator.config.metric_floor)
    return replace(surface, metrics=np.asarray(metrics))


def choose_points(surface: Surface, problem: Problem) -> Points:
    """Return logged states from poor to good: some that begin episodes, some from their middle."""
    n = min(problem.first_states.shape[0], LOOKED_AT)
    episodes = _evenly(problem.first_states.shape[0], n)
    first_states = np.asarray(problem.first_states)[episodes]
    first_targets = np.asarray(problem.first_actions)[episodes]
    chosen, ranks = _at_ranks(surface.q(0, first_states, first_targets), FIRST_RANKS)
    logged = [_first_logged_action(problem, int(episodes[i]), first_states[i]) for i in chosen]
    parts = [
        (first_states[chosen], first_targets[chosen], np.array(logged), np.ones(len(chosen), bool), ranks)
    ]
    if problem.counts.going_on:
        rows = _evenly(problem.counts.going_on, min(problem.counts.going_on, LOOKED_AT))
        states, targets = np.asarray(problem.next_states[rows]), np.asarray(problem.target_actions[rows])
        chosen, ranks = _at_ranks(surface.q(0, states, targets), LOGGED_RANKS)
        logged_actions = np.asarray(problem.next_actions[rows])[chosen]
        parts.append((states[chosen], targets[chosen], logged_actions, np.zeros(len(chosen), bool), ranks))
    return Points(*(np.concatenate(columns) for columns in zip(*parts)))


@jax.jit(static_argnums=(2, 3))
def _metrics(params: QParams, x: jax.Array, action_dim: int, floor: float) -> jax.Array:
    """Return A* of every seed (axis 0 of the parameters) and point."""

    def metric(params: QParams, x: jax.Array) -> jax.Array:
        return optimal_metric(action_hessian(params, x, action_dim), floor)

    return jax.vmap(jax.vmap(metric, (None, 0)), (0, None))(params, x)


def _landscape_so_far(path: Path, problem: Problem) -> Landscape | None:
    """Return the landscape that other estimators of this problem left; one of another problem is replaced."""
    if not path.exists():
        return None
    try:
        landscape = read_landscape(path)
    except InputError:
        return None  # a broken one is replaced by a whole one
    return landscape if _is_of(landscape, problem) else None


def _is_of(landscape: Landscape, problem: Problem) -> bool:
    """Return whether the log has the landscape's first states, and the policy its actions there."""
    points = landscape.points
    found = np.concatenate([points.states, points.targets], axis=1)[points.first]
    known = np.concatenate([np.asarray(problem.first_states), np.asarray(problem.first_actions)], axis=1)
    return found.shape[1] == known.shape[1] and all((known == row).all(axis=1).any() for row in found)


def _input_units(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    middle, half = action_scale(problem)
    shift, scale = (problem.state_mean, middle), (problem.state_std, half)
    return np.concatenate([np.asarray(x) for x in shift]), np.concatenate([np.asarray(x) for x in scale])


def _evenly(among: int, count: int) -> np.ndarray:
    return np.unique(np.linspace(0, among - 1, count).astype(np.int64))


def _at_ranks(values: np.ndarray, ranks: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the values at these ranks, each once, and the ranks."""
    order = np.argsort(values, kind="stable")
    places = np.unique(np.rint(np.array(ranks) * (len(order) - 1)).astype(np.int64))
    return order[places], places / max(len(order) - 1, 1)


def _first_logged_action(problem: Problem, episode: int, state: np.ndarray) -> np.ndarray:
    """Return the action logged at an episode's first state; NaN where its row was not usable."""
    rows = np.flatnonzero(np.asarray(problem.episode) == episode)[:1]
    if len(rows) and np.array_equal(np.asarray(problem.states[rows])[0], state):
        return np.asarray(problem.actions[rows])[0]
    return np.full(problem.action_dim, np.nan, np.float32)
