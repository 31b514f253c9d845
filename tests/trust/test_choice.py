"""An average over estimators: which are averaged, with which weights, and how the average is judged."""

from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.estimators import Estimate
from kmifqe.trust.checks.training import StartFacts
from kmifqe.trust.choice import average, sentence
from kmifqe.trust.interval import interval_of, variance_of
from kmifqe.trust.verdict import check_accepted, judge_run
from trust.fitted import measured, sound_fit


@cache
def measured_fit() -> Estimate:
    return measured(*sound_fit())


def named(name: str, *, shift: float = 0.0, wider: float = 1.0) -> Estimate:
    """Return a sound estimate under another name, with its networks' values moved and spread out."""
    sound = measured_fit()
    middle = sound.values.mean()
    values = middle + shift + wider * (sound.values - middle)
    return replace(sound, estimator=name, values=values, trajectory=sound.trajectory + values - sound.values)


def test_weights_are_inverse_variances_and_add_up_to_one() -> None:
    sharp, vague = named("sharp"), named("vague", wider=3.0)
    found = average("both", [sharp, vague])
    assert sum(found.members.values()) == pytest.approx(1.0)
    ratio = variance_of(vague) / variance_of(sharp)
    assert found.members["sharp"] / found.members["vague"] == pytest.approx(ratio)
    expected = found.members["sharp"] * sharp.values + found.members["vague"] * vague.values
    np.testing.assert_allclose(found.values, expected)


def test_an_estimate_that_is_not_to_be_used_is_left_out() -> None:
    sound, wrong = named("sound"), named("wrong", shift=1e3)  # far outside what rewards can add up to
    found = average("both", [sound, wrong])
    assert found.members == {"sound": 1.0}
    assert found.value == pytest.approx(sound.value)
    said = sentence(found, judge_run([found, sound, wrong]).verdicts)
    assert "sound (100%)" in said
    assert "wrong is judged 'do not use' and left out" in said


def test_an_estimator_beside_the_average_is_not_said_to_be_left_out() -> None:
    estimates = [named("kmifqe"), named("fqe"), named("sr-dice")]
    found = average("auto", estimates[:2])
    assert "left out" not in sentence(found, judge_run([found, *estimates]).verdicts)


def test_the_average_of_two_that_differ_has_a_wider_interval_than_either_half_of_the_difference() -> None:
    low, high = named("low", shift=-0.2), named("high", shift=0.2)
    found = average("both", [low, high])
    assert found.measurements.chance.between_std == pytest.approx(0.2, rel=1e-5)
    apart = interval_of(found)
    together = interval_of(average("both", [named("low"), named("high")]))
    assert apart is not None
    assert together is not None
    assert apart.width > together.width


def test_an_average_is_judged_as_the_best_of_its_members_where_it_cannot_be_judged_itself() -> None:
    sound = named("sound")
    td = msgspec.structs.replace(
        sound.measurements.td, td_rms_held_out=2 * sound.measurements.td.td_rms_trained
    )
    asked = replace(named("asked"), measurements=msgspec.structs.replace(sound.measurements, td=td))
    found = average("both", [asked, sound])
    assert set(found.members) == {"asked", "sound"}
    verdicts = judge_run([found, asked, sound]).verdicts
    assert "held_out_td" in verdicts["asked"].checks
    assert "held_out_td" not in verdicts["both"].checks


@pytest.mark.parametrize("missed, against", [(0.6, True), (-0.6, False)])
def test_what_one_member_has_wrong_is_in_the_average_by_its_weight(missed: float, against: bool) -> None:
    """An error of the other sign in the other member takes it away; a member without any does not."""
    both = []
    for name, start_td in (("one", 0.6), ("other", missed)):
        estimate = named(name)
        half = 0.5 * interval_of(estimate).width
        start = StartFacts(start_td=start_td * half, start_td_error=0.0)
        both.append(
            replace(estimate, measurements=msgspec.structs.replace(estimate.measurements, start=start))
        )
    found = average("both", both)
    assert set(found.members) == {"one", "other"}
    verdicts = judge_run([found, *both]).verdicts
    assert all("start_td" in verdicts[name].checks for name in found.members)
    assert ("start_td" in verdicts["both"].checks) == against


def test_an_average_without_a_measured_part_is_judged_by_its_members_there() -> None:
    both = [named("one"), named("other")]
    facts = msgspec.structs.replace(both[0].measurements.chance, negative_visits=0.4)
    both = [replace(e, measurements=msgspec.structs.replace(e.measurements, chance=facts)) for e in both]
    assert "state_coverage" in judge_run([average("both", both), *both]).verdicts["both"].checks
    none = replace(both[0], measurements=msgspec.structs.replace(both[0].measurements, start=None))
    assert average("both", [none, both[1]]).measurements.start is None


def test_where_no_estimate_is_fit_for_use_the_average_is_not_either() -> None:
    both = [named("one", shift=1e3), named("other", shift=2e3)]
    found = average("both", both)
    assert judge_run([found, *both]).verdict.word == "do not use"


def test_an_answered_question_asks_for_care_no_longer_but_a_fault_stays_one() -> None:
    sound = named("sound")
    for share, told in ((0.4, (True, False)), (0.7, (True, True))):
        facts = msgspec.structs.replace(sound.measurements.chance, negative_visits=share)
        asked = replace(sound, measurements=msgspec.structs.replace(sound.measurements, chance=facts))
        found = (judge_run([asked], accepted).verdict for accepted in ((), ("state_coverage",)))
        assert tuple("state_coverage" in verdict.checks for verdict in found) == told


def test_only_checks_that_exist_can_be_accepted() -> None:
    check_accepted(["unexplained_ends"])
    with pytest.raises(InputError, match="'ends' is unknown; expected some of"):
        check_accepted(["ends"])


def test_records_of_unequal_length_are_put_side_by_side_by_the_share_of_the_steps() -> None:
    long = named("long")
    short = replace(
        long,
        estimator="short",
        steps=10,
        recorded_steps=np.array([5, 10]),
        trajectory=np.stack([np.zeros(len(long.seeds)), np.ones(len(long.seeds))]),
    )
    found = average("both", [short, long])
    assert found.trajectory.shape == long.trajectory.shape
    expected = found.members["short"] * 1.0 + found.members["long"] * long.trajectory[-1]
    np.testing.assert_allclose(found.trajectory[-1], expected)
