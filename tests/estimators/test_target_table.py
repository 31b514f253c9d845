"""What a target network gives for every row, against the same computed row by row."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import chain_problem, lqr_problem, quick, run
from kmifqe.estimators import KMIFQEConfig
from kmifqe.estimators.base import network_input
from kmifqe.estimators.kmifqe.rows import (
    CHUNK,
    TargetTable,
    bootstrap_value,
    build_table,
    for_every_row,
)
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


def config(**settings: Any) -> KMIFQEConfig:
    return KMIFQEConfig(precision="float32", metric_floor=FLOOR, **settings)


@partial(jax.jit, static_argnames=("metric", "each"))
def table_of(
    params: mlp.QParams, problem: Problem, *, metric: bool = False, each: bool = False
) -> TargetTable:
    return build_table(config(clip_per_dimension=each), params, problem, metric=metric)


@cache
def table_in_two_dimensions(*, each: bool = True, metric: bool = True) -> TargetTable:
    return table_of(network(two_dimensions(), 0), two_dimensions(), metric=metric, each=each)


def row_by_row(params: mlp.QParams, problem: Problem) -> tuple[np.ndarray, ...]:
    """Return z, tr H, Q̄(s', a') and Q̄(s', π̃(s')) of the rows that go on."""
    n, d = problem.counts.nonterminal, problem.action_dim
    half = 0.5 * (problem.action_high - problem.action_low)

    def one(state: jax.Array, action: jax.Array, target: jax.Array) -> tuple[jax.Array, ...]:
        at_target = network_input(problem, state, target, "standardized")
        H = mlp.action_hessian(params, at_target, d)
        z = metric_root(H, FLOOR) @ ((action - target) / half)
        logged = mlp.q_value(params, network_input(problem, state, action, "standardized"))
        return z, jnp.trace(H), logged, mlp.q_value(params, at_target)

    rows = problem.next_states[:n], problem.next_actions[:n], problem.target_actions[:n]
    return tuple(np.asarray(leaf) for leaf in jax.jit(jax.vmap(one))(*rows))


def test_every_row_is_computed_once_though_they_fill_no_whole_chunk() -> None:
    problem = two_dimensions()
    assert problem.counts.nonterminal > CHUNK["cpu"]
    assert problem.counts.nonterminal % CHUNK["cpu"]
    z, laplacian, next_value, target_value = row_by_row(network(problem, 0), problem)
    table = table_in_two_dimensions()
    np.testing.assert_allclose(table.squared, z**2, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(table.laplacian, laplacian, atol=1e-4)
    np.testing.assert_allclose(table.bootstrap_value, next_value, atol=1e-4)
    np.testing.assert_allclose(table.target_value, target_value, atol=1e-4)


def test_one_factor_is_the_sum_over_the_dimensions() -> None:
    total, each = table_in_two_dimensions(each=False).squared, table_in_two_dimensions().squared
    np.testing.assert_allclose(total, np.asarray(each).sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_without_a_metric_distances_are_in_half_action_ranges() -> None:
    problem = two_dimensions()
    n = problem.counts.nonterminal
    half = 0.5 * (problem.action_high - problem.action_low)
    z = (problem.next_actions[:n] - problem.target_actions[:n]) / half
    identity = table_in_two_dimensions(metric=False)
    np.testing.assert_allclose(identity.squared, z**2, rtol=1e-5, atol=1e-7)
    assert np.abs(np.asarray(identity.squared) - table_in_two_dimensions().squared).max() > 0.1
    np.testing.assert_allclose(identity.laplacian, table_in_two_dimensions().laplacian, atol=1e-5)


def test_new_bootstrap_values_are_those_of_the_new_network() -> None:
    problem = two_dimensions()
    old, params = table_in_two_dimensions().bootstrap_value, network(problem, 1)
    new = jax.jit(partial(for_every_row, config(), term=bootstrap_value))(params, problem)
    anew = table_of(params, problem, metric=True, each=True)
    np.testing.assert_allclose(new, anew.bootstrap_value, atol=1e-5)
    assert np.abs(np.asarray(new) - old).max() > 0.1


def test_the_table_holds_nothing_beyond_a_terminal_row() -> None:
    problem = chain_problem(terminated=True)
    nonterminal = problem.counts.nonterminal
    assert 0 < nonterminal < problem.counts.in_sample
    table = table_of(network(problem, 0), problem)
    assert table.squared.shape == (nonterminal, 1)
    for field in (table.laplacian, table.bootstrap_value, table.target_value):
        assert (np.asarray(field)[nonterminal:] == 0.0).all()
        assert (np.asarray(field)[:nonterminal] != 0.0).all()


def test_rows_in_host_memory_give_the_same_table() -> None:
    problem = chain_problem(terminated=True)
    params = network(problem, 0)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        table_of(params, problem),
        table_of(params, problem.on_host()),
    )


def test_a_network_that_reads_cut_actions_has_the_value_at_the_edge_of_the_box_beyond_it() -> None:
    problem = two_dimensions()
    n, params = problem.counts.nonterminal, network(problem, 0)
    low, high = problem.action_low, problem.action_high
    beyond = np.asarray(((problem.next_actions < low) | (problem.next_actions > high)).any(axis=1))[:n]
    assert 0.1 < beyond.mean() < 0.9
    build = jax.jit(partial(build_table, config(cut_actions=True), metric=False))
    cut, raw = build(params, problem), table_of(params, problem)
    inside = replace(problem, next_actions=jnp.clip(problem.next_actions, low, high))
    expected = table_of(params, inside).bootstrap_value
    np.testing.assert_allclose(cut.bootstrap_value, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(np.asarray(cut.bootstrap_value - raw.bootstrap_value)[:n][beyond]).min() > 0
    np.testing.assert_array_equal(cut.squared, raw.squared)  # the density is that of the action as drawn


def test_the_kernels_bias_is_recorded_and_subtracted() -> None:
    """On a quadratic Q there is no other: without it V̂ lands on the value, not on the relaxed fixed point."""
    h = 0.6
    problem, world, truth = lqr_problem(dummies=1)
    shift = world.relaxation_shift(h, np.eye(2))
    result = run(quick("kmifqe-identity", bandwidth=h, bias="subtracted"), problem)
    assert abs(result.value - truth) < 0.25 * abs(shift)
    assert result.infos["bias"][-1].mean() == pytest.approx(shift, rel=0.25)
