"""Q at chosen logged states as plain arrays: what a report explores, and the file that keeps it."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kmifqe.data.atomic import whole_file
from kmifqe.data.limits import sentence_for
from kmifqe.errors import InputError
from kmifqe.policies.archives import read_npz

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
