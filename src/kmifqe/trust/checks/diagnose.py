"""Everything that diagnostics and reports need of a finished fit, as a flat dictionary that JSON can hold.

Taken right after a fit: an estimate that is read back from disk has no final state any more, but keeps these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kmifqe.estimators.base import Estimate, Estimator, plain
from kmifqe.estimators.kmifqe.algorithm import KMIFQEConfig, KMIFQEState
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.base import Diagnostic, Level, Limit, digits, graded
from kmifqe.trust.checks.consistency import start_facts, td_facts
from kmifqe.trust.checks.log import log_diagnostics, log_facts
from kmifqe.trust.checks.overlap import density_facts, nearby_actions, overlap_diagnostics, overlap_facts
from kmifqe.trust.checks.training import training_diagnostics, value_diagnostics
from kmifqe.trust.checks.weights import kernel_facts, weight_diagnostics, weight_facts
from kmifqe.trust.interval import ConfidenceInterval

Measurements = dict[str, Any]  # names -> numbers and short lists; docs/diagnostics.md says what each is


def measure(estimator: Estimator, estimate: Estimate, problem: Problem) -> Measurements:
    """Return the facts of the log, of its overlap with the target, and of the state that the fit ended in.

    A name is missing where there is nothing to measure: no density, no kernel, no bootstrap, no row that goes on.
    """
    facts = log_facts(problem)
    near = nearby_actions(problem)
    if near is not None:
        facts |= overlap_facts(problem, near)
    config, state = estimator.config, estimate.final_state
    if isinstance(config, KMIFQEConfig):
        if near is not None and problem.log_mu is not None:
            facts |= density_facts(problem, near)
        if isinstance(state, KMIFQEState):
            facts |= weight_facts(config, state, problem) | kernel_facts(config, state, problem)
    if state is not None:
        facts |= td_facts(estimator, estimate, problem)
        if near is not None:
            facts |= start_facts(estimator, estimate, problem, near)
    return {name: plain(value) for name, value in facts.items()}


__all__ = ["Diagnostic", "Level", "diagnose", "disagreements"]

DISAGREEMENT = Limit(
    1.5,
    float("inf"),
    "two right estimates differ by more than 1.5 times their joint half-width about once in a hundred times; which "
    "of them is wrong the difference does not say",
)


def diagnose(
    estimate: Estimate, measurements: Mapping[str, Any], interval: ConfidenceInterval | None = None
) -> tuple[Diagnostic, ...]:
    """Return every diagnostic of one estimate, those that are well included.

    `measurements` are those of `measure`; where there are none only the trajectory is judged. Without an interval
    the half-width is taken from the seeds' spread.
    """
    found = training_diagnostics(estimate)
    if measurements:
        kernel = "clip" in estimate.config
        half_width = half_width_of(estimate, interval)
        found += value_diagnostics(estimate, measurements, half_width)
        found += log_diagnostics(measurements, estimate.gamma, uses_density=kernel)
        found += overlap_diagnostics(measurements, uses_density=kernel)
        if kernel:
            found += weight_diagnostics(estimate, measurements, half_width)
    return tuple(diagnostic.of(estimate.estimator) for diagnostic in found)


def half_width_of(estimate: Estimate, interval: ConfidenceInterval | None) -> float | None:
    """Return half the interval, or twice the standard error over seeds; None for a single seed without any."""
    if interval is not None:
        return 0.5 * (interval.high - interval.low)
    return 2.0 * estimate.standard_error if len(estimate.known) > 1 else None


def disagreements(
    estimates: Sequence[Estimate], intervals: Sequence[ConfidenceInterval | None]
) -> tuple[Diagnostic, ...]:
    """Return one diagnostic for each estimate that some other contradicts or confirms; () for a single one.

    Give only estimates that nothing else speaks against: to differ from a wrong one is no fault.
    """
    known = [
        (estimate, half)
        for estimate, interval in zip(estimates, intervals, strict=True)
        if np.isfinite(estimate.value) and (half := half_width_of(estimate, interval)) is not None
    ]
    found = []
    for estimate, half in known:
        others = [
            (abs(estimate.value - other.value) / max(float(np.hypot(half, width)), 1e-300), other)
            for other, width in known
            if other is not estimate
        ]
        if others:
            ratio, other = max(others, key=lambda pair: pair[0])
            line = (
                f"{other.estimator} says {digits(other.value)}, {digits(abs(estimate.value - other.value))} away: "
                f"{digits(ratio)} times the two intervals' joint half-width"
            )
            found.append(graded("disagreement", ratio, DISAGREEMENT, line, digits).of(estimate.estimator))
    return tuple(found)
