"""KMIFQE against closed forms, and what is due when."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

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
    chain_value,
    first_state,
    forget_target_density,
    lqr_problem,
    quick,
    run,
    tabular_problem,
    tabular_value,
)
from kmifqe.estimators import Estimate, KMIFQEConfig, fit, make_kmifqe
from kmifqe.estimators.fit import _init
from kmifqe.estimators.kmifqe.algorithm import RefreshKind
from kmifqe.estimators.kmifqe.rows import build_table
from kmifqe.maths import mlp
from kmifqe.maths.metric import optimal_metric
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.lqr import LinearGaussian, LinearPolicy, random_lqr

# --- Values


@cache
def learned_bandwidth_run(gamma: float, dummies: int = 0) -> Estimate:
    problem, _, _ = lqr_problem(gamma, dummies)
    return run(quick("kmifqe-paper"), problem)


@pytest.mark.parametrize("gamma", [0.0, 0.8])
def test_recovers_the_value_of_the_linear_quadratic_world(gamma: float) -> None:
    problem, _, truth = lqr_problem(gamma)
    for result in (learned_bandwidth_run(gamma), run(quick("kmifqe"), problem)):
        # 0.04 is a tenth of what separates the target from the log's mean reward.
        assert abs(result.value - truth) < 0.04
        assert result.spread < 0.04


@pytest.mark.parametrize(
    "name, other", [("kmifqe-identity", "kmifqe-paper"), ("kmifqe-paper", "kmifqe-identity")]
)
def test_a_fixed_bandwidth_lands_on_the_relaxed_fixed_point_not_on_the_value(name: str, other: str) -> None:
    h = 0.6
    problem, world, truth = lqr_problem(dummies=1)
    H = world.q_function.action_hessian
    A = {"kmifqe-identity": np.eye(2), "kmifqe-paper": np.asarray(optimal_metric(jnp.asarray(H)), np.float64)}
    shift = {name: world.relaxation_shift(h, A[name]) for name in A}
    assert shift["kmifqe-identity"] < 3 * shift["kmifqe-paper"] < 0, (
        "with a dummy, the metric takes most of the bias"
    )
    result = run(quick(name, bandwidth=h), problem)
    np.testing.assert_allclose(result.infos["h"], h, rtol=1e-6)
    error = result.value - truth
    assert error == pytest.approx(shift[name], abs=0.05)
    assert abs(error - shift[name]) < 0.2 * abs(shift[name] - shift[other])


@pytest.mark.parametrize("h", [1.5, 0.2])
def test_as_the_kernel_narrows_only_the_targets_own_actions_are_left_and_the_value_is_exact(h: float) -> None:
    """Logged actions are −1 and +1: the one that the target does not take weighs exp(−2/h²) of the other."""
    gamma = 0.8
    other = 1.0 / (1.0 + np.exp(2.0 / h**2))
    relaxed, exact = tabular_value(gamma, other), tabular_value(gamma)
    assert abs(relaxed - exact) < 1e-6 if h < 1 else abs(relaxed - exact) > 0.15
    found = run(quick("kmifqe-identity", bandwidth=h), tabular_problem(gamma, has_density=True))
    assert found.value == pytest.approx(relaxed, abs=0.05), "rewards are −2 to 2"


@pytest.mark.parametrize("name", ["kmifqe-paper", "kmifqe"])
@pytest.mark.parametrize("terminated", [True, False])
def test_only_the_flag_of_the_last_row_tells_an_end_from_a_cut(name: str, terminated: bool) -> None:
    # At the paper's clip the mean weight is far from 1: terminal rows of weight 1 would be drawn too often.
    estimator = quick(name, clip=PAPER_CLIP, bandwidth=0.1)
    result = run(estimator, chain_problem(terminated=terminated))
    assert (result.infos["mean_weight"] < 0.5).all()
    assert result.value == pytest.approx(chain_value(terminated=terminated), abs=0.05)


def test_without_the_density_at_the_target_the_bandwidth_is_nearly_the_same() -> None:
    # With a dummy most minibatches hold few rows near π̃: a geometric mean of v would give a third of h.
    problem, _, truth = lqr_problem(dummies=1)
    known, logged = (
        learned_bandwidth_run(0.8, dummies=1),
        run(quick("kmifqe-paper"), forget_target_density(problem)),
    )
    h_known, h_logged = (
        result.infos["h"][len(result.infos["h"]) // 2 :].mean() for result in (known, logged)
    )
    assert h_logged == pytest.approx(h_known, rel=0.15)
    assert abs(logged.value - truth) < 0.04


def test_few_rows_without_the_density_at_the_target_give_that_bandwidth_too() -> None:
    # At the bandwidth itself hardly a row of so few has weight: v estimated there makes h five times as large.
    world = random_lqr(1, 2, 1, gamma=0.8)
    log = world.collect(0, 40, 25)
    known = Problem.build(log, world.policy, world.behavior, 0.8)
    estimator = quick("kmifqe-paper", decay_steps=0)
    h_known, h_logged = (
        fit(estimator, problem, seeds=2, steps=600, record_every=300).infos["h"][1].mean()
        for problem in (known, forget_target_density(known))
    )
    assert h_logged == pytest.approx(h_known, rel=0.15)


@pytest.mark.parametrize("half_range", [0.4, 1.0, 5.0])
def test_the_density_floor_is_one_of_the_log_s_own_units_of_action(half_range: float) -> None:
    problem, _, _ = lqr_problem(dummies=1)
    problem = replace(problem, action_low=jnp.full(2, -half_range), action_high=jnp.full(2, half_range))
    estimator = quick("kmifqe-paper", density_floor=1e-5)
    init = jax.jit(lambda problem: estimator.init(jax.random.key(0), problem).log_v)
    assert problem.log_mu_target is not None
    below, at_twice = (
        float(init(replace(problem, log_mu_target=jnp.full_like(problem.log_mu_target, log_mu))))
        for log_mu in (-200.0, np.log(2e-5))
    )
    assert np.exp(below - at_twice) == pytest.approx(2.0, rel=1e-3)


def test_without_a_bias_the_bandwidth_is_as_wide_as_the_behaviour_and_no_wider() -> None:
    # At γ = 0 there is no bias, so h* is infinite. The unclipped weights' variance is infinite from √2σ on, and least
    # at σ, or below where the target's actions are off the behaviour's mean.
    _, world, _ = lqr_problem(0.0)
    h = learned_bandwidth_run(0.0).infos["h"]
    assert (h <= 1.1 * world.behavior_std[0]).all()
    assert (h >= 0.7 * world.behavior_std[0]).all()


@pytest.mark.parametrize(
    "d, offset, least_variance",
    [(1, 0.0, 1.0), (1, 1.0, 0.765), (1, 2.0, 0.546), (3, 0.0, 1.0), (3, 1.0, 0.765)],
)
def test_the_widest_bandwidth_has_the_least_variance_of_the_weights(
    d: int, offset: float, least_variance: float
) -> None:
    """For μ = N(0, σ²) and π̃ = offset·σ in each dimension, E[w²] = Π exp(offset²/(2 − r²))/(r√(2 − r²)), r = h/σ."""
    sigma, n = 0.2, 40_000
    rng = np.random.default_rng(0)
    actions = sigma * rng.standard_normal((n, d))
    log = Transitions.from_arrays(
        np.zeros((n, 1)), actions, np.zeros(n), np.zeros(n, bool), np.arange(1, n + 1) % 100 == 0
    )
    behavior = LinearGaussian(np.zeros((d, 1)), np.full(d, sigma))
    policy = LinearPolicy(np.zeros((d, 1)), bound=1.0)
    problem = Problem.build(log, policy, behavior, 0.9)
    away = replace(problem, target_actions=jnp.full_like(problem.target_actions, offset * sigma))
    params = mlp.init_q(jax.random.key(0), 1 + d, 8)
    table = jax.jit(partial(build_table, KMIFQEConfig(), metric=False))(params, away)
    assert table.bandwidths is not None
    assert 0.75 * least_variance < float(table.bandwidths.widest) / sigma < min(1.3 * least_variance, 1.2)
    assert float(table.bandwidths.pilot) < float(table.bandwidths.widest)


def test_a_behaviour_that_reaches_everywhere_bounds_no_bandwidth() -> None:
    # Uniform over the box: the variance is finite at every h.
    state = first_state(quick("kmifqe-paper"), chain_problem(terminated=False))
    assert state.table.bandwidths is not None
    assert float(state.table.bandwidths.widest) > 1.0


# --- Rows


def test_nothing_lies_beyond_a_terminal_row() -> None:
    problem, estimator = chain_problem(terminated=True), chain_kmifqe()
    terminal = np.asarray(problem.terminated)
    copied = jax.tree.map(lambda leaf: leaf[0], run(estimator, problem, steps=RECORD_EVERY).final_state)
    for state in (first_state(estimator, problem), copied):
        for column in (state.table.laplacian, state.table.bootstrap_value, state.table.target_value):
            assert (np.asarray(column)[terminal] == 0.0).all()
            assert (np.asarray(column)[~terminal] != 0.0).all()


def test_a_bootstrap_beyond_a_terminal_row_is_a_value_of_zero_in_any_units() -> None:
    problem = chain_problem(terminated=True)
    state = first_state(quick("kmifqe"), problem)
    assert float(state.units.center) > 0.1
    assert float(state.units.value(state.units.end)) == pytest.approx(0.0, abs=1e-6)


def test_a_soft_target_leaves_no_bootstrap_values_in_the_table() -> None:
    problem, _, _ = lqr_problem()
    estimator = quick("kmifqe")
    state = first_state(estimator, problem)
    assert state.table.bootstrap_value is None
    assert state.table.target_value is None
    assert state.table.bias is None
    ten = jax.tree.map(lambda leaf: leaf[0], run(estimator, problem, steps=10, record_every=10).final_state)
    assert (ten.target.w1 != state.target.w1).any(), "it moves before the first period is over"
    assert (ten.target.w1 != ten.params.w1).any()


def test_rows_without_a_next_action_are_left_out() -> None:
    problem, _, _ = lqr_problem()
    state = first_state(quick("kmifqe-paper"), problem)
    assert problem.counts.without_next_action == problem.counts.episodes
    assert (
        len(state.table.bootstrap_value) == problem.counts.in_sample == len(problem) - problem.counts.episodes
    )


# --- Envelope and periods


def test_the_envelope_changes_no_estimate() -> None:
    problem, _, _ = lqr_problem()
    proposed, anew = learned_bandwidth_run(0.8), run(quick("kmifqe-paper", envelope_period=0), problem)
    standard_error = np.hypot(proposed.standard_error, anew.standard_error)
    assert abs(proposed.value - anew.value) < 4 * standard_error
    h_proposed, h_anew = (
        result.infos["h"][len(result.infos["h"]) // 2 :].mean() for result in (proposed, anew)
    )
    assert h_proposed == pytest.approx(h_anew, rel=0.05)
    assert proposed.infos["filled"].mean() > 0.99
    assert (anew.infos["filled"] == 1.0).all()


def test_the_envelope_is_rebuilt_for_a_seed_whose_h_has_drifted_and_for_no_other() -> None:
    problem, _, _ = lqr_problem()
    estimator = quick("kmifqe-paper")
    assert estimator.refresh is not None
    keys = jnp.stack([jax.random.key(seed) for seed in range(SEEDS)])
    before = _init(estimator, keys, problem)
    margin = 1.0 / (problem.action_dim + 4)
    # Seed 1 has drifted by more than half a margin, seed 2 by less.
    moved = before._replace(log_h=before.log_h + jnp.array([0.0, 1.0, 0.4]) * margin)
    refresh = jax.jit(jax.vmap(partial(estimator.refresh.run, RefreshKind(copy=False)), in_axes=(0, None)))
    after = refresh(moved, problem)
    kept = np.array([0, 2])
    jax.tree.map(
        lambda old, new: np.testing.assert_array_equal(old[kept], new[kept]), before.envelope, after.envelope
    )
    for old, new in zip(before.envelope.interval, after.envelope.interval, strict=True):
        assert float(new[1] / old[1]) == pytest.approx(np.exp(margin), rel=1e-4)
    low, high = (np.log(end[1]) for end in after.envelope.interval)
    assert low < float(moved.log_h[1]) < high
    jax.tree.map(np.testing.assert_array_equal, before.table, after.table)
    untouched = refresh(before, problem)
    jax.tree.map(np.testing.assert_array_equal, before.envelope, untouched.envelope)


def test_metric_and_bandwidth_are_new_only_when_their_periods_end() -> None:
    problem = lqr_problem(dummies=1)[0].head(500)
    estimator = quick("kmifqe-paper", metric_period=3, bandwidth_period=RECORD_EVERY)
    keys = jnp.stack([jax.random.key(seed) for seed in range(SEEDS)])
    first = jax.tree.map(np.asarray, _init(estimator, keys, problem))
    once = run(estimator, problem, steps=RECORD_EVERY).final_state
    result = run(estimator, problem, steps=2 * RECORD_EVERY)
    twice = result.final_state
    for field in ("squared", "laplacian", "bootstrap_value"):  # new at the first copy
        assert (getattr(first.table, field) != getattr(once.table, field)).mean() > 0.9
    # The second of three: new bootstrap values, and the rest as it was.
    assert (once.table.bootstrap_value != np.asarray(twice.table.bootstrap_value)).mean() > 0.9
    for field in ("squared", "laplacian"):
        np.testing.assert_array_equal(getattr(once.table, field), getattr(twice.table, field))
    # Steps 0 and 50 gave a bandwidth, the others kept it: so h is its own mean over a record.
    assert (first.log_v != np.asarray(once.log_v)).all()
    assert (np.asarray(once.log_v) != np.asarray(twice.log_v)).all()
    np.testing.assert_allclose(result.infos["h"], [once.h, twice.h], rtol=1e-5)


def test_between_two_metrics_the_bandwidth_is_that_of_the_last_copys_values() -> None:
    problem = lqr_problem(dummies=1)[0].head(500)
    kept, renewed = (quick("kmifqe-paper", metric_period=period) for period in (20, 1))
    bandwidths = []
    for estimator in (kept, renewed):
        assert estimator.refresh is not None
        state = estimator.init(jax.random.key(0), problem)
        tr_H = state.table.laplacian  # the metric and tr H may be old, the values may not
        moved = state.params._replace(b3=state.params.b3 + 3.0, w3=4.0 * state.params.w3)
        copy = RefreshKind(copy=True, metrics=estimator is renewed)
        state = estimator.refresh.run(copy, state._replace(params=moved), problem)
        state = state._replace(table=state.table._replace(laplacian=tr_H))
        after, _ = estimator.step(jax.random.key(1), jnp.int32(0), state, problem)
        bandwidths.append(float(after.log_h))
    assert bandwidths[0] == pytest.approx(bandwidths[1], abs=1e-4)


def test_in_units_of_returns_an_untrained_network_is_the_same_one_around_the_logs_own_returns() -> None:
    problem, _, _ = lqr_problem()
    of_returns, of_rewards = (
        float(estimator.value(estimator.init(jax.random.key(0), problem), problem))
        for estimator in (quick("kmifqe-paper", units="returns"), quick("kmifqe-paper"))
    )
    expected = float(problem.value_center + problem.value_scale * of_rewards)
    assert of_returns == pytest.approx(expected, rel=1e-4)
    assert abs(of_returns - of_rewards) > 0.1


def test_what_is_due_when() -> None:
    e = quick("kmifqe-paper", target_period=100, metric_period=3, envelope_period=20)
    assert e.refresh.every == 20
    due = [e.refresh.kind(step) for step in (20, 100, 120, 200, 300, 400, 600)]
    check, values, everything = (
        RefreshKind(copy=False),
        RefreshKind(copy=True),
        RefreshKind(True, metrics=True),
    )
    assert due == [check, everything, check, values, everything, values, everything]
    assert e.refresh.restart_every == 300
    assert quick("kmifqe-paper", target_period=100, envelope_period=30).refresh.every == 25
    assert quick("kmifqe-paper", target_period=97, envelope_period=30).refresh.every == 97  # not every step
    for settings in ({"envelope_period": 0}, {"bandwidth": 0.3}):
        e = quick("kmifqe-paper", target_period=100, **settings)
        assert e.refresh.every == 100
        assert [e.refresh.kind(step) for step in (100, 200)] == [everything, everything]


# --- Settings


def test_one_config_is_one_estimator() -> None:
    assert make_kmifqe(KMIFQEConfig()) is make_kmifqe(KMIFQEConfig())
    assert make_kmifqe().name == "kmifqe"
    assert make_kmifqe(KMIFQEConfig(metric="identity")).name == "kmifqe-identity"
