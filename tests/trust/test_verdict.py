from dataclasses import replace

import numpy as np
import pytest

from kmifqe.trust.checks.diagnose import Diagnostic, measure
from kmifqe.trust.verdict import ORDER, Verdict, diagnose_run, judge
from trust.fitted import SEEDS, sound_fit


def said(name, level, about="kmifqe"):
    return Diagnostic(name, 0.0, level, f"{name} is {level}", "", "", about)


@pytest.mark.parametrize(
    "levels, word",
    [
        (["ok", "ok"], "trustworthy"),
        (["ok", "care"], "use with care"),
        (["care", "bad"], "do not use"),
        ([], "trustworthy"),
    ],
)
def test_the_worst_diagnostic_gives_the_word(levels, word):
    assert judge(said("drift", level) for level in levels).word == word


def test_reasons_come_in_order_of_weight_and_leave_out_what_is_well():
    found = [said("drift", "care"), said("distance", "care"), said("episodes", "bad"), said("metric", "ok")]
    assert judge(found) == Verdict("do not use", ("episodes is bad", "distance is care", "drift is care"))
    assert judge(found).to_dict()["reasons"] == ["episodes is bad", "distance is care", "drift is care"]


def test_every_diagnostic_has_a_place_in_the_order_and_a_reason():
    estimator, estimate, problem = sound_fit()
    diagnosis = diagnose_run([estimate], [measure(estimator, estimate, problem)])
    assert len({d.name for d in diagnosis.diagnostics}) == len(diagnosis.diagnostics) >= 18
    for diagnostic in diagnosis.diagnostics:
        assert diagnostic.name in ORDER
        assert diagnostic.line
        assert diagnostic.threshold
        assert diagnostic.reason


def test_what_is_said_alike_of_all_estimates_is_said_once():
    estimator, estimate, problem = sound_fit()
    facts = measure(estimator, estimate, problem)
    twin = replace(estimate, estimator="twin", values=estimate.values + 50.0)
    diagnosis = diagnose_run([estimate, twin], [facts, facts])
    assert [d.about for d in diagnosis.diagnostics if d.name == "episodes"] == [""]
    assert {d.about for d in diagnosis.diagnostics if d.name == "reward_range"} == {"kmifqe", "twin"}
    assert diagnosis.verdicts["twin"].word == "do not use"
    assert diagnosis.verdict == diagnosis.verdicts["kmifqe"]


def test_an_estimate_that_is_not_to_be_used_contradicts_nobody():
    estimator, estimate, problem = sound_fit()
    facts = measure(estimator, estimate, problem)
    lost = replace(estimate, estimator="fqe", values=np.full(SEEDS, np.nan), config={})
    diagnosis = diagnose_run([estimate, lost], [facts, facts])
    assert diagnosis.verdicts["fqe"].word == "do not use"
    assert not [d for d in diagnosis.diagnostics if d.name == "disagreement"]
