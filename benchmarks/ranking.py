"""What ranking many policies costs beside judging one, on a log of Hopper's shape.

    python benchmarks/ranking.py                                # 20 policies, 1,000,000 rows: for a GPU
    python benchmarks/ranking.py --rows 50000 --policies 10     # for two cores

The log is noise: times depend on shapes and hardly on values. Every program is compiled first. Some steps are timed,
for one policy and for all of them side by side, and carried to the steps that a user gets by default; what a fit's
examination takes (checks, influence of every episode) is timed once and counted for every policy. Minutes are those
of the first networks that every policy gets; those that may be the best get more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kmifqe.estimators import Estimator, make_estimator
from kmifqe.estimators.fit import fit_policies, make_plan
from kmifqe.estimators.forecast import policies_at_once
from kmifqe.estimators.sizing import size_of
from kmifqe.mdp import Problem, Transitions
from kmifqe.mdp.policies import Answers, ask_policy, judged, judged_together
from kmifqe.ranking import ROUGH
from kmifqe.trust.checks import measure
from records import Row, console, table_of, versions, write

STATES, ACTIONS, EPISODE = 11, 3, 250


class Uniform:
    """The density of actions drawn uniformly from [−1, 1]."""

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,)."""
        return np.full(len(actions), -ACTIONS * np.log(2.0))


def noise_log(rows: int) -> Transitions:
    """Return a log of Hopper's shape in which nothing depends on anything."""
    rng = np.random.default_rng(0)
    ends = np.arange(1, rows + 1) % EPISODE == 0
    states = rng.standard_normal((rows, STATES)).astype(np.float32)
    actions = rng.uniform(-1.0, 1.0, (rows, ACTIONS)).astype(np.float32)
    return Transitions.from_arrays(states, actions, rng.standard_normal(rows), np.zeros(rows, bool), ends)


def linear_policy(seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a policy of its own for every `seed`."""
    weights = 0.3 * np.random.default_rng(seed).standard_normal((STATES, ACTIONS))
    return lambda states: np.tanh(states @ weights)


def seconds_a_step(estimator: Estimator, problem: Problem, networks: int, steps: int) -> tuple[float, Any]:
    """Return a step's time, refreshes included, after everything was compiled, and what was fitted."""
    plan = make_plan(estimator, problem, seeds=networks, steps=steps, record_every=steps // 4, bootstrap=True)
    fit_policies(estimator, problem, plan)  # compiles
    started = time.perf_counter()
    fitted = fit_policies(estimator, problem, plan)
    return (time.perf_counter() - started) / plan.steps, fitted


def measured(
    name: str, problem: Problem, answers: list[Answers], networks: int, steps: int
) -> tuple[list[Row], float, float]:
    """Return rows of the table, and the seconds that one policy and all policies take."""
    estimator = make_estimator(name, size=size_of(problem))
    # A multiple of the steps between two metrics, so that their share of the time is right.
    every = 1 if estimator.refresh is None else estimator.refresh.every
    steps = 4 * max(1, round(steps / 4 / every)) * every
    plan = make_plan(estimator, problem, seeds=networks, steps=steps, bootstrap=True)
    at_once = policies_at_once(estimator, problem, plan, len(answers))
    one, fitted = seconds_a_step(estimator, judged_together(problem, answers[:1]), networks, steps)
    own = judged(problem, answers[0])
    measure(estimator, fitted[0], own)  # compiles
    started = time.perf_counter()
    measure(estimator, fitted[0], own)
    examined = time.perf_counter() - started
    many, _ = seconds_a_step(estimator, judged_together(problem, answers[:at_once]), networks, steps)
    turns = -(-len(answers) // at_once)
    total_one = one * estimator.default_steps + examined
    total_many = turns * many * estimator.default_steps + len(answers) * examined
    of = f"{estimator.default_steps:,} steps, {networks} networks a policy"
    rows = [
        Row(name, "one policy", total_one, "s", note=of),
        Row(name, f"{len(answers)} policies", total_many, "s", total_many / total_one, "one policy"),
        Row(
            name, "of it training", turns * many * estimator.default_steps, "s", turns * many / one, "of one"
        ),
        Row(name, "of it examining", len(answers) * examined, "s", note=f"{at_once} at once, {turns} turns"),
    ]
    return rows, total_one, total_many


def main() -> None:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--policies", type=int, default=20)
    parser.add_argument("--networks", type=int, default=ROUGH)
    parser.add_argument("--steps", type=int, default=None, help="timed; by default 2,000, on a CPU 100")
    parser.add_argument("--estimators", nargs="+", default=["kmifqe", "fqe"])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    steps = asked.steps or (100 if jax.default_backend() == "cpu" else 2_000)
    log = noise_log(asked.rows)
    policies = [linear_policy(seed) for seed in range(asked.policies)]
    problem = Problem.build(log, policies[0], Uniform(), 0.99)
    answers = [ask_policy(log, policy, Uniform()) for policy in policies]
    rows, one, many = [], 0.0, 0.0
    for name in asked.estimators:
        own_rows, own_one, own_many = measured(name, problem, answers, asked.networks, steps)
        rows += own_rows
        one, many = one + own_one, many + own_many
    rows.append(Row("all", f"{asked.policies} policies", many / 60.0, "min", many / one, "one policy"))
    console().print(table_of(rows, f"Ranking, {asked.rows:,} rows of Hopper's shape"))
    if asked.out is not None:
        write(asked.out, versions(), rows)


if __name__ == "__main__":
    main()
