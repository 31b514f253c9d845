"""Error, time and verdict of every estimator on problems of known value; nothing is asserted.

    python benchmarks/family.py prepare RECORDS                    # Hopper's log and the truths that are measured
    python benchmarks/family.py run RECORDS --processes 16         # one record a problem, estimator and log
    python benchmarks/family.py table RECORDS --out experiments/results/family.json
    python benchmarks/family.py table experiments/results/family.json    # the tables of docs/evidence/family.md

`run` goes on where the folder ends, so that it can be stopped and given in pieces (`--problems`, `--estimators`).
An estimator that refuses a problem stands there with its refusal.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kmifqe import InputError, evaluate
from kmifqe.behavior import GaussianBehavior
from kmifqe.estimators import Estimator
from kmifqe.estimators.registry import all_entries
from kmifqe.experiments.policies import load_shipped_actors
from kmifqe.experiments.presets import PRESETS
from kmifqe.experiments.problems_base import Sources
from kmifqe.experiments.problems_family import PendulumProblem, Shape
from kmifqe.experiments.problems_gym import GymProblem
from kmifqe.experiments.records import kept
from kmifqe.io.files import write_file
from kmifqe.mdp import Transitions
from kmifqe.worlds.gym_truth import Truth, measure_truth
from kmifqe.worlds.lqr import LQR
from kmifqe.worlds.pendulum import TrueValue, true_value
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors
from kmifqe.worlds.stochastic_lqr import stochastic_target

SEEDS = 4  # networks of every fit
SMALL = ("kmifqe-paper", "kmifqe-identity", "fqe-paper")  # run at the sizes of `reproduce --preset small`
SLOW = ("auto", "mdr", "sr-dice", "kmifqe", "in-sample", "mis", "wdr", "dr")  # begun first, the longest ahead
TRUTH_EPISODES = 64  # of Hopper
NOISE = 0.2  # of the stochastic targets of Pendulum and Hopper, in half action ranges


class Case(NamedTuple):
    """One problem of known value."""

    log: Transitions
    policy: Any
    behavior: Any
    gamma: float
    truth: float
    truth_error: float = 0.0  # its standard error; 0 where it is a closed form
    stochastic: bool = False


class Noisy:
    """The stochastic target a ~ N(policy(s), (noise · half the range)²), whose actions the environment cuts."""

    def __init__(self, policy: Any, low: np.ndarray, high: np.ndarray) -> None:
        self.policy, self.low, self.high = policy, low, high
        self.density = GaussianBehavior(policy, NOISE, low, high)
        self.name = f"{policy.name} with noise"

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the mean action for each row of `states`."""
        return self.policy(states)

    def sample(self, states: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return `n` actions drawn by `rng` for each row of `states`, shape (rows, n, d)."""
        drawn = self.density.sample(rng, np.repeat(states, n, axis=0))
        return drawn.reshape(len(states), n, -1)

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log π(a|s) of `actions` at `states`, shape (rows,)."""
        return self.density.log_prob(states, actions)


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


def lqr(folder: Path, seed: int) -> Case:
    """Return 200 episodes of 25 steps, γ 0.8, a deterministic target."""
    world = linear_world()
    return Case(world.collect(seed, 200, 25), world.policy, world.behavior, 0.8, world.value)


def noisy_lqr(folder: Path, seed: int) -> Case:
    """Return the same log, and the same target with normal noise of 0.3."""
    world = linear_world()
    target, truth = stochastic_target(world, 0.3)
    return Case(world.collect(seed, 200, 25), target, world.behavior, 0.8, truth, stochastic=True)


class BanditTarget:
    """π̃(s) = ½ s."""

    low, high = -np.ones(1, np.float32), np.ones(1, np.float32)
    name = "half the context"

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`."""
        return 0.5 * states


class BanditDensity:
    """a ~ N(0, 0.6²)."""

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,)."""
        return np.sum(-0.5 * (actions / 0.6) ** 2 - np.log(0.6 * np.sqrt(2 * np.pi)), axis=1)


def bandit(folder: Path, seed: int) -> Case:
    """Return 2,000 contexts with r = 1 − (a − s)² + noise, a ~ N(0, 0.6²); the target is worth 11/12."""
    rng, n = np.random.default_rng(seed), 2_000
    states, actions = rng.uniform(-1, 1, (n, 1)), rng.normal(0.0, 0.6, (n, 1))
    rewards = 1.0 - (actions - states)[:, 0] ** 2 + rng.normal(0.0, 0.1, n)
    log = Transitions.from_arrays(states, actions, rewards, np.ones(n, bool), name="bandit")
    return Case(log, BanditTarget(), BanditDensity(), 0.0, 11 / 12)


def pendulum(folder: Path, seed: int) -> Case:
    """Return 200 episodes of Pendulum, cut after 50 steps, γ 0.9, with the shipped actors."""
    problem = PendulumProblem(
        gamma=0.9,
        seed=seed,
        half="choose",
        shape=Shape("pendulum", 3, 1, 200, 50),
        width=0.5,
        uniform_share=0.2,
        target="good",
    )
    arrays = problem.arrays(Sources(folder))
    log, behavior = problem.log()
    return Case(log, load_pendulum_actors()[0], behavior, 0.9, arrays.truth, arrays.truth_error)


def noisy_pendulum(folder: Path, seed: int) -> Case:
    """Return the same log, and the same target with normal noise."""
    case = pendulum(folder, seed)
    judged = PendulumBehavior(case.policy, 0, std=NOISE, uniform_share=0.0)
    settings = {"noise": NOISE, "gamma": case.gamma, "episodes": 20_000}
    truth = kept(
        folder / "truths",
        "noisy-pendulum",
        settings,
        TrueValue,
        lambda: true_value(0, judged, case.gamma, 20_000),
    )
    bound = np.full(1, MAX_TORQUE, np.float32)
    target = Noisy(case.policy, -bound, bound)
    return case._replace(policy=target, truth=truth.value, truth_error=truth.standard_error, stochastic=True)


def _hopper(folder: Path, seed: int, noise: float) -> Case:
    problem = GymProblem(
        task="hopper",
        target="target",
        behavior="behavior",
        noise=0.3,
        transitions=20_000,
        truth_episodes=TRUTH_EPISODES,
        gamma=0.95,
        half="choose",
        seed=1 + seed,
    )
    actors = load_shipped_actors("hopper")
    settings = {"noise": noise, "gamma": problem.gamma, "episodes": TRUTH_EPISODES}
    truth = kept(
        folder / "truths",
        "family-hopper",
        settings,
        Truth,
        lambda: measure_truth(
            "Hopper-v5",
            actors.target,
            episodes=TRUTH_EPISODES,
            gamma=problem.gamma,
            noise=noise,
            seed=1_000,
            workers=os.cpu_count() or 1,
        ),
    )
    log = problem.log(Sources(folder))
    low, high = actors.target.low, actors.target.high
    behavior = GaussianBehavior(actors.behavior, 0.3, low, high)
    target = Noisy(actors.target, low, high) if noise else actors.target
    return Case(
        log, target, behavior, problem.gamma, truth.value, truth.value_standard_error, stochastic=noise > 0
    )


def hopper(folder: Path, seed: int) -> Case:
    """Return 20,000 rows of Hopper: the shipped behaviour with noise of 0.3, the shipped target, γ 0.95."""
    return _hopper(folder, seed, 0.0)


def noisy_hopper(folder: Path, seed: int) -> Case:
    """Return the same log, and the same target with normal noise."""
    return _hopper(folder, seed, NOISE)


CASES: dict[str, Callable[[Path, int], Case]] = {
    "hopper": hopper,
    "noisy-hopper": noisy_hopper,
    "pendulum": pendulum,
    "noisy-pendulum": noisy_pendulum,
    "lqr": lqr,
    "noisy-lqr": noisy_lqr,
    "bandit": bandit,
}
TITLES = {"hopper": "Hopper", "pendulum": "Pendulum", "lqr": "linear-quadratic", "bandit": "bandit"}


@cache
def case_of(problem: str, folder: Path, seed: int) -> Case:
    """Return the case, which a process builds once."""
    return CASES[problem](folder, seed)


def record_path(folder: Path, problem: str, name: str, seed: int) -> Path:
    """Return the file of one record."""
    return folder / "rows" / f"{problem}--{name}--{seed}.json"


def measured(folder: Path, problem: str, name: str, seed: int, steps: int | None) -> str:
    """Keep what the estimator `name` says of a case, and how long it took; return what was found, in words.

    The time is that of the whole call, compilation and checks included.
    """
    case = case_of(problem, folder, seed)
    estimator: str | Estimator = name
    if name in SMALL:
        estimator, of_preset = PRESETS["small"].run_of(name, "pendulum")
        steps = steps or of_preset
    started = time.perf_counter()
    row: dict[str, Any] = {
        "problem": problem,
        "estimator": name,
        "log_seed": seed,
        "truth": case.truth,
        "truth_error": case.truth_error,
        "seeds": SEEDS,
    }
    try:
        result = evaluate(
            case.log,
            case.policy,
            behavior=case.behavior,
            gamma=case.gamma,
            estimators=[estimator],
            steps=steps,
            seeds=SEEDS,
            stochastic=case.stochastic,
        )
    except InputError as refusal:
        row["refused"] = str(refusal)
    else:
        interval = result.interval
        row |= {
            "value": result.estimate.value,
            "error": result.estimate.value - case.truth,
            "interval": None if interval is None else [interval.low, interval.high],
            "covers": None if interval is None else interval.contains(case.truth),
            "verdict": result.verdict.word,
            "checks": list(result.verdict.checks),
            "steps": result.estimate.steps,
        }
    row["seconds"] = round(time.perf_counter() - started, 1)
    path = record_path(folder, problem, name, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(row, indent=1).encode())
    return f"{problem} {name} {seed}: {row.get('verdict', 'refused')}, {row['seconds']:.0f} s"


def run(given: argparse.Namespace) -> None:
    """Run what is asked for and not there yet, in several processes; give up what has not begun in time."""
    names = given.estimators or [entry.name for entry in all_entries()]
    names = sorted(names, key=lambda name: SLOW.index(name) if name in SLOW else len(SLOW))
    jobs = [
        (problem, name, seed)
        for seed in range(given.logs)
        for problem in given.problems
        for name in names
        if not record_path(given.records, problem, name, seed).exists()
    ]
    ends = time.monotonic() + given.seconds
    fork = multiprocessing.get_context("spawn")  # JAX does not survive a fork
    with ProcessPoolExecutor(given.processes, mp_context=fork) as pool:
        futures = {pool.submit(measured, given.records, *job, given.steps): job for job in jobs}
        for future in as_completed(futures):
            if time.monotonic() > ends:
                pool.shutdown(wait=False, cancel_futures=True)
            if not future.cancelled():
                print(future.result(), flush=True)


def records_of(place: Path) -> list[dict[str, Any]]:
    """Return the records of a folder, or of the one file that `table --out` wrote."""
    if place.is_file():
        return list(json.loads(place.read_text()))
    return [json.loads(path.read_text()) for path in sorted((place / "rows").glob("*.json"))]


def tables(rows: list[dict[str, Any]]) -> str:
    """Return the records as Markdown, a table for each kind of target; with several logs their RMSE."""
    reasons: list[str] = []
    parts = [
        _table([row for row in rows if row["problem"].startswith("noisy") == noisy], reasons)
        for noisy in (False, True)
    ]
    notes = "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
    return "\n\n".join([*parts, notes])


def _table(rows: list[dict[str, Any]], reasons: list[str]) -> str:
    names = [entry.name for entry in all_entries()]
    problems = [problem for problem in CASES if any(row["problem"] == problem for row in rows)]
    truths = {
        problem: next(row["truth"] for row in rows if row["problem"] == problem) for problem in problems
    }
    titles = {problem: TITLES[problem.removeprefix("noisy-")] for problem in problems}
    lines = ["| estimator | " + " | ".join(f"{titles[p]} (V {truths[p]:.3f})" for p in problems) + " |"]
    lines.append("| --- |" + " --- |" * len(problems))
    for name in names:
        own = [row for row in rows if row["estimator"] == name]
        cells = [_cell([row for row in own if row["problem"] == problem], reasons) for problem in problems]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(rows: list[dict[str, Any]], reasons: list[str]) -> str:
    answered = [row for row in rows if "refused" not in row]
    if not rows:
        return "not run"
    if not answered:
        reason = rows[0]["refused"].removeprefix(rows[0]["estimator"]).split(";")[0].strip()
        if reason not in reasons:
            reasons.append(reason)
        return f"refused ({reasons.index(reason) + 1})"
    errors, seconds = [row["error"] for row in answered], np.mean([row["seconds"] for row in answered])
    error = f"{errors[0]:+.3f}" if len(errors) == 1 else f"RMSE {np.sqrt(np.mean(np.square(errors))):.3f}"
    words = [row["verdict"] for row in answered]
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    verdict = words[0] if len(counts) == 1 else ", ".join(f"{word} ({n})" for word, n in counts.items())
    return f"{error}, {seconds:.0f} s, {verdict}"


def main() -> None:
    """Prepare, run, or print the table of what is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("prepare", "run", "table"))
    parser.add_argument(
        "records",
        type=Path,
        help="the folder of records, logs and measured truths; table: or the JSON file of all records",
    )
    parser.add_argument("--problems", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--estimators", nargs="*", help="by default all")
    parser.add_argument("--logs", type=int, default=1, help="logs of each problem, with seeds 0, 1, …")
    parser.add_argument("--steps", type=int, help="of every fit; by default the estimators' own")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no fit is begun")
    parser.add_argument("--out", type=Path, help="table: one JSON file of all records")
    given = parser.parse_args()
    if given.what == "prepare":
        for problem in given.problems:
            for seed in range(given.logs):
                print(f"{problem} {seed}: V {case_of(problem, given.records, seed).truth:.4f}", flush=True)
    elif given.what == "run":
        run(given)
    else:
        rows = records_of(given.records)
        if given.out is not None:
            write_file(given.out, json.dumps(rows, indent=1).encode())
        print(tables(rows))


if __name__ == "__main__":
    main()
