from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from kmifqe.experiments.paper_tables import error_of_mean

VALUES = [1.1, 0.7, 1.6, 0.9, 1.2, 1.4, 0.2]
TRUTH = 1.3


@pytest.mark.parametrize("count", range(1, len(VALUES) + 1))
def test_it_is_the_rmse_over_every_choice_of_so_many_seeds(count):
    means = [np.mean(chosen) for chosen in combinations(VALUES, count)]
    over_choices = math.sqrt(np.mean((np.array(means) - TRUTH) ** 2))
    assert error_of_mean(VALUES, TRUTH, count)[0] == pytest.approx(over_choices, rel=1e-12)


def test_the_standard_error_of_single_seeds_is_that_of_a_mean_of_squares():
    squares = (np.array(VALUES) - TRUTH) ** 2
    expected = squares.std(ddof=1) / math.sqrt(len(squares)) / (2.0 * math.sqrt(squares.mean()))
    assert error_of_mean(VALUES, TRUTH, 1)[1] == pytest.approx(expected, rel=1e-9)


def test_its_square_is_unbiased_and_its_standard_error_is_the_spread_over_repeated_experiments():
    rng = np.random.default_rng(0)
    bias, spread, seeds, count = 0.5, 0.4, 10, 4
    found = np.array([error_of_mean(rng.normal(bias, spread, seeds), 0.0, count) for _ in range(2_000)])
    squares = found[:, 0] ** 2
    standard_error = squares.std() / math.sqrt(len(squares))
    assert abs(squares.mean() - (bias**2 + spread**2 / count)) < 3 * standard_error
    assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.1)


def test_a_seed_that_diverged_leaves_no_error_and_more_seeds_than_there_are_is_refused():
    assert error_of_mean([1.0, math.nan, 1.2], 1.0, 2) == (math.inf, 0.0)
    with pytest.raises(ValueError, match="count is 4; expected 1 to 3"):
        error_of_mean([1.0, 1.1, 1.2], 1.0, 4)
