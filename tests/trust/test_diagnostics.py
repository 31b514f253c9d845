from dataclasses import replace

import numpy as np
import pytest

from kmifqe.trust.checks.diagnose import diagnose, disagreements
from kmifqe.trust.interval import ConfidenceInterval
from trust.test_diagnostics_weights import SOUND


def of(name, value, half):
    estimate = replace(SOUND, estimator=name, values=np.array([value - 0.01, value + 0.01]))
    return estimate, ConfidenceInterval(value - half, value + half, 0.9, 9.0)


def test_estimates_that_differ_by_more_than_their_intervals_allow_contradict_each_other():
    estimates, intervals = zip(of("kmifqe", -1.0, 0.3), of("fqe", -2.0, 0.4))
    first, second = disagreements(estimates, intervals)
    assert (first.about, second.about) == ("kmifqe", "fqe")
    assert first.value == second.value == pytest.approx(2.0)  # 1/√(0.3² + 0.4²)
    assert first.level == "care"
    assert first.line.startswith("fqe says -2, 1 away")


def test_estimates_that_agree_confirm_each_other_and_one_has_none_to_agree_with():
    estimates, intervals = zip(of("kmifqe", -1.0, 0.3), of("fqe", -1.2, 0.4))
    assert [d.level for d in disagreements(estimates, intervals)] == ["ok", "ok"]
    assert disagreements(estimates[:1], intervals[:1]) == ()


def test_without_measurements_only_the_trajectory_is_judged():
    names = {d.name for d in diagnose(SOUND, {})}
    assert names == {"diverged", "drift"}
    assert {d.about for d in diagnose(SOUND, {})} == {"kmifqe"}
