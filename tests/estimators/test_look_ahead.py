"""What a target network says of every row, against the same asked row by row."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import chain_problem, lqr_problem, quick, run
from kmifqe.estimators.base import network_input
from kmifqe.estimators.kmifqe.target import CHUNK, Ahead, Reading, changes, look_ahead, new_values
from kmifqe.maths import mlp
from kmifqe.maths.metric import metric_root
from kmifqe.mdp.problem import Problem

FLOOR = 0.1


@cache
def two_dimensions() -> Problem:
    return lqr_problem(dummies=1)[0]


def network(problem: Problem, seed: int) -> mlp.QParams:
    params = mlp.init_q(jax.random.key(seed), problem.state_dim + problem.action_dim, 32)
    return jax.tree.map(lambda p: 2.0 * p, params)


@partial(jax.jit, static_argnums=(2, 3))
def seen(params: mlp.QParams, problem: Problem, factors: int, floor: float | None) -> Ahead:
    return look_ahead(params, problem, factors, floor, Reading("float32"))


@cache
def seen_in_two_dimensions(factors: int, floor: float | None = FLOOR) -> Ahead:
    return seen(network(two_dimensions(), 0), two_dimensions(), factors, floor)


def row_by_row(params: mlp.QParams, problem: Problem) -> tuple[np.ndarray, ...]:
    """Return z, tr H, Q̄(s', a') and Q̄(s', π̃(s')) of the rows that go on."""
    n, d = problem.counts.going_on, problem.action_dim
    half = 0.5 * (problem.action_high - problem.action_low)

    def one(state: jax.Array, action: jax.Array, target: jax.Array) -> tuple[jax.Array, ...]:
        at_target = network_input(problem, state, target, "standardized")
        H = mlp.action_hessian(params, at_target, d)
        z = metric_root(H, FLOOR) @ ((action - target) / half)
        logged = mlp.q_value(params, network_input(problem, state, action, "standardized"))
        return z, jnp.trace(H), logged, mlp.q_value(params, at_target)

    rows = problem.next_states[:n], problem.next_actions[:n], problem.target_actions[:n]
    return tuple(np.asarray(leaf) for leaf in jax.jit(jax.vmap(one))(*rows))


def test_every_row_is_seen_once_though_they_fill_no_whole_chunk() -> None:
    problem = two_dimensions()
    assert problem.counts.going_on > CHUNK["cpu"]
    assert problem.counts.going_on % CHUNK["cpu"]
    z, laplacian, next_value, target_value = row_by_row(network(problem, 0), problem)
    ahead = seen_in_two_dimensions(2)
    np.testing.assert_allclose(ahead.squared, z**2, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ahead.laplacian, laplacian, atol=1e-4)
    np.testing.assert_allclose(ahead.next_value, next_value, atol=1e-4)
    np.testing.assert_allclose(ahead.target_value, target_value, atol=1e-4)


def test_one_factor_is_the_sum_over_the_dimensions() -> None:
    total, each = seen_in_two_dimensions(1).squared, seen_in_two_dimensions(2).squared
    np.testing.assert_allclose(total, np.asarray(each).sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_without_a_metric_distances_are_in_half_action_ranges() -> None:
    problem = two_dimensions()
    n = problem.counts.going_on
    half = 0.5 * (problem.action_high - problem.action_low)
    z = (problem.next_actions[:n] - problem.target_actions[:n]) / half
    identity = seen_in_two_dimensions(2, None)
    np.testing.assert_allclose(identity.squared, z**2, rtol=1e-5, atol=1e-7)
    assert np.abs(np.asarray(identity.squared) - seen_in_two_dimensions(2).squared).max() > 0.1
    np.testing.assert_allclose(identity.laplacian, seen_in_two_dimensions(2).laplacian, atol=1e-5)


def test_new_values_are_those_of_the_new_network_and_the_metric_stays() -> None:
    problem = two_dimensions()
    old, params = seen_in_two_dimensions(2), network(problem, 1)
    new = jax.jit(partial(new_values, reading=Reading("float32")))(params, problem, old)
    np.testing.assert_array_equal(new.squared, old.squared)
    np.testing.assert_array_equal(new.laplacian, old.laplacian)
    np.testing.assert_array_equal(new.target_value, old.target_value)
    anew = seen(params, problem, 2, FLOOR)
    np.testing.assert_allclose(new.next_value, anew.next_value, atol=1e-5)
    assert np.abs(np.asarray(new.next_value) - old.next_value).max() > 0.1


def test_nothing_is_seen_beyond_a_terminal_row() -> None:
    problem = chain_problem(terminated=True)
    going_on = problem.counts.going_on
    assert 0 < going_on < problem.counts.in_sample
    ahead = seen(network(problem, 0), problem, 1, None)
    assert ahead.squared.shape == (going_on, 1)
    for field in (ahead.laplacian, ahead.next_value, ahead.target_value):
        assert (np.asarray(field)[going_on:] == 0.0).all()
        assert (np.asarray(field)[:going_on] != 0.0).all()


def test_rows_in_host_memory_are_seen_alike() -> None:
    problem = chain_problem(terminated=True)
    params = network(problem, 0)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        seen(params, problem, 1, None),
        seen(params, problem.on_host(), 1, None),
    )


def test_a_network_that_reads_cut_actions_sees_the_edge_of_the_box_beyond_it() -> None:
    problem = two_dimensions()
    n, params = problem.counts.going_on, network(problem, 0)
    low, high = problem.action_low, problem.action_high
    beyond = np.asarray(((problem.next_actions < low) | (problem.next_actions > high)).any(axis=1))[:n]
    assert 0.1 < beyond.mean() < 0.9
    look = jax.jit(partial(look_ahead, factors=1, metric_floor=None, reading=Reading("float32", True)))
    cut, raw = look(params, problem), seen(params, problem, 1, None)
    inside = replace(problem, next_actions=jnp.clip(problem.next_actions, low, high))
    np.testing.assert_allclose(cut.next_value, seen(params, inside, 1, None).next_value, rtol=1e-5, atol=1e-6)
    assert np.abs(np.asarray(cut.next_value - raw.next_value)[:n][beyond]).min() > 0
    np.testing.assert_array_equal(cut.squared, raw.squared)  # the density is that of the action as drawn


@pytest.mark.parametrize(
    "setting, left",
    [
        ({"bias": "subtracted"}, 0.0),
        ({"bias": "held", "bias_step": 750}, 0.0),
        ({"bias": "held", "bias_step": 750, "bias_share": 0.5}, 0.5),
    ],
)
def test_the_kernels_bias_is_reported_and_where_asked_subtracted(
    setting: dict[str, Any], left: float
) -> None:
    """On a quadratic Q there is no other: without it V̂ lands on the value, not on the relaxed fixed point."""
    h = 0.6
    problem, world, truth = lqr_problem(dummies=1)
    shift = world.relaxation_shift(h, np.eye(2))
    result = run(quick("kmifqe-identity", bandwidth=h, **setting), problem)
    assert abs(result.value - truth - left * shift) < 0.25 * abs(shift)
    assert result.infos["bias"][-1].mean() == pytest.approx(shift, rel=0.25)


def test_a_held_bias_is_that_of_the_mean_network_up_to_its_step() -> None:
    estimator = quick("kmifqe", bias="held", bias_step=60, target_period=50, metric_period=2)
    kinds = [estimator.refresh_kind(step) for step in range(50, 301, 50)]
    assert kinds == ["all, averaging", "all, bias", "values", "all, bias", "values", "all, bias"]
    assert [quick("kmifqe").refresh_kind(step) for step in (50, 100)] == ["all", "all"]

    problem, _, _ = lqr_problem()
    # A twentieth of the steps up to there holds two copies.
    estimator = quick("kmifqe", bias="held", bias_step=2_000, target_period=50)
    state = estimator.init(jax.random.key(0), problem)
    learned = state._replace(params=network(problem, 1))
    averaged = estimator.refresh("all, averaging", learned, problem)
    mean = jax.tree.map(lambda old, new: 0.5 * old + 0.5 * new, state.params, learned.params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), averaged.bent, mean)
    np.testing.assert_array_equal(averaged.ahead.bend, 0.0)
    held = estimator.refresh("all, bias", averaged, problem)
    assert held.bent is averaged.bent
    expected = changes(mean, problem, Reading("mixed", False))
    np.testing.assert_allclose(held.ahead.bend, expected, rtol=1e-4, atol=1e-5)
