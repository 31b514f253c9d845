"""What estimators offer to diagnostics is what they trained."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import PAPER_CLIP, lqr_problem, quick
from kmifqe.estimators import Estimate, Estimator, fit
from kmifqe.estimators.base import Network, state_of_seed
from kmifqe.maths.kernel import clipped_weight
from kmifqe.maths.metric import optimal_metric
from kmifqe.mdp.problem import Problem

WITH_Q = ("kmifqe", "kmifqe-paper", "kmifqe-identity", "fqe", "fqe-paper")


@cache
def problem_beyond_the_box() -> Problem:
    """Return a problem whose rewards are learned in a unit of their own and whose actions leave the box."""
    problem = lqr_problem(dummies=1)[0]
    half = 0.3 * jnp.ones(2)
    # Two rewards lie so far apart that the bounds they set cut no Q.
    rewards = 5_000.0 * problem.rewards
    return replace(
        problem,
        rewards=rewards.at[0].set(1e5).at[1].set(-1e5),
        value_center=5_000.0 * problem.value_center,
        value_scale=5_000.0 * problem.value_scale,
        action_low=-half,
        action_high=half,
    )


@cache
def short_fit(name: str) -> tuple[Estimator, Estimate]:
    estimator = quick(name, **({} if name.startswith("fqe") else {"clip": PAPER_CLIP, "target_period": 10}))
    return estimator, fit(estimator, problem_beyond_the_box(), seeds=2, steps=30, record_every=10)


@pytest.mark.parametrize("name", WITH_Q)
def test_the_mean_of_q_over_first_states_is_the_value(name: str) -> None:
    problem, (estimator, estimate) = problem_beyond_the_box(), short_fit(name)
    assert estimator.q is not None
    for seed in range(2):
        state = state_of_seed(estimate.final_state, seed)
        q = estimator.q(state, problem, problem.first_states, problem.first_actions)
        assert float(jnp.mean(q)) == pytest.approx(estimate.trajectory[-1, seed], rel=1e-4)


@pytest.mark.parametrize("name", WITH_Q)
def test_q_reads_actions_as_training_does(name: str) -> None:
    problem, (estimator, estimate) = problem_beyond_the_box(), short_fit(name)
    assert estimator.q is not None
    state = state_of_seed(estimate.final_state, 0)
    inside = jnp.clip(problem.actions, problem.action_low, problem.action_high)
    as_logged, at_the_edge = (
        estimator.q(state, problem, problem.states, a) for a in (problem.actions, inside)
    )
    differ = np.abs(np.asarray(as_logged - at_the_edge)).max() > 1e-3 * np.abs(np.asarray(as_logged)).max()
    cut = name == "fqe" or getattr(estimator.config, "cut_actions", False)
    assert differ == (not cut)


@pytest.mark.parametrize("name", WITH_Q)
def test_the_network_is_the_same_function_in_plain_layers(name: str) -> None:
    problem, (estimator, estimate) = problem_beyond_the_box(), short_fit(name)
    assert estimator.q is not None
    assert estimator.network is not None
    state = state_of_seed(estimate.final_state, 1)
    q = np.asarray(estimator.q(state, problem, problem.states, problem.actions))
    plain = evaluated(estimator.network(state, problem), problem)
    np.testing.assert_allclose(plain, q, rtol=1e-3, atol=1e-4 * np.abs(q).max())


@pytest.mark.parametrize("name", WITH_Q)
def test_q_is_linear_in_the_features_and_a_constant(name: str) -> None:
    problem, (estimator, estimate) = problem_beyond_the_box(), short_fit(name)
    assert estimator.q is not None
    assert estimator.features is not None
    state = state_of_seed(estimate.final_state, 1)
    q = np.asarray(estimator.q(state, problem, problem.states, problem.actions), np.float64)
    phi = np.asarray(estimator.features(state, problem, problem.states, problem.actions), np.float64)
    assert phi.shape == (len(problem), estimator.config.hidden)
    columns = np.column_stack([phi, np.ones(len(q))])
    left = q - columns @ np.linalg.lstsq(columns, q, rcond=None)[0]
    assert np.abs(left).max() < 1e-3 * q.std()


@pytest.mark.parametrize("name", ["kmifqe", "fqe"])
def test_q_is_cut_to_what_the_logged_rewards_can_add_up_to(name: str) -> None:
    problem, (estimator, estimate) = problem_beyond_the_box(), short_fit(name)
    assert estimator.q is not None
    state = state_of_seed(estimate.final_state, 0)
    uncut = np.asarray(estimator.q(state, problem, problem.states, problem.actions))
    low, high = np.quantile(uncut, [0.3, 0.6])
    narrow = replace(problem, rewards=jnp.clip(problem.rewards, low, high))
    cut = np.asarray(estimator.q(state, narrow, problem.states, problem.actions))
    np.testing.assert_allclose(cut, np.clip(uncut, low, high), rtol=1e-4)


def evaluated(network: Network, problem: Problem) -> np.ndarray:
    actions = np.asarray(problem.actions)
    if network.cut_actions:
        actions = np.clip(actions, problem.action_low, problem.action_high)
    x = (np.concatenate([problem.states, actions], axis=1) - network.shift) / network.scale
    *hidden, (w, b) = network.layers
    for weights, biases in hidden:
        x = x @ np.asarray(weights) + np.asarray(biases)
        x = np.tanh(x) if network.activation == "tanh" else np.maximum(x, 0.0)
    return np.asarray((x @ np.asarray(w) + np.asarray(b))[:, 0] * network.unit)


def test_the_kernels_weights_are_those_that_rows_are_drawn_by() -> None:
    problem, (estimator, estimate) = problem_beyond_the_box(), short_fit("kmifqe-identity")
    kernel, state = estimator.kernel, state_of_seed(estimate.final_state, 0)
    assert kernel is not None
    assert problem.log_mu is not None
    rows = jnp.arange(50)
    half = 0.5 * (problem.action_high - problem.action_low)
    z = (problem.next_actions - problem.target_actions)[rows] / half
    log_mu = problem.log_mu[rows].sum(axis=1, keepdims=True) + jnp.sum(jnp.log(half))
    h, squared = kernel.bandwidth(state), jnp.sum(z**2, axis=1, keepdims=True)
    expected = jax.vmap(lambda s, m: clipped_weight(s, h, m, 2, PAPER_CLIP))(squared, log_mu)
    found = kernel.importance_weights(state, problem, rows)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    factors = np.exp(np.asarray(kernel.log_weight_factors(state, problem, rows), np.float64).sum(axis=1))
    np.testing.assert_allclose(np.clip(factors, *PAPER_CLIP), expected, rtol=1e-3)


@pytest.mark.parametrize("name", ["kmifqe-paper", "kmifqe-identity"])
def test_hessians_are_those_of_q_and_metrics_those_of_the_hessians(name: str) -> None:
    problem, (estimator, estimate) = problem_beyond_the_box(), short_fit(name)
    state, kernel, q = state_of_seed(estimate.final_state, 0), estimator.kernel, estimator.q
    assert kernel is not None
    assert q is not None
    half = 0.5 * (problem.action_high - problem.action_low)
    states, targets = problem.states[:5], jnp.zeros((5, 2))
    H, A = kernel.hessians_and_metrics(state, problem, states, targets)
    at = lambda z, s: q(state, problem, s[None], (z * half)[None])[0]  # noqa: E731
    expected = jax.vmap(jax.hessian(at))(targets, states)
    np.testing.assert_allclose(H, expected, rtol=1e-2, atol=1e-3 * float(jnp.abs(expected).max()))
    metric = (
        jax.vmap(lambda H: optimal_metric(H, 0.1))(H)
        if name == "kmifqe-paper"
        else jnp.broadcast_to(jnp.eye(2), A.shape)
    )
    np.testing.assert_allclose(A, metric, rtol=1e-3, atol=1e-4)


def test_sr_dice_offers_no_q_and_the_baselines_no_kernel() -> None:
    assert quick("sr-dice").q is None
    assert quick("sr-dice").network is None
    assert quick("sr-dice").kernel is None
    assert quick("fqe").kernel is None
