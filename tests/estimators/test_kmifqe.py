"""KMIFQE against closed forms, and its treatment of single rows."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import (
    RECORD_EVERY,
    SEEDS,
    chain_problem,
    chain_value,
    forget_target_density,
    lqr_problem,
    quick,
    run,
)
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, Estimator, KMIFQEConfig, kmifqe
from kmifqe.estimators.fit import _init
from kmifqe.estimators.kmifqe import KMIFQEState
from kmifqe.maths.metric import optimal_metric
from kmifqe.maths.resample import resample
from kmifqe.problem import Problem

PAPER_CLIP = (1e-3, 2.0)


def chain_kmifqe() -> Estimator:
    return quick("kmifqe", clip=PAPER_CLIP, bandwidth=0.1)


def first_state(estimator: Estimator, problem: Problem) -> KMIFQEState:
    """Return the first seed's state as `fit` makes it, by a program that other tests have compiled."""
    keys = jnp.stack([jax.random.key(seed) for seed in range(SEEDS)])
    return jax.tree.map(lambda leaf: leaf[0], _init(estimator, keys, problem))


# --- Values


@cache
def learned_bandwidth_run(gamma: float, dummies: int = 0) -> Estimate:
    problem, _, _ = lqr_problem(gamma, dummies)
    return run(quick("kmifqe"), problem)


@pytest.mark.parametrize("gamma", [0.0, 0.8])
def test_recovers_the_value_of_the_linear_quadratic_world(gamma: float) -> None:
    _, _, truth = lqr_problem(gamma)
    result = learned_bandwidth_run(gamma)
    # 0.04 is a tenth of what separates the target from the log's mean reward.
    assert abs(result.value - truth) < 0.04
    assert result.spread < 0.04


@pytest.mark.parametrize("name, other", [("kmifqe-identity", "kmifqe"), ("kmifqe", "kmifqe-identity")])
def test_a_fixed_bandwidth_lands_on_the_relaxed_fixed_point_not_on_the_value(name: str, other: str) -> None:
    h = 0.6
    problem, world, truth = lqr_problem(dummies=1)
    H = world.q_function.action_hessian
    A = {"kmifqe-identity": np.eye(2), "kmifqe": np.asarray(optimal_metric(jnp.asarray(H)), np.float64)}
    shift = {name: world.relaxation_shift(h, A[name]) for name in A}
    assert shift["kmifqe-identity"] < 3 * shift["kmifqe"] < 0, (
        "with a dummy, the metric takes most of the bias"
    )
    result = run(quick(name, bandwidth=h), problem)
    np.testing.assert_allclose(result.infos["h"], h, rtol=1e-6)
    error = result.value - truth
    assert error == pytest.approx(shift[name], abs=0.05)
    assert abs(error - shift[name]) < 0.2 * abs(shift[name] - shift[other])


@pytest.mark.parametrize("terminated", [True, False])
def test_only_the_flag_of_the_last_row_tells_an_end_from_a_cut(terminated: bool) -> None:
    # At the paper's clip the mean weight is far from 1: terminal rows of weight 1 would be drawn too often.
    result = run(chain_kmifqe(), chain_problem(terminated=terminated))
    assert (result.infos["mean_weight"] < 0.5).all()
    assert result.value == pytest.approx(chain_value(terminated=terminated), abs=0.05)


def test_without_the_density_at_the_target_the_bandwidth_is_nearly_the_same() -> None:
    # With a dummy most minibatches hold few rows near π̃: a geometric mean of v would give a third of h.
    problem, _, truth = lqr_problem(dummies=1)
    known, logged = (
        learned_bandwidth_run(0.8, dummies=1),
        run(quick("kmifqe"), forget_target_density(problem)),
    )
    h_known, h_logged = (
        result.infos["h"][len(result.infos["h"]) // 2 :].mean() for result in (known, logged)
    )
    assert h_logged == pytest.approx(h_known, rel=0.25)
    assert abs(logged.value - truth) < 0.04


def test_the_learned_bandwidth_stays_within_its_bounds() -> None:
    # At γ = 0 there is no bias, so h* is infinite.
    np.testing.assert_allclose(
        learned_bandwidth_run(0.0).infos["h"], KMIFQEConfig().bandwidth_bounds[1], rtol=1e-5
    )


# --- Rows


def drawing_weights(
    estimator: Estimator, state: KMIFQEState, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> np.ndarray:
    """Return the weights by which a step draws its rows."""
    seen: list[jax.Array] = []

    def watched(key: jax.Array, weights: jax.Array, size: int) -> jax.Array:
        seen.append(weights)
        return resample(key, weights, size)

    @jax.jit
    def step(state: KMIFQEState, problem: Problem) -> tuple[jax.Array, jax.Array, jax.Array]:
        _, info = estimator.step(jax.random.key(1), jnp.int32(0), state, problem)
        return seen.pop(), info["mean_weight"], info["ess"]

    # By name in sys.modules: in the package, `kmifqe` is the function.
    monkeypatch.setattr(sys.modules["kmifqe.estimators.kmifqe"], "resample", watched)
    weights, mean_weight, ess = map(np.asarray, step(state, problem))
    assert mean_weight == pytest.approx(weights.mean(), rel=1e-4)
    assert ess == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=1e-3)
    return weights


def test_weights_are_kernel_over_density_and_terminal_rows_get_the_mean_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, estimator = chain_problem(terminated=True), chain_kmifqe()
    h = estimator.config.bandwidth
    w = drawing_weights(estimator, first_state(estimator, problem), problem, monkeypatch)
    terminal = np.asarray(problem.terminated)
    half = 0.5 * float(problem.action_high[0] - problem.action_low[0])
    z = np.asarray(problem.next_actions)[:, 0] / half  # π̃ = 0
    expected = np.exp(-0.5 * (z / h) ** 2) / (np.sqrt(2 * np.pi) * h) / (0.5 * half)
    np.testing.assert_allclose(w[~terminal], np.clip(expected, *PAPER_CLIP)[~terminal], rtol=1e-4)
    np.testing.assert_allclose(w[terminal], w[~terminal].mean(), rtol=1e-5)


def test_terminal_rows_are_drawn_as_often_as_they_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, estimator = chain_problem(terminated=True), chain_kmifqe()
    w = drawing_weights(estimator, first_state(estimator, problem), problem, monkeypatch)
    drawn = resample(jax.random.key(2), jnp.asarray(w), 20_000)
    frequency = float(np.asarray(problem.terminated)[np.asarray(drawn)].mean())
    share = problem.counts.terminated / problem.counts.in_sample
    standard_error = np.sqrt(share * (1 - share) / 20_000)
    assert abs(frequency - share) < 4 * standard_error


def test_unclipped_weights_have_mean_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _, _ = lqr_problem()
    state = first_state(quick("kmifqe"), problem)._replace(h=jnp.float32(0.3))
    w = drawing_weights(quick("kmifqe", bandwidth=0.3), state, problem, monkeypatch)
    assert abs(w.mean() - 1.0) < 4 * w.std() / np.sqrt(len(w))


def test_units_of_the_action_change_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _, _ = lqr_problem()
    assert problem.log_mu is not None
    scale = 7.0
    stretched = replace(
        problem,
        **{
            field: scale * getattr(problem, field)
            for field in (
                "actions",
                "next_actions",
                "target_actions",
                "first_actions",
                "action_low",
                "action_high",
            )
        },
        log_mu=problem.log_mu - np.log(scale),
    )
    estimator = quick("kmifqe", bandwidth=0.3)
    one, other = (
        drawing_weights(
            estimator, first_state(quick("kmifqe"), p)._replace(h=jnp.float32(0.3)), p, monkeypatch
        )
        for p in (problem, stretched)
    )
    np.testing.assert_allclose(one, other, rtol=1e-3)


def test_nothing_lies_beyond_a_terminal_row() -> None:
    problem, estimator = chain_problem(terminated=True), chain_kmifqe()
    terminal = np.asarray(problem.terminated)
    copied = jax.tree.map(lambda leaf: leaf[0], run(estimator, problem, steps=RECORD_EVERY).final_state)
    for state in (first_state(estimator, problem), copied):
        for ahead in (state.laplacian, state.next_value, state.target_value):
            assert (np.asarray(ahead)[terminal] == 0.0).all()
            assert (np.asarray(ahead)[~terminal] != 0.0).all()


def test_rows_without_a_next_action_are_left_out() -> None:
    problem, _, _ = lqr_problem()
    state = first_state(quick("kmifqe"), problem)
    assert problem.counts.without_next_action == problem.counts.episodes
    assert len(state.next_value) == problem.counts.in_sample == len(problem) - problem.counts.episodes


# --- Settings


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"metric": "euclidean"}, "metric is 'euclidean'; expected 'learned' or 'identity'"),
        ({"bandwidth": 0.0}, r"bandwidth is 0\.0; expected a positive number"),
        ({"bandwidth": -1.0}, r"bandwidth is -1\.0; expected a positive number"),
        ({"bandwidth": float("nan")}, "bandwidth is nan; expected a positive number"),
        ({"clip": (2.0, 1.0)}, r"clip is \[2\.0, 1\.0\]; expected 0 <= low < high"),
        ({"clip": (-1.0, 1.0)}, r"clip is \[-1\.0, 1\.0\]; expected 0 <= low < high"),
        ({"clip": (0.0, float("nan"))}, r"clip is \[0\.0, nan\]; expected 0 <= low < high"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        KMIFQEConfig(**settings)


def trace_one_step(estimator: Estimator, problem: Problem) -> None:
    """Go through init and step as `jit` would, without compiling them."""
    key = jax.random.key(0)
    jax.eval_shape(lambda p: estimator.step(key, jnp.int32(0), estimator.init(key, p), p), problem)


def test_no_density_is_refused() -> None:
    problem = replace(chain_problem(terminated=True), log_mu=None, log_mu_target=None)
    with pytest.raises(InputError, match="needs a behaviour density"):
        trace_one_step(quick("kmifqe"), problem)


def test_a_clip_per_dimension_needs_a_density_that_factorises() -> None:
    problem, _, _ = lqr_problem(dummies=1)
    assert problem.log_mu is not None
    total = replace(problem, log_mu=problem.log_mu.sum(axis=1, keepdims=True))
    estimator = quick("kmifqe", clip_per_dimension=True)
    with pytest.raises(InputError, match="clip_per_dimension needs a behaviour density that factorises"):
        trace_one_step(estimator, total)


def test_a_clip_per_dimension_clips_each_ratio_before_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _, _ = lqr_problem(dummies=1)
    h, n = 0.3, problem.counts.in_sample
    estimator = quick("kmifqe", bandwidth=h, clip=PAPER_CLIP, clip_per_dimension=True)
    each = drawing_weights(estimator, first_state(estimator, problem), problem, monkeypatch)
    z = np.asarray(problem.next_actions - problem.target_actions, np.float64)[:n]  # half ranges are 1
    ratios = np.exp(-0.5 * (z / h) ** 2 - np.asarray(problem.log_mu)[:n]) / (np.sqrt(2 * np.pi) * h)
    np.testing.assert_allclose(each, np.clip(ratios, *PAPER_CLIP).prod(axis=1), rtol=1e-3)


def test_one_config_is_one_estimator() -> None:
    assert kmifqe(KMIFQEConfig()) is kmifqe(KMIFQEConfig())
    assert kmifqe().name == "kmifqe"
    assert kmifqe(KMIFQEConfig(metric="identity")).name == "kmifqe-identity"
