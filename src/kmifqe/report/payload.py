"""The numbers that the page's scripts draw from, thinned and rounded to what a screen can show."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from kmifqe.errors import shown
from kmifqe.estimators.base import Estimate
from kmifqe.report.result import Result
from kmifqe.trust.interval import ConfidenceInterval
from kmifqe.trust.landscape import Landscape, Points, Surface

MOST_RECORDS = 300  # of a trajectory: more points than a chart has pixels between them
DIGITS = 6  # significant: float32 has no more
DRAWN_INFOS = ("h", "ess")  # of an estimate's infos; V̂ is always drawn
NETWORK_BYTES = 2_000_000  # of base64, for a whole page: leaves a third of 3 MB to all the rest


def run_numbers(result: Result, landscape: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return everything that the scripts draw of one run; `landscape` is what `landscape_numbers` returned."""
    estimates = result.estimates
    return {
        "estimates": [
            {**value_row(estimate, result.intervals[estimate.estimator]), **_trajectory(estimate)}
            for estimate in estimates
        ],
        "references": [
            {"label": label, "value": value}
            for label, value in result.references.items()
            if np.isfinite(value)
        ],
        "weights": [found for estimate in estimates if (found := _weights(estimate))],
        "overlap": next((found for estimate in estimates if (found := _overlap(estimate))), None),
        "rows": result.question.rows.in_sample,
        "landscape": landscape,
    }


def value_row(estimate: Estimate, interval: ConfidenceInterval | None) -> dict[str, Any]:
    """Return what the chart of values draws of one estimator: its mean, its interval and its seeds."""
    return {
        "name": estimate.estimator,
        "value": estimate.value,
        "values": _rounded(estimate.values),
        "interval": None if interval is None else (interval.low, interval.high, interval.level),
    }


def landscape_numbers(landscape: Landscape, network_bytes: int) -> dict[str, Any]:
    """Return the points, and as many seeds of every estimator's network as fit into `network_bytes` of base64.

    Where one seed of each is too much, whole estimators are left out from the end; `left_out` names them.
    """
    _refuse_odd(landscape)
    surfaces, left_out = list(landscape.surfaces), []
    seeds = max((len(surface.seeds) for surface in surfaces), default=0)
    while surfaces and _size(surfaces, landscape.points, seeds) > network_bytes:
        if seeds > 1:
            seeds -= 1
        else:
            left_out.append(surfaces.pop().estimator)
    points = landscape.points
    return {
        "points": [
            {
                "state": _rounded(points.states[i]),
                "target": _rounded(points.targets[i]),
                "logged": _rounded(points.logged[i]),
                "first": bool(points.first[i]),
                "rank": float(points.rank[i]),
            }
            for i in range(len(points))
        ],
        "low": _rounded(landscape.low),
        "high": _rounded(landscape.high),
        "surfaces": [
            {
                **_surface(surface, points, seeds),
                "action_box": (landscape.low, landscape.high) if surface.cut_actions else None,
            }
            for surface in surfaces
        ],
        "left_out": left_out,
    }


def _refuse_odd(landscape: Landscape) -> None:
    """Refuse a landscape that no run leaves and no chart can show."""
    points, names = landscape.points, [surface.estimator for surface in landscape.surfaces]
    if 0 in points.targets.shape or not names:
        raise ValueError("it has no states, no action dimensions or no estimators")
    if len(set(names)) < len(names):
        raise ValueError("it has an estimator twice")
    if not (landscape.low < landscape.high).all():
        raise ValueError("the action box is empty or not a number")
    numbers = {"the states": points.states, "the target's actions": points.targets}
    numbers |= {"the action box": np.stack([landscape.low, landscape.high])}
    for surface in landscape.surfaces:
        if not len(surface.seeds) or (surface.metrics is None) != (surface.h is None):
            raise ValueError(
                f"{shown(surface.estimator)} has no seeds, or one of bandwidth and metrics alone"
            )
        parts = {name: getattr(surface, name) for name in ("shift", "scale", "unit")}
        parts |= {f"layer {i}": layer for i, layer in enumerate((*surface.weights, *surface.biases))}
        numbers |= {f"{name} of {shown(surface.estimator)}": part for name, part in parts.items()}
        if (surface.scale == 0).any():
            raise ValueError(f"the scale of {shown(surface.estimator)} is zero")
    for name, array in numbers.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} are not finite")


def _surface(surface: Surface, points: Points, most_seeds: int) -> dict[str, Any]:
    d = points.targets.shape[1]
    return {
        "estimator": surface.estimator,
        "hidden": surface.hidden,
        "sizes": [w.shape[2] for w in surface.weights],
        "shift": surface.shift[-d:],
        "scale": surface.scale[-d:],
        "seeds": [
            {
                "seed": int(surface.seeds[i]),
                "value": float(surface.values[i]),
                "unit": float(surface.unit[i]),
                "h": None if surface.h is None else float(surface.h[i]),
                "metrics": surface.metrics is not None,
                "numbers": base64.b64encode(_network(surface, points, i)).decode("ascii"),
            }
            for i in range(min(len(surface.seeds), most_seeds))
        ],
    }


def _network(surface: Surface, points: Points, seed: int) -> bytes:
    """Return one seed's network as float32s, little end first, for the given points only.

    In this order: the action's rows of the first layer, what each point's state adds to that layer, the further
    layers (weights, then biases), and the metrics. So the width of a state costs the page nothing.
    """
    q = points.states.shape[1]
    first, *further = zip(surface.weights, surface.biases)
    with np.errstate(all="ignore"):  # numbers of a foreign file: what is not finite is drawn as nothing
        state = (points.states - surface.shift[:q]) / surface.scale[:q]
        parts = [first[0][seed][q:], state @ first[0][seed][:q] + first[1][seed]]
        for w, b in further:
            parts += [w[seed], b[seed]]
        if surface.metrics is not None:
            parts.append(surface.metrics[seed])
        return np.concatenate([np.ravel(part) for part in parts]).astype("<f4").tobytes()


def _size(surfaces: Sequence[Surface], points: Points, seeds: int) -> int:
    per_seed = [len(_network(surface, points, 0)) * min(seeds, len(surface.seeds)) for surface in surfaces]
    return sum(per_seed) * 4 // 3


def _trajectory(estimate: Estimate) -> dict[str, Any]:
    records = len(estimate.recorded_steps)
    kept = np.unique(np.linspace(0, records - 1, min(records, MOST_RECORDS)).astype(int))
    drawn = {"value": estimate.trajectory} | {
        name: estimate.infos[name] for name in DRAWN_INFOS if name in estimate.infos
    }
    return {
        "seeds": estimate.seeds,
        "steps": estimate.steps,
        "recorded": estimate.recorded_steps[kept],
        "series": {name: _rounded(series[kept]) for name, series in drawn.items()},
    }


def _weights(estimate: Estimate) -> dict[str, Any] | None:
    """Return the histogram of importance weights and, where one clip holds for a whole weight, the clip."""
    found = estimate.measurements and estimate.measurements.weights
    if not found or not _fits(found.weight_edges, found.weight_histogram):
        return None
    clip = found.clip if found.factors == 1 and None not in found.clip else None
    shares = [found.weight_histogram]
    return {"name": estimate.estimator, "edges": found.weight_edges, "shares": shares, "clip": clip}


def _overlap(estimate: Estimate) -> dict[str, Any] | None:
    """Return the histograms of distances from the logged actions: of logged actions, and of the target's."""
    found = estimate.measurements and estimate.measurements.overlap
    shares = found and [found.distance_histogram_logged, found.distance_histogram_target]
    if not found or not _fits(found.distance_edges, *shares):
        return None
    return {"edges": found.distance_edges, "shares": shares}


def _fits(edges: Sequence[float], *shares: Sequence[float]) -> bool:
    return len(edges) > 1 and all(len(share) == len(edges) - 1 for share in shares)


def _rounded(array: np.ndarray) -> np.ndarray:
    """Return the numbers with as many digits as are worth their bytes."""
    return np.array([float(f"{x:.{DIGITS}g}") for x in np.ravel(array)]).reshape(np.shape(array))
