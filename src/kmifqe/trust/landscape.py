"""Q around the target's action at logged states worth a look: chosen, evaluated, kept in a file."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError, sentence_for
from kmifqe.estimators.base import Estimate, Estimator, action_scale
from kmifqe.estimators.fqe import FQEState
from kmifqe.estimators.kmifqe.algorithm import KMIFQEState
from kmifqe.io.archives import read_npz
from kmifqe.io.files import whole_file
from kmifqe.maths.metric import optimal_metric
from kmifqe.maths.mlp import QParams, action_hessian
from kmifqe.mdp.problem import Problem

LANDSCAPE = "landscape.npz"
SCHEMA = "kmifqe.landscape/1"
ACTIVATIONS = ("relu", "tanh")
_ERRORS = (
    *(OSError, EOFError, ValueError, RuntimeError, KeyError, TypeError, MemoryError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error),
)


@dataclass(frozen=True)
class Points:
    """Logged states at which Q is looked at, spread over the values that the policy meets."""

    states: np.ndarray  # (points, q)
    targets: np.ndarray  # (points, d): π̃(s)
    logged: np.ndarray  # (points, d): the logged action; NaN where the log has none
    first: np.ndarray  # (points,): whether an episode begins here
    rank: np.ndarray  # (points,): share of the states of its kind that are worth less

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True)
class Surface:
    """One estimator's Q networks, one for each seed that is kept, and the kernel that it learned."""

    estimator: str
    hidden: str  # what stands between two layers, one of ACTIVATIONS
    seeds: np.ndarray  # (seeds,)
    values: np.ndarray  # (seeds,): V̂, by which a reader knows the run again
    weights: tuple[np.ndarray, ...]  # each (seeds, inputs, outputs)
    biases: tuple[np.ndarray, ...]  # each (seeds, outputs)
    shift: np.ndarray  # (q + d,): the network is given ([s, a] − shift)/scale
    scale: np.ndarray  # (q + d,)
    unit: np.ndarray  # (seeds,): its output times this is Q, normalised as V̂ is
    h: np.ndarray | None = None  # (seeds,): bandwidth in half action ranges, where there is a kernel
    metrics: np.ndarray | None = None  # (seeds, points, d, d): A in half action ranges, unit determinant

    def q(self, seed: int, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return Q(s, a) of rows, normalised as V̂ is, by the seed at this position."""
        x = (np.concatenate([states, actions], axis=1) - self.shift) / self.scale
        layers = list(zip(self.weights, self.biases))
        for w, b in layers[:-1]:
            x = x @ w[seed] + b[seed]
            x = np.tanh(x) if self.hidden == "tanh" else np.maximum(x, 0.0)
        w, b = layers[-1]
        return (x @ w[seed] + b[seed])[:, 0] * self.unit[seed]


@dataclass(frozen=True)
class Landscape:
    """What the explorer of a report shows: the states, and every estimator's Q there."""

    points: Points
    low: np.ndarray  # (d,): the action box
    high: np.ndarray  # (d,)
    surfaces: tuple[Surface, ...]

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return len(self.low)


def write_landscape(path: Path, landscape: Landscape) -> None:
    """Write the arrays as .npz, whole or not at all."""
    arrays = {f"points.{name}": array for name, array in vars(landscape.points).items()}
    arrays |= {"schema": np.array(SCHEMA), "low": landscape.low, "high": landscape.high}
    arrays["surfaces"] = np.array([surface.estimator for surface in landscape.surfaces], dtype=str)
    for i, surface in enumerate(landscape.surfaces):
        for name, value in vars(surface).items():
            parts = enumerate(value) if name in ("weights", "biases") else [("", value)]
            arrays |= {f"{i}.{name}{j}": np.asarray(part) for j, part in parts if part is not None}
    with whole_file(path) as partial, open(partial, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)  # type: ignore[arg-type]


def read_landscape(path: Path) -> Landscape:
    """Return what `write_landscape` wrote; InputError for anything else."""
    with sentence_for(path, "a Q-landscape", _ERRORS):
        arrays = read_npz(path)
        if str(arrays.get("schema")) != SCHEMA:
            raise InputError(f"{path}: its schema is {arrays.get('schema')!s}; expected {SCHEMA}")
        points = Points(**{name: arrays[f"points.{name}"] for name in Points.__dataclass_fields__})
        surfaces = tuple(_surface(arrays, i) for i in range(len(arrays["surfaces"])))
        landscape = Landscape(points, arrays["low"], arrays["high"], surfaces)
        _check_shapes(landscape)
    return landscape


def _surface(arrays: dict[str, np.ndarray], i: int) -> Surface:
    of = {name.split(".", 1)[1]: array for name, array in arrays.items() if name.startswith(f"{i}.")}
    layers = sum(name.startswith("weights") for name in of)
    return Surface(
        estimator=str(of["estimator"]),
        hidden=str(of["hidden"]),
        weights=tuple(of[f"weights{j}"] for j in range(layers)),
        biases=tuple(of[f"biases{j}"] for j in range(layers)),
        h=of.get("h"),
        metrics=of.get("metrics"),
        **{name: of[name] for name in ("seeds", "values", "shift", "scale", "unit")},
    )


def _check_shapes(landscape: Landscape) -> None:
    """Refuse arrays that do not fit together, or hold anything but numbers."""
    p, (n, q), d = landscape.points, landscape.points.states.shape, landscape.action_dim
    expected = [
        (p.targets, (n, d)),
        (p.logged, (n, d)),
        (p.first, (n,)),
        (p.rank, (n,)),
        (landscape.high, (d,)),
    ]
    for s in landscape.surfaces:
        seeds, width = len(s.seeds), q + d
        expected += [(s.values, (seeds,)), (s.unit, (seeds,)), (s.shift, (width,)), (s.scale, (width,))]
        for w, b in zip(s.weights, s.biases):
            expected += [(w, (seeds, width, w.shape[-1])), (b, (seeds, w.shape[-1]))]
            width = w.shape[-1]
        if width != 1 or s.hidden not in ACTIVATIONS:
            raise ValueError(f"{s.estimator} is no network of one output with {' or '.join(ACTIVATIONS)}")
        if s.metrics is not None and s.h is not None:
            expected += [(s.metrics, (seeds, n, d, d)), (s.h, (seeds,))]
    for array, shape in expected:
        if array.shape != shape or array.dtype.kind not in "bif":
            raise ValueError(f"found {array.dtype} of shape {array.shape}, expected numbers of shape {shape}")


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
