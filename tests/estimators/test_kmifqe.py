"""KMIFQE against closed forms, and its treatment of single rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

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
from kmifqe.estimators import Estimate, Estimator, KMIFQEConfig, fit, kmifqe
from kmifqe.estimators.fit import _init
from kmifqe.estimators.kmifqe import KMIFQEState
from kmifqe.estimators.kmifqe_draws import minibatch, words_of_fqe
from kmifqe.maths.envelope import Accepted, Interval, build_envelope
from kmifqe.maths.metric import optimal_metric
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


def test_rows_of_fqe_take_off_their_share_of_the_kernels_bias() -> None:
    # Unclipped weights have mean 1 at every state, so a share of the rows is the same share of every bootstrap.
    h, half_at = 0.6, 0.75
    problem, world, truth = lqr_problem(dummies=1)
    shift = world.relaxation_shift(h, np.eye(2))
    result = run(quick("kmifqe-identity", bandwidth=h, half_fqe_at=half_at), problem)
    share = half_at / (half_at + result.infos["ess"].mean() / problem.counts.in_sample)
    assert 0.4 < share < 0.8
    assert shift < -0.2
    assert result.value - truth == pytest.approx((1 - share) * shift, abs=0.05)


def test_fewer_rows_near_the_target_leave_more_places_to_fqe() -> None:
    problem, _, _ = lqr_problem()
    n, batch = problem.counts.in_sample, 4_000
    config = KMIFQEConfig(batch=batch, half_fqe_at=0.05)
    drawn = Accepted(
        jnp.zeros(batch, int), jnp.zeros(batch, bool), jnp.float32(0.2), jnp.float32(0.2**2 / 0.01)
    )
    taken = minibatch(config, jax.random.bits(jax.random.key(0), (words_of_fqe(config),)), drawn, problem)
    assert taken.ess == pytest.approx(0.01 * n)
    own = np.asarray(taken.of_fqe)
    share = 0.05 / (0.05 + 0.01)
    assert abs(own.mean() - share) < 4 * np.sqrt(share * (1 - share) / batch)
    np.testing.assert_array_equal(taken.filled, own)  # a place stays empty, unless FQE fills it
    np.testing.assert_array_equal(np.asarray(taken.rows)[~own], 0)
    rows = np.asarray(taken.rows)[own]
    assert abs(rows.mean() - (n - 1) / 2) < 4 * n / np.sqrt(12 * len(rows))


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

STEPS_TAKEN = 300  # side by side, from one state


def fixed_weights(estimator: Estimator, problem: Problem) -> np.ndarray:
    """Return the weights by which a step at a fixed bandwidth draws the rows that go on, from their running sums."""
    envelope = first_state(estimator, problem).envelope
    running = np.asarray(envelope.sums[0], np.float64)
    relative = np.diff(running, axis=1, prepend=0.0).ravel()[: problem.counts.going_on]
    return relative * np.exp(float(envelope.log_scale))


def chain_weights(h: float, clip: tuple[float, float]) -> np.ndarray:
    """Return the weights of all rows of the chain that ends: the terminal rows', who come last, are the mean."""
    problem = chain_problem(terminated=True)
    going_on = problem.counts.going_on
    half = 0.5 * float(problem.action_high[0] - problem.action_low[0])
    z = np.asarray(problem.next_actions, np.float64)[:going_on, 0] / half  # π̃ = 0
    w = np.exp(-0.5 * (z / h) ** 2) / (np.sqrt(2 * np.pi) * h) / (0.5 * half)
    w = np.clip(w, *clip)
    return np.append(w, np.full(problem.counts.terminated, w.mean()))


@partial(jax.jit, static_argnums=0)
def _steps(
    estimator: Estimator, state: KMIFQEState, problem: Problem, rewards: jax.Array
) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(1), STEPS_TAKEN)

    def step(key: jax.Array, rewards: jax.Array) -> dict[str, jax.Array]:
        # At t = 1 a bandwidth of period 2 is the state's.
        return estimator.step(key, jnp.int32(1), state, replace(problem, rewards=rewards))[1]

    return jax.vmap(lambda rewards: jax.vmap(lambda key: step(key, rewards))(keys))(rewards)


def steps_from(
    estimator: Estimator, state: KMIFQEState, problem: Problem, sets: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return, for each set of rows and many single steps, the share of the drawn rows in it; and the infos.

    Where Q and Q̄ are 0 and the reward is 1 on a set of rows and 0 elsewhere, the loss is (1−γ)² times that share.
    """
    zero = jax.tree.map(jnp.zeros_like, (state.params, state.ahead.next_value))
    state = state._replace(params=zero[0], ahead=state.ahead._replace(next_value=zero[1]))
    infos = _steps(estimator, state, problem, jnp.asarray(sets, jnp.float32))
    infos = {name: np.asarray(series, np.float64) for name, series in infos.items()}
    return infos["loss"] / (1.0 - float(problem.gamma)) ** 2, {k: v[0] for k, v in infos.items()}


def assert_mean_within_errors(samples: np.ndarray, exact: float, slack: float = 1e-6) -> None:
    assert abs(samples.mean() - exact) < 4 * samples.std(ddof=1) / np.sqrt(len(samples)) + slack


def sets_of_rows(problem: Problem) -> np.ndarray:
    """Return the terminal rows, the rows near the target action, and three sets at random."""
    n = problem.counts.in_sample
    near = np.abs(np.asarray(problem.next_actions)[:n, 0]) < 0.1
    random = np.random.default_rng(0).random((3, n)) < 0.3
    return np.stack([np.asarray(problem.terminated)[:n], near & ~np.asarray(problem.terminated)[:n], *random])


def test_weights_are_kernel_over_density() -> None:
    problem, estimator = chain_problem(terminated=True), chain_kmifqe()
    w = fixed_weights(estimator, problem)
    expected = chain_weights(estimator.config.bandwidth, PAPER_CLIP)[: problem.counts.going_on]
    np.testing.assert_allclose(w, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "mode, where",
    [("fixed", "middle"), ("envelope", "low"), ("envelope", "middle"), ("envelope", "high")],
)
def test_a_step_draws_rows_by_their_weights_and_terminal_rows_by_the_mean_of_the_others(
    mode: str, where: str
) -> None:
    problem = chain_problem(terminated=True)
    estimator = {
        "fixed": chain_kmifqe(),
        "envelope": quick("kmifqe", clip=PAPER_CLIP, bandwidth_period=2),
    }[mode]
    state = first_state(estimator, problem)
    low, high = map(float, state.envelope.interval)
    h = {"low": low, "middle": float(state.h), "high": high}[where]
    state = state._replace(h=jnp.float32(h))
    shares, infos = steps_from(estimator, state, problem, sets_of_rows(problem))
    np.testing.assert_allclose(infos["h"], h, rtol=1e-5)
    w = chain_weights(h, PAPER_CLIP)
    for share, rows in zip(shares, sets_of_rows(problem), strict=True):
        assert_mean_within_errors(share, w[rows].sum() / w.sum())
    assert_mean_within_errors(infos["mean_weight"], w.mean(), slack=1e-4 * w.mean())
    # A ratio of two estimates from 128 proposals: a few per cent of bias.
    assert infos["ess"].mean() == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=0.05)


def test_a_short_minibatch_has_its_share_of_terminal_rows() -> None:
    problem, estimator = chain_problem(terminated=True), quick("kmifqe", clip=PAPER_CLIP, bandwidth_period=2)
    state = first_state(estimator, problem)._replace(h=jnp.float32(0.02))
    assert problem.log_mu is not None
    half = 0.5 * (problem.action_high - problem.action_low)
    log_mu = problem.log_mu[: problem.counts.going_on] + jnp.log(half)
    wide = Interval(jnp.float32(0.02), jnp.float32(2.0))
    envelope = build_envelope(state.ahead.squared, wide, log_mu, 1, PAPER_CLIP)
    shares, infos = steps_from(estimator, state._replace(envelope=envelope), problem, sets_of_rows(problem))
    assert infos["filled"].max() < 0.9, "far too few proposals are accepted on so long an interval"
    w = chain_weights(0.02, PAPER_CLIP)
    for share, rows in zip(shares, sets_of_rows(problem), strict=True):
        assert_mean_within_errors(share, w[rows].sum() / w.sum())


def test_unclipped_weights_have_mean_one() -> None:
    problem, _, _ = lqr_problem()
    w = fixed_weights(quick("kmifqe", bandwidth=0.3), problem)
    assert abs(w.mean() - 1.0) < 4 * w.std() / np.sqrt(len(w))


def test_units_of_the_action_change_no_weight() -> None:
    problem, _, _ = lqr_problem()
    assert problem.log_mu is not None
    scale = 7.0
    names = ("actions", "next_actions", "target_actions", "first_actions", "action_low", "action_high")
    longer = {name: scale * getattr(problem, name) for name in names}
    stretched = replace(problem, **longer, log_mu=problem.log_mu - np.log(scale))
    one, other = (fixed_weights(quick("kmifqe", bandwidth=0.3), p) for p in (problem, stretched))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_nothing_lies_beyond_a_terminal_row() -> None:
    problem, estimator = chain_problem(terminated=True), chain_kmifqe()
    terminal = np.asarray(problem.terminated)
    copied = jax.tree.map(lambda leaf: leaf[0], run(estimator, problem, steps=RECORD_EVERY).final_state)
    for state in (first_state(estimator, problem), copied):
        for ahead in (state.ahead.laplacian, state.ahead.next_value, state.ahead.target_value):
            assert (np.asarray(ahead)[terminal] == 0.0).all()
            assert (np.asarray(ahead)[~terminal] != 0.0).all()


def test_rows_without_a_next_action_are_left_out() -> None:
    problem, _, _ = lqr_problem()
    state = first_state(quick("kmifqe"), problem)
    assert problem.counts.without_next_action == problem.counts.episodes
    assert len(state.ahead.next_value) == problem.counts.in_sample == len(problem) - problem.counts.episodes


# --- Envelope and periods


def test_the_envelope_changes_no_estimate() -> None:
    problem, _, _ = lqr_problem()
    followed, anew = learned_bandwidth_run(0.8), run(quick("kmifqe", envelope_period=0), problem)
    standard_error = np.hypot(followed.standard_error, anew.standard_error)
    assert abs(followed.value - anew.value) < 4 * standard_error
    h_followed, h_anew = (
        result.infos["h"][len(result.infos["h"]) // 2 :].mean() for result in (followed, anew)
    )
    assert h_followed == pytest.approx(h_anew, rel=0.05)
    assert followed.infos["filled"].mean() > 0.99
    assert (anew.infos["filled"] == 1.0).all()


def test_between_two_envelopes_h_is_kept_within_the_interval() -> None:
    problem, estimator = chain_problem(terminated=True), quick("kmifqe", clip=PAPER_CLIP, bandwidth_period=2)
    state = first_state(estimator, problem)
    for far, end in (
        (0.5 * state.envelope.interval.low, "low"),
        (2.0 * state.envelope.interval.high, "high"),
    ):
        _, infos = steps_from(estimator, state._replace(h=far), problem, sets_of_rows(problem))
        np.testing.assert_array_equal(infos["h"], float(getattr(state.envelope.interval, end)))


def test_the_envelope_follows_a_seed_whose_h_has_drifted_and_no_other() -> None:
    problem, _, _ = lqr_problem()
    estimator = quick("kmifqe")
    assert estimator.refresh is not None
    keys = jnp.stack([jax.random.key(seed) for seed in range(SEEDS)])
    before = _init(estimator, keys, problem)
    margin = 1.0 / (problem.action_dim + 4)
    # Seed 1 has drifted by more than half a margin, seed 2 by less.
    moved = before._replace(log_h=before.log_h + jnp.array([0.0, 1.0, 0.4]) * margin)
    refresh = jax.jit(jax.vmap(partial(estimator.refresh, "envelope"), in_axes=(0, None)))
    after = refresh(moved, problem)
    kept = np.array([0, 2])
    jax.tree.map(
        lambda old, new: np.testing.assert_array_equal(old[kept], new[kept]), before.envelope, after.envelope
    )
    for old, new in zip(before.envelope.interval, after.envelope.interval, strict=True):
        assert float(new[1] / old[1]) == pytest.approx(np.exp(margin), rel=1e-4)
    low, high = (np.log(end[1]) for end in after.envelope.interval)
    assert low < float(moved.log_h[1]) < high
    jax.tree.map(np.testing.assert_array_equal, before.ahead, after.ahead)
    untouched = refresh(before, problem)
    jax.tree.map(np.testing.assert_array_equal, before.envelope, untouched.envelope)


def test_metric_and_bandwidth_are_new_only_when_their_periods_end() -> None:
    problem = lqr_problem(dummies=1)[0].head(500)
    estimator = quick("kmifqe", metric_period=3, bandwidth_period=RECORD_EVERY)
    keys = jnp.stack([jax.random.key(seed) for seed in range(SEEDS)])
    first = jax.tree.map(np.asarray, _init(estimator, keys, problem))
    once = run(estimator, problem, steps=RECORD_EVERY).final_state
    result = run(estimator, problem, steps=2 * RECORD_EVERY)
    twice = result.final_state
    for field in ("squared", "laplacian", "next_value", "target_value"):  # new at the first copy
        assert (getattr(first.ahead, field) != getattr(once.ahead, field)).mean() > 0.9
    # The second of three: new bootstrap values, and the rest as it was.
    assert (once.ahead.next_value != np.asarray(twice.ahead.next_value)).mean() > 0.9
    for field in ("squared", "laplacian", "target_value"):
        np.testing.assert_array_equal(getattr(once.ahead, field), getattr(twice.ahead, field))
    # Steps 0 and 50 gave a bandwidth, the others kept it: so h is its own mean over a record.
    assert (first.h != np.asarray(once.h)).all()
    assert (np.asarray(once.h) != np.asarray(twice.h)).all()
    np.testing.assert_allclose(result.infos["h"], [once.h, twice.h], rtol=1e-5)


def test_the_estimate_is_the_mean_over_the_copies_from_the_average_step_on() -> None:
    problem, _, _ = lqr_problem()
    estimator = quick("kmifqe", target_period=5, average_step=20)
    often, seldom = (fit(estimator, problem, seeds=2, steps=50, record_every=every) for every in (5, 50))
    late = often.recorded_steps > 20
    np.testing.assert_allclose(often.values, often.trajectory[late].mean(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(often.values, seldom.values)
    assert (np.abs(often.values - often.trajectory[-1]) > 1e-4).all()
    before = fit(estimator, problem, seeds=2, steps=15)
    np.testing.assert_array_equal(before.values, before.trajectory[-1])


def test_a_network_that_starts_at_the_mean_differs_from_one_that_does_not_by_the_mean_reward() -> None:
    problem, _, _ = lqr_problem()
    mean = float(problem.rewards.mean())
    at_mean, at_zero = (
        estimator.value(estimator.init(jax.random.key(0), problem), problem)
        for estimator in (quick("kmifqe", start_at_mean=True), quick("kmifqe"))
    )
    assert float(at_mean - at_zero) == pytest.approx(mean, rel=1e-4)
    large = replace(problem, rewards=1e6 * problem.rewards)  # learned in a unit of its own
    estimator = quick("kmifqe", start_at_mean=True)
    assert float(estimator.value(estimator.init(jax.random.key(0), large), large)) == pytest.approx(
        1e6 * mean, rel=0.5
    )


def test_what_is_due_when() -> None:
    e = quick("kmifqe", target_period=100, metric_period=3, envelope_period=20)
    assert e.refresh_every == 20
    due = [e.refresh_kind(step) for step in (20, 100, 120, 200, 300, 400, 600)]
    assert due == ["envelope", "all", "envelope", "values", "all", "values", "all"]
    assert e.restart_every == 300
    assert quick("kmifqe", target_period=100, envelope_period=30).refresh_every == 25
    assert quick("kmifqe", target_period=97, envelope_period=30).refresh_every == 97  # not every step
    for settings in ({"envelope_period": 0}, {"bandwidth": 0.3}):
        e = quick("kmifqe", target_period=100, **settings)
        assert e.refresh_every == 100
        assert [e.refresh_kind(step) for step in (100, 200)] == ["all", "all"]


# --- Settings


def test_a_clip_per_dimension_clips_each_ratio_before_the_product() -> None:
    problem, _, _ = lqr_problem(dummies=1)
    h, n = 0.3, problem.counts.in_sample
    each = fixed_weights(quick("kmifqe", bandwidth=h, clip=PAPER_CLIP, clip_per_dimension=True), problem)
    z = np.asarray(problem.next_actions - problem.target_actions, np.float64)[:n]  # half ranges are 1
    ratios = np.exp(-0.5 * (z / h) ** 2 - np.asarray(problem.log_mu)[:n]) / (np.sqrt(2 * np.pi) * h)
    np.testing.assert_allclose(each, np.clip(ratios, *PAPER_CLIP).prod(axis=1), rtol=1e-3, atol=1e-4)


def test_one_config_is_one_estimator() -> None:
    assert kmifqe(KMIFQEConfig()) is kmifqe(KMIFQEConfig())
    assert kmifqe().name == "kmifqe"
    assert kmifqe(KMIFQEConfig(metric="identity")).name == "kmifqe-identity"
