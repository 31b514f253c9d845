"""The confusion table, counted on records whose outcome is plain."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.test_coverage import record
from kmifqe.experiments.verdicts import confusion, rows_of, verdicts_record

FACTS = {
    "rows_logged": 3000,
    "rows_used": 3000,
    "rows_in_sample": 2000,
    "rows_without_next_state": 0,
    "rows_without_next_action": 1000,
    "episodes": 1000,
    "episode_longest": 3,
    "episodes_terminated": 0,
    "episodes_at_longest": 1000,
    "episodes_at_longest_terminated": 0,
    "episodes_per_length_below_longest": 0.0,
    "atom_share": 0.0,
    "atom_shares": [0.0],
    "reward_mean": 2.0,
    "reward_std": 5.0,
    "reward_low": -20.0,
    "reward_high": 20.0,
    "return_std": 4.0,
}


def judged(number: int, values: list[float], truth: float, seed: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a record with one FQE estimate of these values."""
    told_width = changes.pop("told_width", 1.0)
    told = record(number, values, truth, **changes)
    told["problem"] |= {"seed": seed, "told_width": told_width}
    told["judged"][0]["measurements"] = FACTS | told["judged"][0].get("facts", {})
    return told


GOOD = [1.9, 2.0, 2.1]
WILD = [1.9, 2.0, 90.0]  # one seed outside the rewards


def test_verdicts_are_counted_against_what_came_true():
    rows = rows_of([judged(0, GOOD, 2.1), judged(1, GOOD, 9.0), judged(2, WILD, 2.0, hopeless=True)])
    assert [row.word for row in rows] == ["trustworthy", "trustworthy", "do not use"]
    assert [row.inside for row in rows] == [True, False, True]
    trusted, careful, refused = confusion(rows)
    assert (trusted["estimates"], trusted["inside"], trusted["inside_share"]) == (2, 1, 0.5)
    assert trusted["inside_90_share"] == 0.5
    assert (trusted["large_errors"], trusted["hopeless"]) == (1, 0)
    assert trusted["median_scaled_error"] == pytest.approx(0.5 * (0.1 + 7.0) / 4.0)
    assert (careful["estimates"], careful["inside_share"]) == (0, None)
    assert (refused["estimates"], refused["hopeless"]) == (1, 1)
    assert "reward_range" in rows[2].named


def test_only_problems_that_no_threshold_was_set_on_are_reported():
    rows = rows_of([judged(0, GOOD, 2.1, seed=4), judged(1, GOOD, 9.0, seed=7)])
    told = verdicts_record(rows, "smoke", 2)
    assert [line["estimates"] for line in told["reported"]] == [1, 0, 0]
    assert told["reported"][0]["inside"] == 0
    assert told["calibrated_on"][0]["inside"] == 1
    assert told["by_estimator"]["kmifqe"] == told["reported"]
    assert [row["problem"] for row in told["estimates"]] == ["problem 0", "problem 1"]


def test_an_estimate_without_a_number_has_a_large_error_and_no_interval():
    (row,) = rows_of([judged(0, [float("nan")] * 3, 2.0)])
    assert (row.large, row.inside, row.half_width, row.word) == (True, False, None, "do not use")
