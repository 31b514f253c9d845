"""What is measured of a log and a finished fit, and every check that is made from it.

`measure` is called right after a fit: an estimate that is read back from disk has no final state any more, but keeps
its measurements, and `checks_of` needs nothing else.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from kmifqe.estimators.base import Estimate, Estimator
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks import log, overlap, ratios, training, weights
from kmifqe.trust.checks.base import Check
from kmifqe.trust.checks.log import LogFacts
from kmifqe.trust.checks.overlap import DensityFacts, OverlapFacts
from kmifqe.trust.checks.training import StartFacts, TdFacts
from kmifqe.trust.checks.weights import KernelFacts, WeightFacts
from kmifqe.trust.influence import ChanceFacts, chance_facts

__all__ = ["Check", "Measurements", "checks_of", "measure", "restored"]


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
    chance: ChanceFacts | None = None


def restored(estimate: Estimate) -> Estimate:
    """Return an estimate that was read from JSON with its measurements as themselves.

    An estimate knows nothing of their type, because its room lies below this one.
    """
    return replace(estimate, measurements=msgspec.convert(estimate.measurements, Measurements | None))


def measure(estimator: Estimator, estimate: Estimate, problem: Problem) -> Measurements:
    """Return the facts of the log, of its overlap with the target, and of the state that the fit ended in.

    `estimator` made the `estimate` of the `problem`. Without a final state only the log and its overlap are measured.
    """
    near = overlap.next_actions(problem)
    uses_density = estimator.kernel is not None or estimator.uses_density
    return Measurements(
        log=log.log_facts(problem),
        uses_density=uses_density,
        arrived=estimator.arrived(estimate.steps, estimate.gamma),
        overlap=None if near is None else overlap.overlap_facts(problem, near),
        density=overlap.density_facts(problem, near)
        if uses_density and near is not None and problem.log_mu is not None
        else None,
        weights=weights.weight_facts(estimator, estimate, problem),
        kernel=weights.kernel_facts(estimator, estimate, problem),
        td=training.td_facts(estimator, estimate, problem),
        start=None if near is None else training.start_facts(estimator, estimate, problem, near),
        chance=chance_facts(estimator, estimate, problem),
    )


def checks_of(estimate: Estimate, half_width: float | None = None) -> tuple[Check, ...]:
    """Return every check of one estimate, those that passed included.

    Where the `estimate` has no measurements only its trajectory is judged. Errors are held against `half_width`, half
    the width of V̂'s interval; None where there is no interval.
    """
    found: Measurements | None = estimate.measurements
    checks = training.training_checks(estimate, None if found is None else found.arrived)
    if found is not None:
        checks += log.value_checks(estimate, found.log, half_width)
        checks += training.consistency_checks(found.td, found.start, found.chance, half_width)
        checks += log.log_checks(found.log, estimate.gamma, found.uses_density)
        checks += overlap.overlap_checks(found.overlap, found.density, found.uses_density)
        checks += ratios.ratio_checks(estimate, found.log.rows.in_sample)
        if found.uses_density:
            checks += weights.weight_checks(estimate, found.weights, found.kernel, half_width)
    return tuple(msgspec.structs.replace(check, estimator=estimate.estimator) for check in checks)
