"""The bootstrap over episodes: the weights, and what every estimator makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import (
    PAPER_CLIP,
    RECORD_EVERY,
    SEEDS,
    chain_kmifqe,
    chain_problem,
    lqr_problem,
    quick,
    run,
)
from estimators.test_kmifqe_draws import assert_mean_within_errors, chain_weights, sets_of_rows, steps_from
from kmifqe.errors import InputError
from kmifqe.estimators import Estimator, fit
from kmifqe.estimators.base import bootstrapped, mean_over_rows, of_seed, row_means, row_weights
from kmifqe.estimators.fit import _init, _values, make_plan
from kmifqe.estimators.forecast import make_forecast
from kmifqe.estimators.kmifqe.sampling import loss_weights
from kmifqe.maths.sampling import Accepted
from kmifqe.mdp.problem import Problem


def keys(count: int = SEEDS) -> jax.Array:
    return jnp.stack([jax.random.key(seed) for seed in range(count)])


# --- The weights


def test_weights_are_exponential_with_mean_one_for_every_seed() -> None:
    problem, _, _ = lqr_problem()
    weights = np.asarray(bootstrapped(problem, keys(50)).episode_weights, np.float64)
    assert weights.shape == (50, problem.first_states.shape[0])
    assert (weights > 0).all()
    np.testing.assert_allclose(weights.mean(axis=1), 1.0, rtol=1e-5)
    m = weights.shape[1]
    # m times a flat Dirichlet: each weight has variance (m − 1)/(m + 1); 10,000 of them, kurtosis 9.
    assert abs(weights.var() - (m - 1) / (m + 1)) < 4 * np.sqrt(8 / weights.size)


def test_a_seed_has_its_weights_whoever_runs_beside() -> None:
    problem, _, _ = lqr_problem()
    many = bootstrapped(problem, keys(5)).episode_weights
    alone = bootstrapped(problem, keys(5)[3:4]).episode_weights
    assert many is not None
    assert alone is not None
    np.testing.assert_array_equal(many[3], alone[0])
    assert len(np.unique(np.asarray(many)[:, 0])) == 5


def test_rows_have_the_weight_of_their_episode() -> None:
    problem = of_seed(chain_problem(terminated=True), jnp.arange(1000.0))
    rows = jnp.array([0, 7, 2999])
    expected = np.asarray(problem.episode)[np.asarray(rows)]
    np.testing.assert_array_equal(row_weights(problem, rows), expected)
    means = row_means(problem)
    assert means is not None
    weights = np.asarray(problem.episode, np.float64)
    ends = np.asarray(problem.terminated)
    assert float(means.in_sample) == pytest.approx(weights.mean(), rel=1e-5)
    assert float(means.terminal) == pytest.approx(weights[ends].mean(), rel=1e-5)
    assert float(means.ending) == pytest.approx(weights[ends].sum() / weights.sum(), rel=1e-5)


def test_without_weights_nothing_is_weighted() -> None:
    problem = chain_problem(terminated=True)
    assert row_weights(problem, jnp.arange(3)) is None
    assert row_means(problem) is None
    assert float(mean_over_rows(jnp.array([1.0, 3.0]), None)) == 2.0
    assert float(mean_over_rows(jnp.array([[1.0], [3.0]]), jnp.array([0.5, 1.5]))) == 2.5


def test_a_problem_that_carries_weights_is_refused() -> None:
    problem = of_seed(chain_problem(terminated=True), jnp.ones(1000))
    with pytest.raises(InputError, match="carries episode weights"):
        fit(quick("fqe"), problem, seeds=1, steps=1)


# --- KMIFQE's draws, against the definition: rows in proportion to episode weight times importance weight


def uneven_chain() -> Problem:
    """Return the chain that ends, with episode weights; the rows near the target action are counted twice as often.

    So weights and multiples are not independent, as they would be if drawn: an error in either shows.
    """
    problem = chain_problem(terminated=True)
    second = np.asarray(problem.actions)[np.asarray(problem.episode).argsort(kind="stable")].reshape(-1, 3)[
        :, 1
    ]
    weights = np.random.default_rng(1).exponential(size=len(second)) * np.where(
        np.abs(second) < 0.3, 2.0, 1.0
    )
    return of_seed(problem, jnp.asarray(weights / weights.mean(), jnp.float32))


@pytest.mark.parametrize("mode", ["fixed", "envelope"])
def test_rows_are_drawn_by_episode_weight_times_importance_weight(mode: str) -> None:
    problem = uneven_chain()
    estimator = (
        chain_kmifqe() if mode == "fixed" else quick("kmifqe-paper", clip=PAPER_CLIP, bandwidth_period=2)
    )
    state = jax.jit(estimator.init)(jax.random.key(0), problem)
    shares, infos = steps_from(estimator, state, problem, sets_of_rows(problem))
    w = chain_weights(float(state.h), PAPER_CLIP)
    nonterminal = problem.counts.nonterminal
    assert problem.episode_weights is not None
    u = np.asarray(problem.episode_weights, np.float64)[np.asarray(problem.episode)]
    # The terminal rows' importance weight is the mean of the others', each counted as the bootstrap counts it.
    w[nonterminal:] = np.average(w[:nonterminal], weights=u[:nonterminal])
    for share, rows in zip(shares, sets_of_rows(problem), strict=True):
        assert_mean_within_errors(share, (u * w)[rows].sum() / (u * w).sum())
    assert_mean_within_errors(infos["mean_weight"], np.average(w, weights=u), slack=1e-4 * w.mean())
    exact_ess = problem.counts.in_sample * np.average(w, weights=u) ** 2 / np.average(w**2, weights=u)
    assert infos["ess"].mean() == pytest.approx(exact_ess, rel=0.05)


def test_terminal_rows_count_by_their_episode_weights() -> None:
    problem = uneven_chain()
    first, last = problem.counts.nonterminal, problem.counts.in_sample - 1
    rows = jnp.array([0, 1, 2, first, last])  # the last two terminated
    filled = jnp.array([True, True, False, True, True])
    drawn = Accepted(rows, filled, mean_weight=jnp.float32(1.0), mean_square=jnp.float32(1.0))
    counts = loss_weights(drawn, row_means(problem), problem)
    u = np.asarray(problem.episode_weights, np.float64)[np.asarray(problem.episode)]
    mean = u[first : last + 1].mean()
    np.testing.assert_allclose(counts, [1.0, 1.0, 0.0, u[first] / mean, u[last] / mean], rtol=1e-5)


# --- Values: what the weights alone do to V̂ is known in closed form where γ = 0


def test_every_seed_values_the_policy_on_its_own_first_states() -> None:
    problem, world, _ = lqr_problem(0.0)
    weights = np.asarray(bootstrapped(problem, keys()).episode_weights, np.float64)
    first = np.asarray(problem.first_states, np.float64)
    rewards = world.reward(first, -first @ world.gain.T)
    exact = weights @ rewards / len(rewards)
    result = run(quick("fqe-paper"), problem, bootstrap=True)  # reads actions uncut, as this world does
    assert result.bootstrap
    assert result.episodes == len(rewards)
    assert np.abs(result.values - exact).max() < 0.5 * exact.std(ddof=1)


@pytest.mark.parametrize("name", ["kmifqe-paper", "fqe-paper", "sr-dice"])
def test_the_value_is_a_weighted_mean(name: str) -> None:
    """It is linear in the weights: half of the episodes, twice each, and the other half average to the plain one."""
    problem, _, _ = lqr_problem()
    estimator = quick(name)
    state: Any = _init(estimator, keys(), problem)
    if name == "sr-dice":
        state = state._replace(stage=jnp.full(SEEDS, 2))
    m = problem.first_states.shape[0]
    half = jnp.where(jnp.arange(m) < m // 2, 2.0, 0.0)
    plain, one, other = (
        np.asarray(
            _values(estimator.value, with_mean(state, w), replace(problem, episode_weights=w)), np.float64
        )
        for w in (None, jnp.tile(half, (SEEDS, 1)), jnp.tile(2.0 - half, (SEEDS, 1)))
    )
    np.testing.assert_allclose(0.5 * (one + other), plain, rtol=1e-4, atol=1e-6)
    assert (np.abs(one - other) > 1e-3 * np.abs(plain)).all()


def with_mean(state: Any, weights: jax.Array | None) -> Any:
    """Return SR-DICE's state with the mean weight of its rows: 1, as all episodes are equally long."""
    if weights is None or not hasattr(state, "mean_weight"):
        return state
    return state._replace(mean_weight=jnp.ones(SEEDS))


# --- Around a fit


@pytest.mark.parametrize("t", [0, 1_000, 3_000], ids=["encoder", "successor features", "ratio"])
def test_every_loss_of_sr_dice_is_a_weighted_mean(t: int) -> None:
    """On the same rows it is linear in the weights: two halves average to the whole."""
    problem, _, _ = lqr_problem()
    estimator: Estimator = quick("sr-dice")
    m = problem.first_states.shape[0]
    half = jnp.where(jnp.arange(m) < m // 2, 2.0, 0.0)
    init_key, step_key = jax.random.split(jax.random.key(0))
    with jax.disable_jit():  # three single steps: compiling the three stages would take far longer
        plain = estimator.init(init_key, problem)
        weighted = plain._replace(mean_weight=jnp.float32(1.0))
        told = [
            float(estimator.step(step_key, jnp.int32(t), state, of_seed(problem, w))[1]["loss"])
            for state, w in ((plain, None), (weighted, half), (weighted, 2.0 - half))
        ]
    assert 0.5 * (told[1] + told[2]) == pytest.approx(told[0], rel=1e-3)
    assert told[1] != pytest.approx(told[2], rel=1e-2)


def test_a_bootstrapped_fit_has_a_forecast_and_its_problem_stays_as_it_was() -> None:
    problem, _, _ = lqr_problem()
    plan = make_plan(quick("fqe"), problem, seeds=SEEDS, steps=RECORD_EVERY, bootstrap=True)
    forecast = make_forecast(quick("fqe"), problem, plan, timed=False)
    assert forecast.data_on_device == problem.device_bytes + 4 * SEEDS * problem.first_states.shape[0]
    assert problem.episode_weights is None
