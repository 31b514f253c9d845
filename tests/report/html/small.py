"""A small run directory whose every number is made up: what the report's tests open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.trust.landscape import Landscape, Points, Surface, write_landscape

GAMMA = 0.9
SEEDS = 2


def small_landscape(action_dim: int = 2, hidden: int = 12, state_dim: int = 3, points: int = 3) -> Landscape:
    """Return random networks of KMIFQE (tanh, with a metric) and FQE (ReLU) at random states."""
    rng = np.random.default_rng(0)
    q, d, width = state_dim, action_dim, state_dim + action_dim

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    def surface(name: str, activation: str) -> Surface:
        sizes = [(width, hidden), (hidden, hidden), (hidden, 1)]
        roots = normal(SEEDS, points, d, d) + 2.0 * np.eye(d, dtype=np.float32)
        metrics = roots @ roots.transpose(0, 1, 3, 2)
        metrics /= np.linalg.det(metrics)[..., None, None] ** (1.0 / d)
        kernel = name == "kmifqe"
        return Surface(
            estimator=name,
            hidden=activation,
            seeds=np.arange(SEEDS),
            values=np.array(VALUES[name]),
            weights=tuple(normal(SEEDS, i, o) / np.float32(np.sqrt(i)) for i, o in sizes),
            biases=tuple(normal(SEEDS, o) for _, o in sizes),
            shift=normal(width),
            scale=np.exp(normal(width)),
            unit=np.full(SEEDS, 0.5, np.float32),
            h=np.array([0.3, 0.4], np.float32) if kernel else None,
            metrics=metrics if kernel else None,
        )

    actions = rng.uniform(-1.0, 1.0, (2, points, d)).astype(np.float32)
    actions[1, -1] = np.nan  # a state whose logged action is not known
    states = Points(normal(points, q), *actions, np.arange(points) < 1, np.linspace(0.1, 0.9, points))
    box = np.ones(d, np.float32)
    return Landscape(states, -box, box, (surface("kmifqe", "tanh"), surface("fqe", "relu")))


VALUES = {"kmifqe": (-3.75, -3.83), "fqe": (-3.5, -3.6), "sr-dice": (-3.9, None)}


def small_record(**changes: Any) -> dict[str, Any]:
    """Return a record of schema kmifqe.result/2 with three estimators; one seed of SR-DICE diverged."""
    record = {
        "schema": "kmifqe.result/2",
        "created": "2026-01-02T03:04:05+00:00",
        "command": ["evaluate", "log.npz", "--policy", "actor.npz", "--out", "runs/a b"],
        "versions": {"kmifqe": "0.1.0", "python": "3.11.0"},
        "device": "cpu",
        "data": "log.npz",
        "policy": "actor.npz",
        "behavior": "logged",
        "gamma": GAMMA,
        "rows": {"logged": 2000, "used": 2000, "in_sample": 1900, "terminated": 0, "episodes": 100},
        "estimates": [small_estimate(name) for name in VALUES],
        "diagnostics": [
            small_check("effective_rows", "care", "the weights leave as much as 40 rows"),
            small_check("density_fit", "bad", "the behaviour density does not fit"),
            small_check("drift", "ok", "V̂ moved by -0.001"),
        ],
        "verdict": {"word": "do not use", "reasons": ["the behaviour density does not fit", "few rows"]},
        "truth": {"logged_first_states": -3.7, "behavior": {"value": -5.0}},
    }
    return record | changes


def small_check(name: str, level: str, line: str) -> dict[str, Any]:
    """Return one diagnostic as a record holds it."""
    why = {"threshold": "care below 100", "reason": "fewer rows decide little", "about": "kmifqe"}
    return {"name": name, "value": 41.5, "level": level, "line": line, **why}


def small_estimate(name: str) -> dict[str, Any]:
    """Return one estimate as a record holds it, with histograms as the measurements have them."""
    values = VALUES[name]
    known = [value for value in values if value is not None]
    steps = list(range(10, 210, 10))
    rows = [[None if v is None else v * (1 - 0.5 ** (k / 10)) for v in values] for k in steps]
    trajectory: dict[str, Any] = {"step": steps, "value": rows}
    measurements: dict[str, Any] = {"reward_mean": -1.25, "episode_longest": 20}
    if name == "kmifqe":
        trajectory |= {"h": [[0.3, 0.4]] * 20, "ess": [[190.0, 210.0]] * 20}
        edges = np.linspace(-6.0, 4.0, 41).tolist()
        shares = np.exp(-0.5 * np.linspace(-3, 3, 40) ** 2)
        measurements |= {"weight_edges": edges, "weight_histogram": (shares / shares.sum()).tolist()}
        measurements["distance_edges"] = np.linspace(0.0, 6.0, 25).tolist()
        for kind in ("logged", "target"):
            measurements[f"distance_histogram_{kind}"] = [1.0 / 24] * 24
    return {
        "estimator": name,
        "config": {"hidden": 12, "clip": [0.001, 10.0]} if name == "kmifqe" else {"hidden": 12},
        "gamma": GAMMA,
        "seeds": [0, 1],
        "steps": 200,
        "value": sum(known) / len(known),
        "spread": 0.05,
        "values": list(values),
        "trajectory": trajectory,
        "interval": {"low": -3.95, "high": -3.62, "level": 0.9} if name != "sr-dice" else None,
        "measurements": measurements,
        "notes": ["V̂ moved by +0.1 over the last quarter"],
        "seconds": 12.0,
        "device": "cpu",
    }


def small_run(folder: Path, landscape: Landscape | None = None, **changes: Any) -> Path:
    """Write result.json, and landscape.npz where one is given, into a folder that is made; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(small_record(**changes)), encoding="utf-8")
    if landscape is not None:
        write_landscape(folder / "landscape.npz", landscape)
    return folder
