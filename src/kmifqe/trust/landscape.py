"""Q around the target's action at logged states worth a look: chosen, evaluated, kept in a file for the report."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError, sentence_for
from kmifqe.estimators.base import Estimate, Estimator, state_of_seed
from kmifqe.io.archives import read_npz
from kmifqe.io.files import whole_file
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.training import Q, trained_q

LANDSCAPE = "landscape.npz"
SCHEMA = "kmifqe.landscape/2"
ACTIVATIONS = ("relu", "tanh")
FIRST_RANKS = (0.1, 0.5, 0.9)  # of first states, by their value: a poor start, a usual one, a good one
LOGGED_RANKS = (0.02, 0.25, 0.5, 0.75, 0.98)  # of states inside episodes
LOOKED_AT = 5_000  # states are ranked among this many, evenly spaced over the log
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
    """One estimator's Q networks as plain layers, one for each seed that is kept, and the kernel that it learned.

    Q(s, a) is unit · layers(([s, a] − shift)/scale), normalised as V̂ is; `cut_actions` says whether a is cut to the
    action box first.
    """

    estimator: str
    hidden: str  # the activation between two layers, one of ACTIVATIONS
    seeds: np.ndarray  # (seeds,)
    values: np.ndarray  # (seeds,): V̂, by which a reader knows the run again
    weights: tuple[np.ndarray, ...]  # each (seeds, inputs, outputs)
    biases: tuple[np.ndarray, ...]  # each (seeds, outputs)
    shift: np.ndarray  # (q + d,)
    scale: np.ndarray  # (q + d,)
    unit: np.ndarray  # (seeds,)
    cut_actions: bool = False
    h: np.ndarray | None = None  # (seeds,): bandwidth in half action ranges, where there is a kernel
    metrics: np.ndarray | None = None  # (seeds, points, d, d): A in half action ranges, unit determinant


@dataclass(frozen=True)
class Landscape:
    """What the explorer of a report shows: the states, and every estimator's Q there."""

    points: Points
    low: np.ndarray  # (d,): the action box
    high: np.ndarray  # (d,)
    surfaces: tuple[Surface, ...]


def keep_landscape(path: Path, estimator: Estimator, estimate: Estimate, problem: Problem) -> bool:
    """Add an estimator's Q to the landscape at `path`, made if missing; return whether there was one to add.

    `estimator` made the `estimate` of the `problem`. All estimators of a file are shown at the same states, those
    that the first of them chose. An estimator without layers, or an estimate without a final state, is left out.
    """
    networks = trained_q(estimator, estimate, problem)
    if not networks or estimator.network is None:
        return False
    landscape = _landscape_so_far(path, problem)
    if landscape is None:
        points = choose_points(next(iter(networks.values())), problem)
        landscape = Landscape(points, np.asarray(problem.action_low), np.asarray(problem.action_high), ())
    surface = surface_of(estimator, estimate, problem, landscape.points)
    others = tuple(other for other in landscape.surfaces if other.estimator != surface.estimator)
    write_landscape(path, replace(landscape, surfaces=(*others, surface)))
    return True


def surface_of(estimator: Estimator, estimate: Estimate, problem: Problem, points: Points) -> Surface:
    """Return the layers of the networks that `trained_q` evaluates, and the metrics at some points.

    `estimator`, which must offer layers, made the `estimate` of the `problem`; `points` are those of the landscape.
    """
    assert estimator.network is not None
    kept = list(trained_q(estimator, estimate, problem))
    states = [state_of_seed(estimate.final_state, position) for position in kept]
    networks = [estimator.network(state, problem) for state in states]
    one, kernel = networks[0], estimator.kernel
    layers = list(zip(*(network.layers for network in networks)))  # layer -> seed -> (weights, biases)
    return Surface(
        estimator=estimate.estimator,
        hidden=one.activation,
        cut_actions=one.cut_actions,
        seeds=np.asarray(estimate.seeds)[kept],
        values=estimate.values[kept],
        weights=tuple(np.stack([np.asarray(w) for w, _ in seeds]) for seeds in layers),
        biases=tuple(np.stack([np.asarray(b) for _, b in seeds]) for seeds in layers),
        shift=np.asarray(one.shift),
        scale=np.asarray(one.scale),
        unit=np.array([float(network.unit) for network in networks]),
        h=None if kernel is None else np.array([float(kernel.bandwidth(state)) for state in states]),
        metrics=metrics_of(estimator, estimate, problem, points.states, points.targets),
    )


def metrics_of(
    estimator: Estimator, estimate: Estimate, problem: Problem, states: np.ndarray, actions: np.ndarray
) -> np.ndarray | None:
    """Return the metrics (seeds, points, d, d) of the networks that `trained_q` evaluates; None without a kernel.

    `estimator` made the `estimate` of the `problem`; `states` (points, q) and `actions` (points, d) are where.
    """
    if estimator.kernel is None:
        return None
    at = jnp.asarray(states, jnp.float32), jnp.asarray(actions, jnp.float32)
    kept = (state_of_seed(estimate.final_state, i) for i in trained_q(estimator, estimate, problem))
    return np.stack([np.asarray(estimator.kernel.hessians_and_metrics(s, problem, *at)[1]) for s in kept])


def choose_points(q: Q, problem: Problem) -> Points:
    """Return logged states from poor to good, by `q`: some that begin episodes, some from their middle."""
    episodes = _evenly(problem.first_states.shape[0])
    states = np.asarray(problem.first_states)[episodes]
    targets = np.asarray(problem.first_actions)[episodes]
    at, ranks = _at_ranks(q(states, targets), FIRST_RANKS)
    logged = np.array([_first_logged_action(problem, int(episodes[i]), states[i]) for i in at])
    parts = [(states[at], targets[at], logged, np.ones(len(at), bool), ranks)]
    if problem.counts.nonterminal:
        rows = _evenly(problem.counts.nonterminal)
        states, targets = np.asarray(problem.next_states[rows]), np.asarray(problem.target_actions[rows])
        at, ranks = _at_ranks(q(states, targets), LOGGED_RANKS)
        logged = np.asarray(problem.next_actions[rows])[at]
        parts.append((states[at], targets[at], logged, np.zeros(len(at), bool), ranks))
    return Points(*(np.concatenate(columns) for columns in zip(*parts)))


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


def _evenly(among: int) -> np.ndarray:
    return np.unique(np.linspace(0, among - 1, min(among, LOOKED_AT)).astype(np.int64))


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
        cut_actions=bool(of["cut_actions"]),
        **{name: of[name] for name in ("seeds", "values", "shift", "scale", "unit")},
    )


def _check_shapes(landscape: Landscape) -> None:
    """Refuse arrays that do not fit together, or hold anything but numbers."""
    p, (n, q), d = landscape.points, landscape.points.states.shape, len(landscape.low)
    of_points = [(p.targets, (n, d)), (p.logged, (n, d)), (p.first, (n,)), (p.rank, (n,))]
    expected = [*of_points, (landscape.high, (d,))]
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
