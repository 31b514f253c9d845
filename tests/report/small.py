"""Small results whose every number is made up: what the tests of the page show."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.mdp.problem import RowCounts
from kmifqe.report.result import Provenance, Question, Result
from kmifqe.trust.checks import Check, Measurements
from kmifqe.trust.checks.log import LogFacts
from kmifqe.trust.checks.overlap import OverlapFacts
from kmifqe.trust.checks.weights import WeightFacts
from kmifqe.trust.interval import ConfidenceInterval
from kmifqe.trust.landscape import Landscape, Points, Surface, write_landscape
from kmifqe.trust.verdict import Verdict

GAMMA = 0.9
SEEDS = 2
ROWS = RowCounts(2000, 2000, 1900, 0, 100, 0, 100)
T = TypeVar("T", bound=msgspec.Struct)


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
            cut_actions=kernel,
            h=np.array([0.3, 0.4], np.float32) if kernel else None,
            metrics=metrics if kernel else None,
        )

    actions = rng.uniform(-1.0, 1.0, (2, points, d)).astype(np.float32)
    actions[1, -1:] = np.nan  # a state whose logged action is not known
    states = Points(normal(points, q), *actions, np.arange(points) < 1, np.linspace(0.1, 0.9, points))
    box = np.ones(d, np.float32)
    return Landscape(states, -box, box, (surface("kmifqe", "tanh"), surface("fqe", "relu")))


VALUES = {"kmifqe": (-3.75, -3.83), "fqe": (-3.5, -3.6), "sr-dice": (-3.9, np.nan)}
COMMAND = ("evaluate", "log.npz", "--policy", "actor.npz", "--out", "runs/a b")
CHECKS = (("density_fit", "bad"), ("effective_rows", "care"), ("drift", "ok"))
FINDINGS = {
    "density_fit": "the behaviour density does not fit",
    "effective_rows": "the weights leave 40 effective rows",
    "drift": "V̂ moved by -0.001",
}


def small_question(**changes: Any) -> Question:
    """Return what was asked of a log with 2,000 rows in 100 episodes."""
    question = Question("log.npz", "actor.npz", "logged", GAMMA, ROWS, ("the log has a note",))
    return msgspec.structs.replace(question, **changes)


def small_result(estimates: tuple[Estimate, ...] | None = None, **changes: Any) -> Result:
    """Return a result of three estimators; one seed of SR-DICE diverged. `changes` are fields of `Result`."""
    estimates = tuple(small_estimate(name) for name in VALUES) if estimates is None else estimates
    interval = ConfidenceInterval(-3.95, -3.62, 0.9, 5.0)
    fields = {
        "question": small_question(),
        "provenance": Provenance("2026-01-02T03:04:05+00:00", {"kmifqe": "0.1.0"}, "cpu", COMMAND),
        "estimates": estimates,
        "intervals": {estimate.estimator: None if estimate.diverged else interval for estimate in estimates},
        "verdicts": {
            estimate.estimator: Verdict("do not use", ("the behaviour density does not fit", "few rows"))
            for estimate in estimates
        },
        "checks": tuple(small_check(name, level) for name, level in CHECKS),
        "references": {"truth": -3.7, "behaviour": -5.0},
    }
    return Result(**(fields | changes))


def small_check(name: str, level: str) -> Check:
    """Return one check, about KMIFQE."""
    return Check(
        name=name,
        estimator="kmifqe",
        level=level,
        value=41.5,
        care=100.0,
        bad=10.0,
        finding=FINDINGS[name],
        threshold="care below 100",
        reason="fewer rows decide little",
        advice="" if level == "ok" else f"mend the {name}",
    )


def small_estimate(name: str, **changes: Any) -> Estimate:
    """Return one estimate of two seeds and twenty records, KMIFQE's with histograms; `changes` are fields."""
    values = np.array(changes.pop("values", None) or VALUES[name])
    steps = np.arange(10, 210, 10)
    kernel = name == "kmifqe"
    infos = {"h": np.tile([0.3, 0.4], (20, 1)), "ess": np.tile([190.0, 210.0], (20, 1))}
    fields = {
        "estimator": name,
        "config": {"hidden": 12, "clip": [0.001, 10.0]} if kernel else {"hidden": 12},
        "gamma": GAMMA,
        "seeds": (0, 1),
        "steps": 200,
        "values": values,
        "recorded_steps": steps,
        "trajectory": values * (1 - 0.5 ** (steps[:, None] / 10)),
        "infos": infos if kernel else {},
        "seconds": 12.0,
        "device": "cpu",
        "bootstrap": True,
        "episodes": 100,
        "measurements": small_measurements(kernel),
    }
    return Estimate(**(fields | changes))


def small_measurements(kernel: bool) -> Measurements:
    """Return measurements of the log and the overlap, and of the weights where there is a kernel."""
    shares = np.exp(-0.5 * np.linspace(-3, 3, 40) ** 2)
    weights = _made(
        WeightFacts,
        clip=[0.001, 10.0],
        factors=1,
        bandwidth_bounds=None,
        weight_edges=np.linspace(-6.0, 4.0, 41).tolist(),
        weight_histogram=(shares / shares.sum()).tolist(),
    )
    overlap = _made(
        OverlapFacts,
        distance_edges=np.linspace(0.0, 6.0, 25).tolist(),
        distance_histogram_logged=[1.0 / 24] * 24,
        distance_histogram_target=[1.0 / 24] * 24,
    )
    return Measurements(
        log=_made(LogFacts, rows=ROWS, episode_longest=20, reward_mean=-1.25),
        uses_density=kernel,
        overlap=overlap if kernel else None,
        weights=weights if kernel else None,
    )


def _made(kind: type[T], **known: Any) -> T:
    """Return facts with the `known` fields; every other number is 1, every other list is empty."""
    fields = msgspec.structs.fields(kind)
    blank = {field.encode_name: [] if "list" in str(field.type) else 1 for field in fields if field.required}
    return kind(**(blank | known))


def small_run(
    folder: Path, landscape: Landscape | None = None, result: Result | None = None, **changes: Any
) -> Path:
    """Write result.json, and landscape.npz where one is given, into a folder that is made; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (result or small_result(**changes)).save(folder)
    if landscape is not None:
        write_landscape(folder / "landscape.npz", landscape)
    return folder
