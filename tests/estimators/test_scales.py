"""Units for rewards and inputs: powers of two, and only at the extremes."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import lqr_problem
from kmifqe.estimators.base import in_unit, input_scale, reward_scale
from kmifqe.mdp.problem import Problem


def with_largest(reward: float) -> Problem:
    problem, _, _ = lqr_problem()
    return replace(problem, rewards=jnp.array([0.0, reward, -0.5 * reward]))


@pytest.mark.parametrize("largest", [0.0, 1 / 64, -1.0, 16.3, 1024.0])
def test_ordinary_rewards_are_learned_as_they_are(largest: float) -> None:
    assert reward_scale(with_largest(largest)) == 1.0


@pytest.mark.parametrize(
    "largest, unit", [(1025.0, 2**10), (-1e6, 2**19), (3e38, 2.0**127), (0.01, 2**-7), (1e-30, 2.0**-100)]
)
def test_extreme_rewards_are_learned_in_the_power_of_two_below_them(largest: float, unit: float) -> None:
    assert reward_scale(with_largest(largest)) == np.float32(unit)


def test_only_raw_columns_of_extreme_size_are_divided() -> None:
    problem, _, _ = lqr_problem()
    assert (input_scale(problem, "raw") == 1.0).all()
    large = replace(problem, states=problem.states * 0 + 3e8, actions=problem.actions * 0 + 3e-8)
    np.testing.assert_array_equal(input_scale(large, "raw"), np.float32([2**28, 2**-25]))
    assert (input_scale(large, "standardized") == 1.0).all()
    np.testing.assert_array_equal(input_scale(large.on_host(), "raw"), input_scale(large, "raw"))


def test_a_unit_of_one_leaves_every_bit() -> None:
    x = jnp.array([1.1, -3e38, 1e-30])
    np.testing.assert_array_equal(in_unit(x, jnp.float32(1.0)), x)
    np.testing.assert_array_equal(in_unit(x, jnp.float32(0.5)), x * jnp.float32(2.0))
