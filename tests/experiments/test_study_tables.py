"""What is counted on records of a plain outcome: coverage, verdicts and their power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments.study_records import FACTS, lqr_settings, record
from kmifqe.experiments.problems_gym import GymProblem
from kmifqe.experiments.study_tables import (
    ANY,
    by_kind,
    choices,
    confusion,
    coverage,
    group,
    groups,
    judge,
    power,
    share_interval,
    verdicts,
)
from kmifqe.trust.interval import LEAST_ERROR

GOOD = [1.9, 2.0, 2.1]
WILD = [1.9, 2.0, 90.0]  # one seed outside the rewards
HOPPER = GymProblem(
    task="hopper",
    target="target",
    behavior="target",
    noise=0.3,
    transitions=100,
    truth_episodes=1,
    gamma=0.99,
    seed=1,
    half="report",
)


def test_an_interval_that_holds_the_truth_is_counted() -> None:
    rows = judge(
        [record(0, [1.0, 2.0, 3.0], 2.5), record(1, [1.0, 2.0, 3.0], 20.0), record(2, [1.0, 2.0, 3.0], -9.0)]
    )
    line = group(rows, "these")
    assert [row.inside_90 for row in rows] == [True, False, False]
    assert (line["problems"], line["covered"], line["too_low"], line["too_high"]) == (3, 1, 1, 1)
    parts = {1 / (1 / 2 + 1 / 999): 4 / 3 * 1001 / 999, 999: (LEAST_ERROR * FACTS.log.value_unit) ** 2}
    variance = sum(parts.values())
    freedom = variance**2 / sum(part**2 / freedom for freedom, part in parts.items())
    half = stats.t.ppf(0.95, freedom) * np.sqrt(variance)
    assert line["median_width"] == pytest.approx(2 * half / FACTS.log.return_std)
    assert line["median_error"] == pytest.approx(11.0 / FACTS.log.return_std)


def test_a_problem_that_was_told_a_wrong_density_is_no_part_of_coverage() -> None:
    wrong = record(0, [1.0, 2.0], 1.5, settings=lqr_settings(told_width=1.6))
    assert coverage(judge([wrong]), "smoke", []).estimates == []


def test_a_seed_that_diverged_counts_against_coverage() -> None:
    (row,) = judge([record(0, [1.0, float("nan"), 3.0], 2.0)])
    assert (row.interval_90, row.inside_90, row.scaled_width) == (None, False, np.inf)
    assert group([row], "these")["without_interval"] == 1


def test_hopeless_problems_are_told_apart_and_counted_too() -> None:
    rows = judge([record(0, [1.0, 2.0], 1.5), record(1, [1.0, 2.0], 99.0, hopeless=True, overlap=1e-4)])
    tables = groups(rows)
    judged, apart, everything = tables["all"]
    assert (judged["problems"], judged["share"]) == (1, 1.0)
    assert (apart["problems"], apart["share"]) == (1, 0.0)
    assert everything["problems"] == 2
    assert all(sum(line["problems"] for line in tables[name]) == 1 for name in tables if name != "all")


def test_problems_are_grouped_by_actions_task_discount_and_ends() -> None:
    two = record(1, GOOD, 2.0, settings=HOPPER)
    rows = judge([record(0, GOOD, 2.0), two, record(2, GOOD, 2.0, settings=lqr_settings(gamma=0.98))])
    rows[1].has_ends = True
    tables = groups(rows)
    counts = {name: [line["problems"] for line in tables[name]] for name in ("kind", "gamma", "ends")}
    assert counts == {"kind": [2, 1], "gamma": [1, 1, 1], "ends": [1, 2]}
    assert [line["group"] for line in by_kind(rows, group)] == ["lqr, 1 action", "hopper"]


def test_coverage_keeps_both_halves_apart() -> None:
    chosen = record(0, GOOD, 2.0, settings=lqr_settings(half="choose"))
    told = coverage(judge([chosen, record(1, GOOD, 99.0)]), "smoke", ["study", "coverage"])
    shares = {half: tables["kmifqe"]["all"][0]["share"] for half, tables in told.tables.items()}
    assert shares == {"choose": 1.0, "report": 0.0}
    assert len(told.estimates) == 2


def test_choices_are_held_against_an_average_and_an_oracle() -> None:
    records = []
    for number, (one, other) in enumerate(((2.4, 1.0), (1.2, 2.4))):
        both = record(number, [one - 0.1, one, one + 0.1], 2.0)
        twin = record(number, [other - 0.1, other, other + 0.1], 2.0)
        both.estimates.append(replace(twin.estimates[0], estimator="fqe"))
        records.append(both)
    lines = {line["choice"]: line for line in choices(judge(records))}
    assert list(lines) == ["auto", "kmifqe", "fqe", "plain average", "the nearest, by an oracle"]
    unit = FACTS.log.value_unit
    assert lines["kmifqe"]["rmse"] == pytest.approx(np.sqrt((0.4**2 + 0.8**2) / 2) / unit)
    assert lines["plain average"]["rmse"] == pytest.approx(np.sqrt((0.3**2 + 0.2**2) / 2) / unit)
    assert lines["the nearest, by an oracle"]["median"] == pytest.approx(0.4 / unit)


def test_the_share_is_known_as_well_as_wilson_says() -> None:
    low, high = share_interval(180, 200)
    expected = stats.binomtest(180, 200).proportion_ci(method="wilson")
    assert (low, high) == (pytest.approx(expected.low, abs=1e-4), pytest.approx(expected.high, abs=1e-4))
    assert share_interval(0, 0) == (0.0, 1.0)


def test_verdicts_are_counted_against_what_came_true() -> None:
    rows = judge([record(0, GOOD, 2.1), record(1, GOOD, 9.0), record(2, WILD, 2.0, hopeless=True)])
    assert [row.verdict for row in rows] == ["trustworthy", "trustworthy", "do not use"]
    assert [row.inside for row in rows] == [True, False, True]
    trusted, careful, refused = confusion(rows)
    assert (trusted["estimates"], trusted["inside"], trusted["inside_share"]) == (2, 1, 0.5)
    assert trusted["inside_90_share"] == 0.5
    assert (trusted["small_errors"], trusted["large_errors"], trusted["hopeless"]) == (1, 1, 0)
    assert trusted["median_scaled_error"] == pytest.approx(0.5 * (0.1 + 7.0) / 4.0)
    assert (careful["estimates"], careful["inside_share"]) == (0, None)
    assert (refused["estimates"], refused["hopeless"]) == (1, 1)
    assert "reward_range" in rows[2].against


def test_power_is_the_share_of_small_errors_that_is_trusted() -> None:
    # Errors of 0.1, 7 and 0 in rewards, of which a spread of 4 makes the first and the last small.
    rows = judge([record(0, GOOD, 2.1), record(1, GOOD, 9.0), record(2, [1.9, 2.0, 2.1], 2.0)])
    rows[2].verdict = "use with care"
    line = power(rows, "these")
    assert (line["estimates"], line["small"], line["small_trusted"], line["power"]) == (3, 2, 1, 0.5)
    assert (line["trusted"], line["trusted_inside"]) == (2, 1)
    assert power([], "none")["power"] is None


def test_power_leaves_hopeless_and_misled_problems_out_and_shows_them_besides() -> None:
    rows = judge(
        [
            record(0, GOOD, 2.0),
            record(1, GOOD, 2.0, hopeless=True),
            record(2, GOOD, 2.0, settings=lqr_settings(told_width=0.6)),
        ]
    )
    lines = {line["group"]: line for line in verdicts(rows, "smoke").tables["report"][ANY]["power"]}
    assert lines["not hopeless"]["estimates"] == lines["lqr, 1 action"]["estimates"] == 1
    assert lines["hopeless ones too"]["estimates"] == 2


def test_verdicts_keep_both_halves_apart() -> None:
    rows = judge([record(0, GOOD, 2.1, settings=lqr_settings(half="choose")), record(1, GOOD, 9.0)])
    told = verdicts(rows, "smoke")
    inside = {half: tables["kmifqe"]["confusion"][0]["inside"] for half, tables in told.tables.items()}
    assert inside == {"choose": 1, "report": 0}
    assert told.tables["report"][ANY] == told.tables["report"]["kmifqe"]
    assert [row.facts.description for row in told.estimates] == ["problem 0", "problem 1"]


def test_an_estimate_without_a_number_has_a_large_error_and_no_interval() -> None:
    (row,) = judge([record(0, [float("nan")] * 3, 2.0)])
    assert (row.large, row.small, row.inside, row.interval_90) == (True, False, False, None)
    assert row.verdict == "do not use"
