"""Fits of a fraction of a second, on logs of one shape so that each program is compiled once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from kmifqe.estimators import Estimate, Estimator, FQEConfig, KMIFQEConfig, fit, make_fqe, make_kmifqe
from kmifqe.experiments.planted import log_of, problem_of, world_of
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks import measure
from kmifqe.trust.verdict import Judgement, judge_run

STEPS = 600  # 40 copies: at γ = 0.8 all but 0.01 % of the value arrives
SEEDS = 6
FEW = 150  # enough where nothing depends on convergence
KERNEL = KMIFQEConfig(
    hidden=24, batch=128, learning_rate=1e-2, decay_steps=STEPS, target_period=15, clip=(1e-3, 20.0)
)


def kernel_estimator(**changes: Any) -> Estimator:
    return make_kmifqe(replace(KERNEL, **changes))


def fqe_estimator(**changes: Any) -> Estimator:
    return make_fqe(FQEConfig(**({"hidden": 16, "batch": 64, "learning_rate": 5e-3, "tau": 0.03} | changes)))


def run(estimator: Estimator, problem: Problem, seeds: int = SEEDS, steps: int = STEPS) -> Estimate:
    return fit(estimator, problem, seeds=seeds, steps=steps, record_every=60, bootstrap=True)


def measured(estimator: Estimator, estimate: Estimate, problem: Problem) -> Estimate:
    """Return the estimate with its measurements, as the runner keeps it."""
    return replace(estimate, final_state=None, measurements=measure(estimator, estimate, problem))


def judged(estimator: Estimator, problem: Problem, **options: Any) -> Judgement:
    """Return the judgement of one estimator on a problem."""
    return judge_run([measured(estimator, run(estimator, problem, **options), problem)])


@cache
def sound_fit() -> tuple[Estimator, Estimate, Problem]:
    """Return a kernel estimate, not yet converged, of a problem that nothing is wrong with."""
    world = world_of(0)
    problem = problem_of(world, log_of(world, 0))
    estimator = kernel_estimator()
    return estimator, run(estimator, problem, steps=FEW), problem
