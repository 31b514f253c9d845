"""DOPE's scores, on rankings whose scores are known."""

from __future__ import annotations

import numpy as np
import pytest

from kmifqe.trust.scores import dope_scores, regret

TRUTHS = np.array([10.0, 20.0, 30.0, 50.0])


def test_a_perfect_ranking_has_no_regret_and_no_error() -> None:
    scores = dope_scores(TRUTHS, TRUTHS)
    assert scores.rank_correlation.value == pytest.approx(1.0)
    assert scores.regret_1.value == scores.regret_5.value == scores.absolute_error.value == 0.0
    assert scores.policies == 4


def test_a_ranking_upside_down_has_the_regret_of_the_worst() -> None:
    scores = dope_scores(-TRUTHS, TRUTHS)
    assert scores.rank_correlation.value == pytest.approx(-1.0)
    assert scores.regret_1.value == 1.0
    assert scores.regret_3.value == pytest.approx(0.5)  # (50 − 30)/(50 − 10)
    assert scores.regret_5.value == 0.0


def test_errors_are_in_units_of_the_range_of_the_truths_and_capped() -> None:
    assert dope_scores(TRUTHS + 4.0, TRUTHS).absolute_error.value == pytest.approx(0.1)
    wild = dope_scores(np.array([10.0, 20.0, 30.0, 1e9]), TRUTHS)
    assert wild.absolute_error.value == pytest.approx((2.0 - 1.0) / 4)


def test_an_estimate_that_diverged_is_the_last_choice() -> None:
    scores = dope_scores(np.array([np.nan, 2.0, 3.0, 5.0]), TRUTHS)
    assert scores.regret_1.value == 0.0
    assert dope_scores(np.array([1.0, 2.0, 3.0, np.nan]), TRUTHS).regret_1.value == pytest.approx(0.5)


def test_estimates_that_do_not_differ_have_no_rank_correlation() -> None:
    assert dope_scores(np.zeros(4), TRUTHS).rank_correlation is None


def test_bootstrap_intervals_hold_their_score() -> None:
    rng = np.random.default_rng(0)
    truths = rng.standard_normal(30)
    scores = dope_scores(truths + rng.standard_normal(30), truths)
    assert scores.rank_correlation.low < scores.rank_correlation.value < scores.rank_correlation.high
    assert regret(truths, truths, 1) == 0.0


def test_a_policy_without_a_place_comes_last_and_its_error_still_counts() -> None:
    wild = np.array([100.0, *TRUTHS[1:]])  # the worst policy seems to be the best
    everyone, apart = dope_scores(wild, TRUTHS), dope_scores(wild, TRUTHS, ranked=np.arange(len(TRUTHS)) > 0)
    assert everyone.regret_1.value == 1.0
    assert apart.regret_1.value == 0.0
    assert apart.rank_correlation.value == pytest.approx(1.0)
    assert apart.absolute_error == everyone.absolute_error
