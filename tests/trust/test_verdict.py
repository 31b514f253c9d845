from dataclasses import replace

import msgspec
import numpy as np
import pytest

from kmifqe.io.format import digits
from kmifqe.trust.checks.base import Check, Reach
from kmifqe.trust.interval import interval_of
from kmifqe.trust.verdict import Verdict, compared, judge, judge_run
from trust.checks.test_weights import SOUND
from trust.fitted import SEEDS, measured, sound_fit


def check(name, level):
    return Check(
        name=name,
        level=level,
        value=0.0,
        care=None,
        bad=None,
        finding=f"{name} is {level}.",
        threshold="",
        reason="",
        advice="" if level == "ok" else "Mend it.",
    )


@pytest.mark.parametrize(
    "levels, word",
    [
        (["ok", "ok"], "trustworthy"),
        (["ok", "care"], "use with care"),
        (["care", "bad"], "do not use"),
        ([], "trustworthy"),
    ],
)
def test_the_worst_check_gives_the_word(levels, word):
    assert judge(check("drift", level) for level in levels).word == word


def test_reasons_come_in_order_of_weight_with_advice_and_leave_out_what_is_well():
    found = [
        check("drift", "care"),
        check("distance", "care"),
        check("episodes", "bad"),
        check("metric", "ok"),
    ]
    verdict = judge(found)
    assert verdict == Verdict(
        "do not use",
        ("episodes is bad. Mend it.", "distance is care. Mend it.", "drift is care. Mend it."),
        ("episodes", "distance", "drift"),
    )
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_what_is_said_alike_of_all_estimates_is_said_once():
    estimate = measured(*sound_fit())
    twin = replace(estimate, estimator="twin", values=estimate.values + 50.0)
    judgement = judge_run([estimate, twin])
    assert [c.estimator for c in judgement.checks if c.name == "episodes"] == [""]
    assert {c.estimator for c in judgement.checks if c.name == "reward_range"} == {"kmifqe", "twin"}
    assert judgement.verdicts["twin"].word == "do not use"
    assert judgement.verdict == judgement.verdicts["kmifqe"]


def test_reasons_quote_the_interval_that_is_shown_and_judge_by_another():
    sound = measured(*sound_fit())
    facts = msgspec.structs.replace(
        sound.measurements,
        start=msgspec.structs.replace(sound.measurements.start, start_td=9.0),
        chance=msgspec.structs.replace(sound.measurements.chance, unsolved=9.0),
        kernel=msgspec.structs.replace(sound.measurements.kernel, kernel_bias=9.0),
    )
    wrong = replace(sound, measurements=facts)
    other = replace(wrong, estimator="other", values=wrong.values + 1.0)
    usual, asked = judge_run([wrong, other]), judge_run([wrong, other], level=0.8)
    assert [replaced(c) for c in usual.checks] == [replaced(c) for c in asked.checks]
    assert {name: v.word for name, v in usual.verdicts.items()} == {
        name: v.word for name, v in asked.verdicts.items()
    }
    shown = digits(0.5 * interval_of(wrong, 0.8).width)
    quoting = [c for c in asked.checks if "80 % interval" in c.finding]
    assert {c.name for c in quoting} >= {"interval_width", "start_td", "unsolved", "kernel_bias"}
    assert all(shown in c.finding for c in quoting)
    assert not any("95 % interval" in c.finding for c in asked.checks)


def replaced(check):
    """Return the check without the sentence that quotes an interval."""
    return msgspec.structs.replace(check, finding="")


def test_an_estimate_that_is_not_to_be_used_contradicts_nobody():
    estimate = measured(*sound_fit())
    lost = replace(estimate, estimator="fqe", values=np.full(SEEDS, np.nan))
    judgement = judge_run([estimate, lost])
    assert judgement.verdicts["fqe"].word == "do not use"
    assert not [c for c in judgement.checks if c.name == "disagreement"]


def of(name, value):
    return replace(SOUND, estimator=name, values=np.array([value - 0.01, value + 0.01]))


def reaches(*half_widths):
    return [None if half is None else Reach(half, half) for half in half_widths]


def test_estimates_that_differ_by_more_than_their_intervals_allow_contradict_each_other():
    found, involved = compared([of("kmifqe", -1.0), of("fqe", -2.0)], reaches(0.3, 0.4))
    assert found.value == pytest.approx(2.0)  # 1/√(0.3² + 0.4²)
    assert (found.level, found.estimator, involved) == ("care", "", ("kmifqe", "fqe"))
    assert found.finding.startswith("kmifqe says -1, fqe says -2")


def test_one_outlier_is_told_once_and_counts_against_all_whom_it_contradicts():
    estimates = [of(name, value) for name, value in (("a", -1.0), ("b", -1.1), ("c", -2.0), ("d", -1.6))]
    found, involved = compared(estimates, reaches(0.2, 0.2, 0.2, 0.5))
    assert found.value == pytest.approx(1.0 / np.hypot(0.2, 0.2))
    assert involved == ("a", "b", "c")  # the interval of d reaches all of them
    same = [replace(each, bootstrap=False) for each in estimates[:3]]
    judgement = judge_run(same)
    assert [c.estimator for c in judgement.checks if c.name == "disagreement"] == [""]
    assert all("disagreement" in verdict.checks for verdict in judgement.verdicts.values())


def test_estimates_that_agree_confirm_each_other_and_one_has_none_to_agree_with():
    estimates = [of("kmifqe", -1.0), of("fqe", -1.2)]
    found, involved = compared(estimates, reaches(0.3, 0.4))
    assert (found.level, found.advice, involved) == ("ok", "", ("kmifqe", "fqe"))
    assert compared(estimates[:1], reaches(0.3)) == (None, ())
    assert compared(estimates, reaches(0.3, None)) == (None, ())
