"""What is measured of a log and a finished fit, and every check that is made from it.

`measure` is called right after a fit: an estimate that is read back from disk has no final state any more, but keeps
its measurements, and `checks_of` needs nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from kmifqe.estimators.base import Estimate, Estimator
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks import log, overlap, ratios, training, weights
from kmifqe.trust.checks.base import Check, Reach
from kmifqe.trust.checks.log import LogFacts
from kmifqe.trust.checks.overlap import DensityFacts, NextActions, OverlapFacts
from kmifqe.trust.checks.ratios import RatioFacts
from kmifqe.trust.checks.training import StartFacts, TdFacts
from kmifqe.trust.checks.weights import KernelFacts, WeightFacts
from kmifqe.trust.influence import ChanceFacts, chance_facts

__all__ = ["Check", "Measurements", "Reach", "Shared", "checks_of", "measure", "restored"]


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that checks and reports need of a finished fit; a part is None where it could not be measured."""

    log: LogFacts
    uses_density: bool  # whether the estimator weights logged actions by the behaviour density
    arrived: float | None = None  # largest share of the value that can have reached Q in so many steps
    overlap: OverlapFacts | None = None
    density: DensityFacts | None = None
    weights: WeightFacts | None = None
    kernel: KernelFacts | None = None
    td: TdFacts | None = None
    start: StartFacts | None = None
    ratio: RatioFacts | None = None
    chance: ChanceFacts | None = None
    actions: tuple[
        float, ...
    ] = ()  # `overlap.compared_actions`; empty where the record was made without them


def restored(estimate: Estimate) -> Estimate:
    """Return an estimate that was read from JSON with its measurements as themselves.

    An estimate knows nothing of their type, because its room lies below this one.
    """
    return replace(estimate, measurements=msgspec.convert(estimate.measurements, Measurements | None))


class Shared:
    """What several fits have in common: facts of the log, and of how near its actions come to a target's.

    They are measured when the first fit asks, and again where it is another log or another target.
    """

    def __init__(self) -> None:
        self._log: tuple[Any, LogFacts] | None = None
        self._near: tuple[Any, NextActions | None, OverlapFacts | None] | None = None

    def log(self, problem: Problem) -> LogFacts:
        """Return the facts of the log of `problem`."""
        if self._log is None or self._log[0] is not problem.rewards:
            self._log = problem.rewards, log.log_facts(problem)
        return self._log[1]

    def near(self, problem: Problem) -> tuple[NextActions | None, OverlapFacts | None]:
        """Return the log's actions around the target's of `problem`, and what they tell of the overlap."""
        if self._near is None or self._near[0] is not problem.target_actions:
            near = overlap.next_actions(problem)
            facts = None if near is None else overlap.overlap_facts(problem, near)
            self._near = problem.target_actions, near, facts
        return self._near[1:]


def measure(
    estimator: Estimator, estimate: Estimate, problem: Problem, shared: Shared | None = None
) -> Measurements:
    """Return the facts of the log, of its overlap with the target, and of the state that the fit ended in.

    `estimator` made the `estimate` of the `problem`. Without a final state only the log and its overlap are measured.
    `shared` keeps what other fits to the same problem need too.
    """
    shared = Shared() if shared is None else shared
    near, overlap_facts = shared.near(problem)
    uses_density = estimator.kernel is not None or estimator.uses_density
    return Measurements(
        log=shared.log(problem),
        uses_density=uses_density,
        arrived=estimator.arrived(estimate.steps, estimate.gamma),
        overlap=overlap_facts,
        density=overlap.density_facts(problem, near)
        if uses_density and near is not None and problem.log_mu is not None
        else None,
        weights=weights.weight_facts(estimator, estimate, problem),
        kernel=weights.kernel_facts(estimator, estimate, problem),
        td=training.td_facts(estimator, estimate, problem),
        start=None if near is None else training.start_facts(estimator, estimate, problem, near),
        ratio=ratios.ratio_facts(estimator, estimate, problem),
        chance=chance_facts(estimator, estimate, problem),
        actions=overlap.compared_actions(problem),
    )


def checks_of(estimate: Estimate, reach: Reach | None = None) -> tuple[Check, ...]:
    """Return every check of one estimate, those that passed included.

    Where the `estimate` has no measurements only its trajectory is judged. Errors are held against the
    `reach` of V̂'s interval; None where there is no interval.
    """
    found: Measurements | None = estimate.measurements
    checks = training.training_checks(estimate, None if found is None else found.arrived)
    if found is not None:
        checks += log.value_checks(estimate, found.log, reach)
        checks += training.consistency_checks(found.td, found.start, found.chance, reach)
        checks += log.log_checks(found.log, estimate.gamma, found.uses_density)
        checks += overlap.overlap_checks(found.overlap, found.density, found.uses_density)
        checks += ratios.ratio_checks(estimate, found.log.rows.in_sample)
        checks += ratios.balance_checks(found.ratio)
        if found.uses_density:
            checks += weights.weight_checks(estimate, found.weights, found.kernel, reach)
    return tuple(msgspec.structs.replace(check, estimator=estimate.estimator) for check in checks)
