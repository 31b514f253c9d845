"""Everything that diagnostics and reports need of a finished fit, as a flat dictionary that JSON can hold.

Taken right after a fit: an estimate that is read back from disk has no final state any more, but keeps these.
"""

from __future__ import annotations

from typing import Any

from kmifqe.estimators.base import Estimate, Estimator, plain
from kmifqe.estimators.kmifqe import KMIFQEConfig, KMIFQEState
from kmifqe.problem import Problem
from kmifqe.trust.measure_kernel import kernel_facts
from kmifqe.trust.measure_log import log_facts
from kmifqe.trust.measure_overlap import density_facts, nearby_actions, overlap_facts
from kmifqe.trust.measure_start import start_facts
from kmifqe.trust.measure_td import td_facts
from kmifqe.trust.measure_weights import weight_facts

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
