"""Measurements of whole fits: typed, kept in JSON without loss, and judged without the fit."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from kmifqe.estimators import SRDICEConfig, make_sr_dice
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks import Measurements, Reach, checks_of, measure
from kmifqe.trust.checks.ratios import RatioFacts
from trust.checks.test_weights import SOUND
from trust.fitted import fqe_estimator, measured, sound_fit

REACH = Reach(0.1, 0.1)


def through_json(found: Measurements) -> Measurements:
    return msgspec.convert(msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(found))), Measurements)


def test_measurements_survive_json_without_loss_and_every_part_is_there():
    ratio = RatioFacts(
        visits=1.0, visits_error=0.01, flow=0.1, flow_error=0.02
    )  # the kernel estimator has none
    found = msgspec.structs.replace(measure(*sound_fit()), ratio=ratio)
    assert through_json(found) == found
    assert all(getattr(found, part) is not None for part in Measurements.__struct_fields__)


def test_what_was_read_back_is_judged_alike():
    estimate = measured(*sound_fit())
    read_back = replace(estimate, measurements=through_json(estimate.measurements))
    assert checks_of(read_back, REACH) == checks_of(estimate, REACH)
    assert len(checks_of(estimate, REACH)) >= 18


def test_every_check_says_what_it_found_and_every_threshold_has_a_reason():
    for check in checks_of(measured(*sound_fit()), REACH):
        assert check.estimator == "kmifqe"
        assert check.finding.endswith(".")
        assert check.threshold
        assert check.reason
        assert (check.advice == "") == (check.level == "ok"), check


def test_an_estimate_without_a_final_state_still_has_its_log_measured():
    estimator, estimate, problem = sound_fit()
    found = measure(estimator, replace(estimate, final_state=None), problem)
    assert found.overlap is not None
    assert (found.weights, found.kernel, found.td, found.start) == (None, None, None, None)


def test_an_estimator_without_weights_has_none_measured():
    _, estimate, problem = sound_fit()
    for estimator in (fqe_estimator(), make_sr_dice(SRDICEConfig(hidden=8, features=8))):
        found = measure(estimator, replace(estimate, final_state=None), problem)
        assert not found.uses_density
        assert found.overlap is not None
        assert (found.density, found.weights, found.kernel) == (None, None, None)


def test_without_measurements_only_the_trajectory_is_judged():
    checks = checks_of(SOUND)
    assert {check.name for check in checks} == {"diverged", "drift"}
    assert {check.estimator for check in checks} == {"kmifqe"}


def numbers(x):
    """Return every number in nested dictionaries and lists, one after the other."""
    if isinstance(x, dict):
        return [number for part in x.values() for number in numbers(part)]
    if isinstance(x, list | tuple):
        return [number for part in x for number in numbers(part)]
    return [] if x is None else [x]


def test_rows_in_host_memory_measure_the_same():
    estimator, estimate, problem = sound_fit()
    here, there = measure(estimator, estimate, problem), measure(estimator, estimate, problem.on_host())
    for part in Measurements.__struct_fields__:
        one, other = (numbers(msgspec.to_builtins(getattr(found, part))) for found in (here, there))
        np.testing.assert_allclose(other, one, rtol=1e-5, err_msg=part)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 30])
@pytest.mark.parametrize("gamma", [0.0, 0.999])
def test_the_smallest_logs_can_be_measured_and_judged(rows, terminal, gamma):
    """Constant actions, constant rewards, one episode: whatever can be divided by is 0."""
    _, estimate, _ = sound_fit()
    ends = np.arange(rows) == rows - 1
    states = np.ones((rows, 2))
    flags = (ends, ~ends & ends) if terminal else (~ends & ends, ends)
    log = Transitions.from_arrays(states, np.zeros((rows, 1)), np.zeros(rows), *flags, states)
    problem = Problem.build(log, lambda s: np.zeros((len(s), 1)), None, gamma)
    fqe = replace(estimate, estimator="fqe", final_state=None)
    found = measure(fqe_estimator(), fqe, problem)
    assert through_json(found) == found
    bad = {check.name for check in checks_of(replace(fqe, measurements=found), REACH) if check.level == "bad"}
    assert bad >= {"episodes", "interval_width"}
