"""The studies: which problems are run, what is kept of them, and what is counted on records of a plain outcome."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate
from kmifqe.experiments import study
from kmifqe.experiments.problems_family import Facts, FamilyProblem, Shape
from kmifqe.experiments.records import made_here
from kmifqe.experiments.study import (
    PRESETS,
    ProblemRecord,
    confusion,
    coverage,
    group,
    groups,
    judge,
    part_of,
    preset_named,
    run_missing,
    shard_of,
    share_interval,
    verdicts,
)
from kmifqe.mdp.problem import RowCounts
from kmifqe.trust.checks import Measurements
from kmifqe.trust.checks.log import LogFacts
from kmifqe.trust.interval import WIDER

SMOKE = PRESETS["smoke"]
FACTS = Measurements(
    log=LogFacts(
        rows=RowCounts(3000, 3000, 2000, 0, 1000, 0, 1000),
        episode_longest=3,
        episodes_at_longest=1000,
        episodes_at_longest_terminated=0,
        episodes_per_length_below_longest=0.0,
        atom_share=0.0,
        atom_shares=[0.0],
        reward_mean=2.0,
        reward_std=5.0,
        reward_low=-20.0,
        reward_high=20.0,
        return_std=4.0,
    ),
    uses_density=False,
)
SHAPE = Shape("lqr", 2, 1, episodes=1000, length=3)


def record(
    number: int, values: list[float], truth: float, *, told_width: float = 1.0, seed: int = 1, **changes: Any
) -> ProblemRecord:
    """Return the record of a problem with one estimate of these values."""
    estimate = Estimate(
        estimator="kmifqe",
        config={},
        gamma=0.9,
        seeds=tuple(range(len(values))),
        steps=1,
        values=np.array(values),
        recorded_steps=np.array([1]),
        trajectory=np.array([values]),
        infos={},
        seconds=1.0,
        device="cpu",
        bootstrap=True,
        episodes=1000,
        measurements=FACTS,
    )
    problem = FamilyProblem(SHAPE, seed, width=1.0, departure=0.0, told_width=told_width)
    known = {"description": f"problem {number}", "overlap": 0.2, "hopeless": False} | changes
    facts = Facts(problem, truth=truth, truth_error=0.0, **known)
    return ProblemRecord(preset="smoke", **made_here(), number=number, facts=facts, estimates=[estimate])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the problems that were run, in order; each run costs nothing."""
    asked = []

    def canned(preset: study.StudyPreset, number: int) -> ProblemRecord:
        asked.append(number)
        description = preset.items()[number].description
        return record(number, [1.0, 2.0, float("nan")], 2.0, description=description)

    monkeypatch.setattr(study, "run_problem", canned)
    return asked


def test_shards_share_the_problems_out_and_nothing_is_run_twice(tmp_path, runs):
    items = SMOKE.items()
    said = []
    half = len(items) // 2
    assert len(run_missing(SMOKE, tmp_path, (1, 2), said.append)) == half
    assert runs == list(range(half))
    assert len(run_missing(SMOKE, tmp_path, (2, 2))) == len(items)
    assert len(run_missing(SMOKE, tmp_path)) == len(items) == len(runs)
    assert [r.number for r in run_missing(SMOKE, tmp_path)] == list(range(len(items)))
    assert said[0].startswith(f"1 of {len(items)}: {items[0].description}")


def test_records_are_strict_json_and_estimates_read_back(tmp_path, runs):
    (first, *_) = run_missing(SMOKE, tmp_path)
    (estimate,) = first.estimates
    np.testing.assert_array_equal(estimate.values, [1.0, 2.0, np.nan])
    assert estimate.trajectory.shape == (1, 3)
    assert (estimate.diverged, estimate.bootstrap, estimate.episodes) == (1, True, 1000)


def test_a_file_that_is_no_record_is_refused(tmp_path, runs):
    for text in ("{", '{"schema": "other"}', "[]"):
        (tmp_path / "smoke-0000.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"smoke-0000\.json"):
            run_missing(SMOKE, tmp_path)


def test_presets_hold_problems_told_a_wrong_density_and_200_told_the_right_one():
    full = preset_named("full").items()
    right = [item for item in full if item.told_width == 1.0]
    assert len(right) >= 200
    assert {item.told_width for item in full} == {1.0, 0.6, 1.6}
    with pytest.raises(InputError, match="expected one of smoke, full"):
        preset_named("huge")


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "a/b", "1/"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="expected I/N"):
        shard_of(text)
    assert shard_of("2/8") == (2, 8)


def test_a_shard_has_neighbours_in_shape_and_all_shards_together_have_everything():
    items = PRESETS["full"].items()
    parts = [part_of(items, (i, 15)) for i in range(1, 16)]
    assert sorted(number for part in parts for number in part) == list(range(len(items)))
    assert max(len({items[number].shape for number in part}) for part in parts) <= 2


def test_an_interval_that_holds_the_truth_is_counted() -> None:
    rows = judge(
        [record(0, [1.0, 2.0, 3.0], 2.5), record(1, [1.0, 2.0, 3.0], 20.0), record(2, [1.0, 2.0, 3.0], -9.0)]
    )
    line = group(rows, "these")
    assert [row.inside_90 for row in rows] == [True, False, False]
    assert (line["problems"], line["covered"], line["too_low"], line["too_high"]) == (3, 1, 1, 1)
    half = stats.t.ppf(0.95, 1 / (1 / 2 + 1 / 999)) * np.sqrt(4 / 3 * 1001 / 999) * WIDER
    assert line["median_width"] == pytest.approx(2 * half / FACTS.log.return_std)
    assert line["median_error"] == pytest.approx(11.0 / FACTS.log.return_std)


def test_a_problem_that_was_told_a_wrong_density_is_no_part_of_it() -> None:
    assert coverage(judge([record(0, [1.0, 2.0], 1.5, told_width=1.6)]), "smoke", []).estimates == []


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
    assert sum(line["problems"] for line in tables["overlap"]) == 1
    told = coverage(rows, "smoke", ["study", "coverage"])
    assert len(told.estimates) == 2
    assert list(told.tables) == ["kmifqe"]


def test_the_share_is_known_as_well_as_wilson_says() -> None:
    low, high = share_interval(180, 200)
    expected = stats.binomtest(180, 200).proportion_ci(method="wilson")
    assert (low, high) == (pytest.approx(expected.low, abs=1e-4), pytest.approx(expected.high, abs=1e-4))
    assert share_interval(0, 0) == (0.0, 1.0)


GOOD = [1.9, 2.0, 2.1]
WILD = [1.9, 2.0, 90.0]  # one seed outside the rewards


def test_verdicts_are_counted_against_what_came_true():
    rows = judge([record(0, GOOD, 2.1), record(1, GOOD, 9.0), record(2, WILD, 2.0, hopeless=True)])
    assert [row.verdict for row in rows] == ["trustworthy", "trustworthy", "do not use"]
    assert [row.inside for row in rows] == [True, False, True]
    trusted, careful, refused = confusion(rows)
    assert (trusted["estimates"], trusted["inside"], trusted["inside_share"]) == (2, 1, 0.5)
    assert trusted["inside_90_share"] == 0.5
    assert (trusted["large_errors"], trusted["hopeless"]) == (1, 0)
    assert trusted["median_scaled_error"] == pytest.approx(0.5 * (0.1 + 7.0) / 4.0)
    assert (careful["estimates"], careful["inside_share"]) == (0, None)
    assert (refused["estimates"], refused["hopeless"]) == (1, 1)
    assert "reward_range" in rows[2].against


def test_only_problems_that_no_threshold_was_set_on_are_reported():
    rows = judge([record(0, GOOD, 2.1, seed=4), record(1, GOOD, 9.0, seed=7)])
    told = verdicts(rows, "smoke")
    assert [line["estimates"] for line in told.reported] == [1, 0, 0]
    assert told.reported[0]["inside"] == 0
    assert told.calibrated_on[0]["inside"] == 1
    assert told.by_estimator["kmifqe"] == told.reported
    assert [row.facts.description for row in told.estimates] == ["problem 0", "problem 1"]


def test_an_estimate_without_a_number_has_a_large_error_and_no_interval():
    (row,) = judge([record(0, [float("nan")] * 3, 2.0)])
    assert (row.large, row.inside, row.interval_90, row.verdict) == (True, False, None, "do not use")
