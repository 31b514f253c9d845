"""Which rows KMIFQE draws, and with which weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import PAPER_CLIP, chain_kmifqe, chain_problem, first_state, lqr_problem, quick
from kmifqe.estimators import Estimator
from kmifqe.estimators.kmifqe.algorithm import KMIFQEState
from kmifqe.maths.sampling import Interval, build_envelope
from kmifqe.mdp.problem import Problem

SINGLE_STEPS = 300  # side by side, from one state


def fixed_weights(estimator: Estimator, problem: Problem) -> np.ndarray:
    """Return the weights by which a step at a fixed bandwidth draws the rows that go on, from their running sums."""
    envelope = first_state(estimator, problem).envelope
    running = np.asarray(envelope.sums[0], np.float64)
    relative = np.diff(running, axis=1, prepend=0.0).ravel()[: problem.counts.nonterminal]
    return relative * np.exp(float(envelope.log_scale))


def chain_weights(h: float, clip: tuple[float, float]) -> np.ndarray:
    """Return the weights of all rows of the chain that ends: the terminal rows', who come last, are the mean."""
    problem = chain_problem(terminated=True)
    nonterminal = problem.counts.nonterminal
    half = 0.5 * float(problem.action_high[0] - problem.action_low[0])
    z = np.asarray(problem.next_actions, np.float64)[:nonterminal, 0] / half  # π̃ = 0
    w = np.exp(-0.5 * (z / h) ** 2) / (np.sqrt(2 * np.pi) * h) / (0.5 * half)
    w = np.clip(w, *clip)
    return np.append(w, np.full(problem.counts.terminated, w.mean()))


@partial(jax.jit, static_argnums=0)
def _steps(
    estimator: Estimator, state: KMIFQEState, problem: Problem, rewards: jax.Array
) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(1), SINGLE_STEPS)

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
    zero = jax.tree.map(jnp.zeros_like, (state.params, state.table.bootstrap_value))
    state = state._replace(params=zero[0], table=state.table._replace(bootstrap_value=zero[1]))
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
    expected = chain_weights(estimator.config.bandwidth, PAPER_CLIP)[: problem.counts.nonterminal]
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
        "envelope": quick("kmifqe-paper", clip=PAPER_CLIP, bandwidth_period=2),
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
    problem, estimator = (
        chain_problem(terminated=True),
        quick("kmifqe-paper", clip=PAPER_CLIP, bandwidth_period=2),
    )
    state = first_state(estimator, problem)._replace(h=jnp.float32(0.02))
    assert problem.log_mu is not None
    half = 0.5 * (problem.action_high - problem.action_low)
    log_mu = problem.log_mu[: problem.counts.nonterminal] + jnp.log(half)
    wide = Interval(jnp.float32(0.02), jnp.float32(2.0))
    envelope = build_envelope(state.table.squared, wide, log_mu, 1, PAPER_CLIP)
    shares, infos = steps_from(estimator, state._replace(envelope=envelope), problem, sets_of_rows(problem))
    assert infos["filled"].max() < 0.9, "far too few proposals are accepted on so long an interval"
    w = chain_weights(0.02, PAPER_CLIP)
    for share, rows in zip(shares, sets_of_rows(problem), strict=True):
        assert_mean_within_errors(share, w[rows].sum() / w.sum())


def test_unclipped_weights_have_mean_one() -> None:
    problem, _, _ = lqr_problem()
    w = fixed_weights(quick("kmifqe-paper", bandwidth=0.3), problem)
    assert abs(w.mean() - 1.0) < 4 * w.std() / np.sqrt(len(w))


def test_units_of_the_action_change_no_weight() -> None:
    problem, _, _ = lqr_problem()
    assert problem.log_mu is not None
    scale = 7.0
    names = ("actions", "next_actions", "target_actions", "first_actions", "action_low", "action_high")
    longer = {name: scale * getattr(problem, name) for name in names}
    stretched = replace(problem, **longer, log_mu=problem.log_mu - np.log(scale))
    one, other = (fixed_weights(quick("kmifqe-paper", bandwidth=0.3), p) for p in (problem, stretched))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_clip_per_dimension_clips_each_ratio_before_the_product() -> None:
    problem, _, _ = lqr_problem(dummies=1)
    h, n = 0.3, problem.counts.in_sample
    each = fixed_weights(
        quick("kmifqe-paper", bandwidth=h, clip=PAPER_CLIP, clip_per_dimension=True), problem
    )
    z = np.asarray(problem.next_actions - problem.target_actions, np.float64)[:n]  # half ranges are 1
    ratios = np.exp(-0.5 * (z / h) ** 2 - np.asarray(problem.log_mu)[:n]) / (np.sqrt(2 * np.pi) * h)
    np.testing.assert_allclose(each, np.clip(ratios, *PAPER_CLIP).prod(axis=1), rtol=1e-3, atol=1e-4)


def test_between_two_envelopes_h_is_kept_within_the_interval() -> None:
    problem, estimator = (
        chain_problem(terminated=True),
        quick("kmifqe-paper", clip=PAPER_CLIP, bandwidth_period=2),
    )
    state = first_state(estimator, problem)
    for far, end in (
        (0.5 * state.envelope.interval.low, "low"),
        (2.0 * state.envelope.interval.high, "high"),
    ):
        _, infos = steps_from(estimator, state._replace(h=far), problem, sets_of_rows(problem))
        np.testing.assert_array_equal(infos["h"], float(getattr(state.envelope.interval, end)))
