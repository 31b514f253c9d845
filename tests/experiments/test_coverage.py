"""The coverage study's counting, on records whose outcome is plain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from kmifqe.experiments.coverage import coverage_record, groups, rows_of, share_interval, summary
from kmifqe.trust.interval import WIDER


def record(number: int, values: list[float], truth: float, **changes: Any) -> dict[str, Any]:
    """Return what `trust_run` writes of a problem, as far as the study reads it."""
    estimate = {
        "estimator": "kmifqe",
        "config": {},
        "gamma": 0.9,
        "seeds": list(range(len(values))),
        "steps": 1,
        "values": values,
        "trajectory": {"step": [1], "value": [values]},
        "seconds": 1.0,
        "device": "cpu",
        "bootstrap": True,
    }
    shape = {"world": "lqr", "state_dim": 2, "action_dim": 1, "episodes": 1000, "length": 3}
    return {
        "description": f"problem {number}",
        "number": number,
        "problem": {"shape": shape, "told_width": changes.pop("told_width", 1.0)},
        "truth": truth,
        "truth_error": 0.0,
        "overlap": 0.2,
        "hopeless": False,
        "judged": [{"estimate": estimate, "measurements": {"return_std": 2.0, "episodes": 1000}}],
    } | changes


def test_an_interval_that_holds_the_truth_is_counted() -> None:
    rows = rows_of(
        [record(0, [1.0, 2.0, 3.0], 2.5), record(1, [1.0, 2.0, 3.0], 20.0), record(2, [1.0, 2.0, 3.0], -9.0)]
    )
    line = summary(rows, "these")
    assert [row.inside for row in rows] == [True, False, False]
    assert (line["problems"], line["covered"], line["too_low"], line["too_high"]) == (3, 1, 1, 1)
    half = stats.t.ppf(0.95, 1 / (1 / 2 + 1 / 999)) * np.sqrt(4 / 3 * 1001 / 999) * WIDER
    assert line["median_width"] == pytest.approx(2 * half / 2.0)
    assert line["median_error"] == pytest.approx(11.0 / 2)


def test_a_problem_that_was_told_a_wrong_density_is_no_part_of_it() -> None:
    assert rows_of([record(0, [1.0, 2.0], 1.5, told_width=1.6)]) == []


def test_a_seed_that_diverged_counts_against_coverage() -> None:
    (row,) = rows_of([record(0, [1.0, None, 3.0], 2.0)])  # type: ignore[list-item]
    assert (row.low, row.inside, row.scaled_width) == (None, False, np.inf)
    assert summary([row], "these")["without_interval"] == 1


def test_hopeless_problems_are_told_apart_and_counted_too() -> None:
    rows = rows_of([record(0, [1.0, 2.0], 1.5), record(1, [1.0, 2.0], 99.0, hopeless=True, overlap=1e-4)])
    tables = groups(rows)
    judged, apart, everything = tables["all"]
    assert (judged["problems"], judged["share"]) == (1, 1.0)
    assert (apart["problems"], apart["share"]) == (1, 0.0)
    assert everything["problems"] == 2
    assert sum(line["problems"] for line in tables["overlap"]) == 1
    told = coverage_record(rows, "smoke", ["study", "coverage"])
    assert len(told["estimates"]) == 2
    assert list(told["tables"]) == ["kmifqe"]


def test_the_share_is_known_as_well_as_wilson_says() -> None:
    low, high = share_interval(180, 200)
    expected = stats.binomtest(180, 200).proportion_ci(method="wilson")
    assert (low, high) == (pytest.approx(expected.low, abs=1e-4), pytest.approx(expected.high, abs=1e-4))
    assert share_interval(0, 0) == (0.0, 1.0)
