"""What a page's scripts draw from: numbers only, thinned and rounded to what a screen can show."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from kmifqe.report.html.source import Number, Run, Told, finite
from kmifqe.trust.landscape import Landscape, Points, Surface

MOST_RECORDS = 300  # of a trajectory: more points than a chart has pixels between them
DIGITS = 6  # significant: float32 has no more
SHOWN_SERIES = ("value", "h", "ess", "mean_weight")
HISTOGRAMS = {
    "weights": ("weight_edges", ("weight_histogram",)),
    "overlap": ("distance_edges", ("distance_histogram_logged", "distance_histogram_target")),
}
NETWORK_BYTES = 2_000_000  # of base64, for a whole page: leaves a third of 3 MB to all the rest


def run_payload(run: Run, network_bytes: int = NETWORK_BYTES) -> dict[str, Any]:
    """Return everything the scripts need of one run, as JSON can hold it."""
    surfaces = None if run.landscape is None else landscape_payload(run.landscape, network_bytes)
    return {
        "estimates": [_estimate(told) for told in run.estimates],
        "references": references(run),
        "weights": [found for told in run.estimates if (found := _histogram(told, "weights"))],
        "overlap": next((found for told in run.estimates if (found := _histogram(told, "overlap"))), None),
        "rows": finite((run.record.get("rows") or {}).get("in_sample")),
        "landscape": surfaces,
    }


def references(run: Run) -> list[dict[str, Any]]:
    """Return values that are known otherwise: the truth, and what the log's own controller is worth."""
    truth = run.record.get("truth")
    if not isinstance(truth, dict):
        return []
    behavior, population = (
        found if isinstance(found := truth.get(name), dict) else {} for name in ("behavior", "population")
    )
    logged = finite(truth.get("logged_first_states"))
    known = [
        ("truth", finite(population.get("value")) if logged is None else logged),
        ("behaviour", finite(behavior.get("value"))),
    ]
    return [{"label": label, "value": value} for label, value in known if value is not None]


def landscape_payload(landscape: Landscape, network_bytes: int) -> dict[str, Any]:
    """Return the points, and as many seeds of every estimator's network as fit; `left_out` names what did not."""
    surfaces, left_out = list(landscape.surfaces), []
    seeds = max((len(surface.seeds) for surface in surfaces), default=0)
    while surfaces and _size(surfaces, landscape.points, seeds) > network_bytes:
        if seeds > 1:
            seeds -= 1
        else:
            left_out.append(surfaces.pop().estimator)
    return {
        "points": _points(landscape.points),
        "low": _numbers(landscape.low),
        "high": _numbers(landscape.high),
        "surfaces": [_surface(surface, landscape.points, seeds) for surface in surfaces],
        "left_out": left_out,
    }


def _points(points: Points) -> list[dict[str, Any]]:
    return [
        {
            "state": _numbers(points.states[i]),
            "target": _numbers(points.targets[i]),
            "logged": _numbers(points.logged[i]),
            "first": bool(points.first[i]),
            "rank": _round(float(points.rank[i])),
        }
        for i in range(len(points))
    ]


def _surface(surface: Surface, points: Points, most_seeds: int) -> dict[str, Any]:
    d = points.targets.shape[1]
    kept = range(min(len(surface.seeds), most_seeds))
    return {
        "estimator": surface.estimator,
        "hidden": surface.hidden,
        "sizes": [w.shape[2] for w in surface.weights],
        "shift": _numbers(surface.shift[-d:], None),
        "scale": _numbers(surface.scale[-d:], None),
        "seeds": [
            {
                "seed": int(surface.seeds[i]),
                "value": _round(float(surface.values[i])),
                "unit": float(surface.unit[i]),
                "h": None if surface.h is None else _round(float(surface.h[i])),
                "metrics": surface.metrics is not None,
                "numbers": base64.b64encode(_network(surface, points, i)).decode("ascii"),
            }
            for i in kept
        ],
    }


def _network(surface: Surface, points: Points, seed: int) -> bytes:
    """Return float32s, little end first: the action's rows of the first layer, what each point's state gives that
    layer, the further layers (weights, biases), and the metrics. So a state's width costs the page nothing.
    """
    q = points.states.shape[1]
    first, *further = zip(surface.weights, surface.biases)
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


def _estimate(told: Told) -> dict[str, Any]:
    thin: Any = (
        np.unique(np.linspace(0, len(told.recorded) - 1, MOST_RECORDS).astype(int)) if told.recorded else []
    )
    interval = told.interval
    return {
        "name": told.estimator,
        "value": _round(told.value),
        "values": [_round(value) for value in told.values],
        "seeds": list(told.seeds),
        "interval": None if interval is None else [interval.low, interval.high, interval.level],
        "steps": told.steps,
        "recorded": [told.recorded[i] for i in thin],
        "series": {
            name: [[_round(x) for x in told.series[name][i]] for i in thin]
            for name in SHOWN_SERIES
            if name in told.series
        },
    }


def _histogram(told: Told, name: str) -> dict[str, Any] | None:
    """Return a histogram of the measurements, or None where they have none that fits its edges."""
    edges_name, shares_names = HISTOGRAMS[name]
    edges = _list(told.measurements.get(edges_name))
    shares = [_list(told.measurements.get(each)) for each in shares_names]
    if len(edges) < 2 or any(len(share) != len(edges) - 1 for share in shares):
        return None
    clip = _list(told.config.get("clip"))
    per_dimension = told.config.get("clip_per_dimension") is True
    shown_clip = clip if name == "weights" and len(clip) == 2 and not per_dimension else None
    return {"name": told.estimator, "edges": edges, "shares": shares, "clip": shown_clip}


def _list(found: object) -> list[float]:
    """Return a list of finite numbers; empty where anything else was found."""
    numbers = [finite(x) for x in found] if isinstance(found, list) else []
    return [x for x in numbers if x is not None] if None not in numbers else []


def _numbers(array: np.ndarray, digits: int | None = DIGITS) -> list[Number]:
    return [_round(float(x), digits) for x in array]


def _round(x: Number, digits: int | None = DIGITS) -> Number:
    x = finite(x)
    return x if x is None or digits is None else float(f"{x:.{digits}g}")
