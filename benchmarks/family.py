"""Error, time and verdict of every estimator on small problems of known value; nothing is asserted.

    python benchmarks/family.py experiments/results/family.json --problems lqr noisy-lqr bandit pendulum

Writes one JSON record with a row for each problem and estimator, after every row, and goes on where the file ends.
Then it prints a Markdown table of the file. An estimator that refuses a problem stands there with its refusal.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kmifqe import InputError, evaluate
from kmifqe.estimators import entries
from kmifqe.io.files import write_file
from kmifqe.mdp import Transitions
from kmifqe.worlds.lqr import LQR
from kmifqe.worlds.stochastic_lqr import stochastic_target

SEEDS = 4
LEFT_OUT = ("kmifqe-paper", "kmifqe-identity", "fqe-paper")  # the paper's settings have tables of their own


class Case(NamedTuple):
    """One problem of known value."""

    log: Transitions
    policy: Any
    behavior: Any
    gamma: float
    truth: float
    steps: int
    stochastic: bool = False


def linear_world() -> LQR:
    """Return the linear-quadratic world that the tests of the estimators share."""
    return LQR(
        F=np.array([[0.8]]),
        B=np.array([[0.5]]),
        noise_cov=np.array([[0.05]]),
        cost=np.diag([0.5, 1.0]),
        gain=np.array([[0.4]]),
        behavior_gain=np.array([[0.2]]),
        behavior_std=np.array([0.6]),
        initial_mean=np.array([0.5]),
        initial_cov=np.array([[0.3]]),
        gamma=0.8,
        action_bound=1.0,
    )


def lqr(folder: Path) -> Case:
    """Return 200 episodes of 25 steps, γ 0.8, a deterministic target."""
    world = linear_world()
    return Case(world.collect(0, 200, 25), world.policy, world.behavior, 0.8, world.value, 1_500)


def noisy_lqr(folder: Path) -> Case:
    """Return the same log, and the same target with normal noise of 0.3."""
    world = linear_world()
    target, truth = stochastic_target(world, 0.3)
    return Case(world.collect(0, 200, 25), target, world.behavior, 0.8, truth, 1_500, stochastic=True)


class BanditTarget:
    """π̃(s) = ½ s."""

    low, high = -np.ones(1, np.float32), np.ones(1, np.float32)
    name = "half the context"

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`."""
        return 0.5 * states


def bandit(folder: Path) -> Case:
    """Return 2,000 contexts with r = 1 − (a − s)² + noise, a ~ N(0, 0.6²); the target is worth 11/12."""
    rng, n = np.random.default_rng(0), 2_000
    states, actions = rng.uniform(-1, 1, (n, 1)), rng.normal(0.0, 0.6, (n, 1))
    rewards = 1.0 - (actions - states)[:, 0] ** 2 + rng.normal(0.0, 0.1, n)
    log = Transitions.from_arrays(states, actions, rewards, np.ones(n, bool), name="bandit")

    class Density:
        def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
            return np.sum(-0.5 * (actions / 0.6) ** 2 - np.log(0.6 * np.sqrt(2 * np.pi)), axis=1)

    return Case(log, BanditTarget(), Density(), 0.0, 11 / 12, 1_500)


def pendulum(folder: Path) -> Case:
    """Return 200 episodes of Pendulum, cut after 50 steps, γ 0.9, with the shipped actors."""
    from kmifqe.experiments.problems_base import Sources
    from kmifqe.experiments.problems_family import PendulumProblem, Shape
    from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors

    shape = Shape("pendulum", 3, 1, 200, 50)
    problem = PendulumProblem(
        gamma=0.9, seed=0, half="choose", shape=shape, width=0.5, uniform_share=0.2, target="good"
    )
    arrays = problem.arrays(Sources(folder))
    good, behavior_mean = load_pendulum_actors()
    behavior = PendulumBehavior(behavior_mean, 0, std=0.5, uniform_share=0.2)
    return Case(arrays.transitions, good, behavior, 0.9, arrays.truth, 2_500)


CASES: dict[str, Callable[[Path], Case]] = {
    "lqr": lqr,
    "noisy-lqr": noisy_lqr,
    "bandit": bandit,
    "pendulum": pendulum,
}


def measured(name: str, case: Case) -> dict[str, Any]:
    """Return what the estimator `name` says of the `case`, and how long it took, compilation included."""
    started = time.perf_counter()
    try:
        result = evaluate(
            case.log,
            case.policy,
            behavior=case.behavior,
            gamma=case.gamma,
            estimators=[name],
            steps=case.steps,
            seeds=SEEDS,
            stochastic=case.stochastic,
        )
    except InputError as refusal:
        return {"estimator": name, "refused": str(refusal)}
    interval = result.interval
    return {
        "estimator": name,
        "value": result.estimate.value,
        "error": result.estimate.value - case.truth,
        "interval": None if interval is None else [interval.low, interval.high],
        "covers": None if interval is None else interval.contains(case.truth),
        "verdict": result.verdict.word,
        "checks": list(result.verdict.checks),
        "seconds": round(time.perf_counter() - started, 1),
    }


def table(record: dict[str, Any]) -> str:
    """Return the record as one Markdown table, a row for each estimator."""
    problems = list(record)
    names = list(dict.fromkeys(row["estimator"] for rows in record.values() for row in rows["rows"]))
    lines = ["| estimator | " + " | ".join(f"{p} (V {record[p]['truth']:.3f})" for p in problems) + " |"]
    lines.append("| --- |" + " --- |" * len(problems))
    for name in names:
        cells = []
        for problem in problems:
            row = next((row for row in record[problem]["rows"] if row["estimator"] == name), None)
            if row is None:
                cells.append("")
            elif "refused" in row:
                cells.append("refused")
            else:
                cells.append(f"{row['error']:+.3f}, {row['seconds']:.0f} s, {row['verdict']}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the problems that are asked for and print the table of all that are in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--estimators", nargs="*", help="by default all but the paper's own settings")
    parser.add_argument("--sources", type=Path, help="keeps measured truths; by default a temporary folder")
    given = parser.parse_args()
    record = json.loads(given.out.read_text()) if given.out.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        for problem in given.problems:
            case = CASES[problem](given.sources or Path(temporary))
            found = record.setdefault(
                problem, {"truth": case.truth, "steps": case.steps, "seeds": SEEDS, "rows": []}
            )
            done = {row["estimator"] for row in found["rows"]}
            names = given.estimators or [entry.name for entry in entries() if entry.name not in LEFT_OUT]
            for name in names:
                if name not in done:
                    found["rows"].append(measured(name, case))
                    write_file(given.out, json.dumps(record, indent=1).encode())
    print(table(record))


if __name__ == "__main__":
    main()
