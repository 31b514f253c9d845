"""The study of planted faults: every fault can be planted, and what is counted of the answers to it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.experiments import faults
from kmifqe.experiments.planted import log_of, problem_of, reset_log, world_of
from kmifqe.trust.checks import Measurements
from kmifqe.trust.checks.base import ORDER
from kmifqe.trust.checks.log import log_checks, log_facts
from trust.checks.test_training import estimate

FULL = faults.preset_named("full")
OF_THE_LOG = [
    name for name, fault in faults.FAULTS.items() if {*fault.named_by} & {*faults.NEW, "time_limit"}
]


def test_every_check_that_names_a_fault_exists():
    named = {name for fault in faults.FAULTS.values() for name in fault.named_by}
    assert named | {*faults.NEW} <= {*ORDER}
    assert named >= {*faults.NEW}
    assert {fault for preset in faults.PRESETS.values() for fault in preset.faults} <= {*faults.FAULTS}


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_every_fault_is_planted_and_those_of_the_log_are_named(fault):
    built = FULL.build(FULL.items().index((*FULL.worlds[1], fault)))
    found = log_checks(log_facts(built.problem), FULL.gamma, uses_density=False)
    raised = {check.name for check in found if check.level != "ok"}
    assert np.isfinite(built.truth)
    if fault in OF_THE_LOG:
        assert raised & {*faults.FAULTS[fault].named_by}
    else:
        assert not raised & {*faults.NEW, "time_limit"}


def test_a_preset_that_is_none_is_refused():
    with pytest.raises(InputError, match="expected one of smoke, full"):
        faults.preset_named("huge")


def judged(**changes):
    given = {"world": 1, "fault": "every row doubled", "estimator": "fqe", "truth": -1.0, "value": -1.5}
    given |= {"interval": (-1.6, -1.4), "before": "trustworthy", "after": "do not use"}
    given |= {"against": ["copied_rows"], "named": True}
    return faults.JudgedFault(**(given | changes))


def test_an_answer_is_wrong_where_the_truth_lies_outside_the_interval_and_not_beside_the_value():
    assert judged().wrong
    assert not judged(interval=(-1.6, -0.9)).wrong
    assert not judged(value=-1.01, interval=(-1.02, -1.005)).wrong
    assert judged(value=np.nan, interval=None).wrong


def test_a_line_counts_wrong_answers_that_are_trusted_and_named():
    told = [judged(), judged(after="trustworthy", named=False, against=[]), judged(interval=(-1.6, -0.9))]
    line = faults.line(told, "every row doubled")
    assert (line["estimates"], line["wrong"], line["trusted_before"]) == (3, 2, 2)
    assert (line["trusted"], line["named"], line["checks"]) == (1, 1, {"copied_rows": 1})
    assert line["worst_error"] == pytest.approx(0.5)
    summary = faults.summary([*told, judged(fault="none")], "smoke", [])
    assert summary.lines[-1]["estimates"] == 3  # the sound problem is no fault


@pytest.mark.parametrize("plant, before", [(reset_log, "ok"), (faults.planted.ended_log, "bad")])
def test_before_leaves_out_what_is_new_and_keeps_what_is_not(plant, before):
    world = world_of(0)
    facts = log_facts(problem_of(world, plant(log_of(world, 0))))
    measured = replace(
        estimate(np.full((8, 2), -1.0)), measurements=Measurements(log=facts, uses_density=False)
    )
    stripped = faults.without_new(measured).measurements.log
    after, then = (
        {check.name: check.level for check in log_checks(each, 0.9, uses_density=False)}
        for each in (facts, stripped)
    )
    assert "bad" in {after["reset_states"], after["time_limit"]}
    assert max(then["reset_states"], then["time_limit"], key=("ok", "care", "bad").index) == before
    assert msgspec.structs.replace(stripped, faults=None) == msgspec.structs.replace(facts, faults=None)
