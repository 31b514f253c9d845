"""Units for values, rewards and inputs."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import chain_problem, lqr_problem
from kmifqe.estimators.base import ValueUnits, in_unit, input_scale, value_units
from kmifqe.mdp.problem import Problem


def with_largest(reward: float) -> Problem:
    problem, _, _ = lqr_problem()
    return replace(problem, rewards=jnp.array([0.0, reward, -0.5 * reward]))


@pytest.mark.parametrize("largest", [0.0, 1 / 64, -1.0, 16.3, 1024.0])
def test_ordinary_rewards_are_learned_as_they_are(largest: float) -> None:
    assert value_units(with_largest(largest), "rewards") == (0.0, 1.0)


@pytest.mark.parametrize(
    "largest, unit", [(1025.0, 2**10), (-1e6, 2**19), (3e38, 2.0**127), (0.01, 2**-7), (1e-30, 2.0**-100)]
)
def test_extreme_rewards_are_learned_in_the_power_of_two_below_them(largest: float, unit: float) -> None:
    assert value_units(with_largest(largest), "rewards") == (0.0, np.float32(unit))


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


@pytest.mark.parametrize("center, scale", [(0.0, 1.0), (-3.0, 0.5), (200.0, 7.0)])
def test_in_any_units_the_bellman_equation_is_the_same_one(center: float, scale: float) -> None:
    units, gamma = ValueUnits(jnp.float32(center), jnp.float32(scale)), jnp.float32(0.9)
    rewards, beyond = jnp.array([1.0, -2.0, 5.0]), jnp.array([0.3, -0.7, 2.0])
    goal = units.reward(rewards, gamma) + gamma * beyond
    np.testing.assert_allclose(units.value(goal), 0.1 * rewards + 0.9 * units.value(beyond), rtol=1e-4)
    at_an_end = units.reward(rewards, gamma) + gamma * units.end
    np.testing.assert_allclose(units.value(at_an_end), 0.1 * rewards, atol=1e-4)


@pytest.mark.parametrize("terminated", [True, False])
def test_values_are_cut_to_the_rewards_and_to_a_single_one_where_episodes_end(terminated: bool) -> None:
    problem = chain_problem(terminated=terminated)  # a reward of 1 on every row
    units = ValueUnits(jnp.float32(5.0), jnp.float32(2.0))
    f = jnp.array([-100.0, -2.25, 100.0])  # Q = −195, ½ and 205
    least = 1.0 - float(problem.gamma) if terminated else 1.0
    np.testing.assert_allclose(
        units.value(units.bounded(f, problem)), [least, max(0.5, least), 1.0], atol=1e-5
    )


def test_unnormalised_units_are_sums_of_rewards() -> None:
    problem, _, _ = lqr_problem(0.8)
    normalized, summed = (value_units(problem, "rewards", normalized=each) for each in (True, False))
    assert float(summed.scale) == pytest.approx(0.2 * float(normalized.scale))
    rewards = problem.rewards[:5]
    np.testing.assert_allclose(summed.reward(rewards, problem.gamma), rewards, rtol=1e-5)


def test_units_of_returns_are_the_problems_own() -> None:
    problem, _, _ = lqr_problem()
    assert value_units(problem, "returns") == (problem.value_center, problem.value_scale)
