"""Importance sampling: hand-made sums, identities between its kinds, and worlds of known value."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from estimators.small import UniformDensity, centre, estimator_with, make_world
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, fit
from kmifqe.mdp.problem import Problem, row_order, trajectory_rows
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks.ratios import EFFECTIVE, ratio_checks
from kmifqe.worlds.lqr import LQR, LinearGaussian
from kmifqe.worlds.stochastic_lqr import GaussianLinearPolicy, stochastic_target

KINDS = ("is", "wis", "pdis", "wpdis", "incris")
STANDARD_ERRORS = 4.0


def answer(kind: str, problem: Problem, **settings: float) -> Estimate:
    return fit(estimator_with(kind, **settings), problem, seeds=1)


@cache
def world_and_log(gamma: float, length: int, end_rate: float = 0.0) -> tuple[LQR, Transitions]:
    base = make_world(gamma)
    world = LQR(**{**base.__dict__, "end_rate": end_rate, "behavior_std": np.array([0.4])})
    return world, world.collect(0, 20_000 // length, length)


@cache
def deterministic(gamma: float, length: int, end_rate: float = 0.0) -> tuple[Problem, float]:
    world, log = world_and_log(gamma, length, end_rate)
    return Problem.build(log, world.policy, world.behavior, gamma, trajectories=True), world.value


@cache
def stochastic(gamma: float, length: int, std: float) -> tuple[Problem, float]:
    world, log = world_and_log(gamma, length)
    target, value = stochastic_target(world, std)
    return Problem.build(log, target, world.behavior, gamma, trajectories=True, draws=1), value


def two_episodes(*, terminated: bool) -> tuple[Transitions, np.ndarray]:
    """Return two episodes of two steps with rewards 1, 2 and 3, 4, and their actions."""
    actions = np.array([[0.1], [-0.2], [0.3], [0.0]])
    ends = np.array([False, True, False, True])
    nothing = np.zeros(4, bool)
    log = Transitions.from_arrays(
        np.zeros((4, 1)),
        actions,
        np.array([1.0, 2.0, 3.0, 4.0]),
        ends if terminated else nothing,
        nothing if terminated else ends,
        np.zeros((4, 1)),
    )
    return log, actions[:, 0].reshape(2, 2)


@pytest.mark.parametrize("terminated", [True, False])
def test_the_sums_are_those_one_writes_down(terminated: bool) -> None:
    """By hand, with h = 0.5 around 0, μ = ½ and γ = ½; a cut hides γ² = ¼ of the future."""
    log, a = two_episodes(terminated=terminated)
    problem = Problem.build(log, centre, UniformDensity(), 0.5, trajectories=True)
    half = float(problem.action_high[0] - problem.action_low[0]) / 2.0  # the range seen: h is in half ranges
    rho = np.exp(-0.5 * (a / (0.5 * half)) ** 2) / (0.5 * half * np.sqrt(2 * np.pi)) / 0.5
    product, r, discounts = (
        np.cumprod(rho, axis=1),
        np.array([[1.0, 2.0], [3.0, 4.0]]),
        0.5 * 0.5 ** np.arange(2),
    )
    returns, seen = r @ discounts, 1.0 if terminated else 0.75
    expected = {
        "is": np.mean(product[:, -1] * returns),
        "wis": np.average(returns, weights=product[:, -1]),
        "pdis": np.mean(product * r, axis=0) @ discounts,
        "wpdis": (np.sum(product * r, axis=0) / np.sum(product, axis=0)) @ discounts,
    }
    for kind, value in expected.items():
        assert answer(kind, problem, bandwidth=0.5).value == pytest.approx(value / seen, rel=1e-5), kind


@pytest.mark.parametrize("kinds", [("is", "pdis"), ("wis", "wpdis")])
def test_per_decision_equals_trajectory_wise_at_horizon_one(kinds: tuple[str, str]) -> None:
    problem, _ = deterministic(0.5, 1)
    one, other = (answer(kind, problem) for kind in kinds)
    assert one.value == pytest.approx(other.value, rel=1e-5)
    assert one.infos["standard_error"][0, 0] == pytest.approx(other.infos["standard_error"][0, 0], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_is_the_behaviour_gives_the_mean_return(kind: str) -> None:
    world, log = world_and_log(0.5, 5)
    target = GaussianLinearPolicy(world.policy, LinearGaussian(world.behavior_gain, world.behavior_std))
    problem = Problem.build(log, target, world.behavior, 0.5, trajectories=True, draws=1)
    returns = 0.5 * log.rewards.reshape(-1, 5) @ 0.5 ** np.arange(5)
    found = answer(kind, problem)
    assert found.value == pytest.approx(returns.mean() / (1 - 0.5**5), rel=1e-5)
    assert found.infos["effective_episodes"][0, 0] == pytest.approx(len(returns), rel=1e-4)


@pytest.mark.parametrize("kind", ["is", "pdis", "incris"])
def test_the_mean_of_weights_that_are_not_divided_by_their_sum_is_one(kind: str) -> None:
    problem, _ = stochastic(0.5, 8, 0.3)
    found = answer(kind, problem)
    share = 1.0 / np.sqrt(float(found.infos["effective_episodes"][0, 0]))
    assert abs(float(found.infos["mean_episode_weight"][0, 0]) - 1.0) < STANDARD_ERRORS * share


@pytest.mark.parametrize("kind", ["is", "pdis"])
def test_a_density_that_says_half_of_the_truth_doubles_the_estimate_and_is_noticed(kind: str) -> None:
    single, _ = stochastic(0.5, 1, 0.3)
    assert single.first_log_mu is not None
    halved = replace(single, first_log_mu=single.first_log_mu - np.log(2.0))
    right, wrong = answer(kind, single), answer(kind, halved)
    assert wrong.value == pytest.approx(2.0 * right.value, rel=1e-5)
    for estimate, level in ((right, "ok"), (wrong, "bad")):
        (check,) = [each for each in ratio_checks(estimate, 1) if each.name == "mean_weight"]
        assert check.level == level


@pytest.mark.parametrize("kind", KINDS)
def test_deterministic_targets_are_found_within_the_standard_error(kind: str) -> None:
    for problem, value in (deterministic(0.5, 8), deterministic(0.5, 12, 0.3)):
        found = answer(kind, problem)
        error = float(found.infos["standard_error"][0, 0])
        assert abs(found.value - value) < STANDARD_ERRORS * error, kind
        assert error < 0.25 * abs(value)


@pytest.mark.parametrize("kind", KINDS)
def test_stochastic_targets_are_found_within_the_standard_error(kind: str) -> None:
    problem, value = stochastic(0.5, 8, 0.3)
    found = answer(kind, problem)
    error = float(found.infos["standard_error"][0, 0])
    assert abs(found.value - value) < STANDARD_ERRORS * error
    assert error < 0.1 * abs(value)
    assert "bandwidth" not in found.infos


def test_the_kernels_bias_is_what_the_world_says_and_is_removed() -> None:
    """With a fixed h the value is that of a target with normal noise of h, the first action included."""
    problem, value = deterministic(0.5, 8)
    _, relaxed = stochastic_target(world_and_log(0.5, 8)[0], 0.25)
    fixed = answer("wpdis", problem, bandwidth=0.25)
    error = float(fixed.infos["standard_error"][0, 0])
    assert abs(fixed.value - relaxed) < STANDARD_ERRORS * error
    assert abs(fixed.value - value) > 2 * STANDARD_ERRORS * error
    removed = answer("wpdis", problem)
    assert abs(removed.value - value) < STANDARD_ERRORS * float(removed.infos["standard_error"][0, 0])


@pytest.mark.parametrize("kind", ["wis", "wpdis"])
def test_constant_rewards_are_worth_themselves_where_weights_add_up_to_one(kind: str) -> None:
    log = world_and_log(0.5, 8)[1]
    constant = Transitions(**{**log.__dict__, "rewards": np.full_like(log.rewards, 7.0)})
    world = world_and_log(0.5, 8)[0]
    problem = Problem.build(constant, world.policy, world.behavior, 0.5, trajectories=True)
    assert answer(kind, problem).value == pytest.approx(7.0, rel=1e-5)


def lengths_log(last: np.ndarray, cut: np.ndarray, reward: float) -> Transitions:
    """Return episodes that end after step `last`, or are cut after step `cut` if that is sooner; normal actions."""
    lengths = np.minimum(last, cut) + 1
    ends, is_last = np.zeros(lengths.sum(), bool), np.zeros(lengths.sum(), bool)
    is_last[np.cumsum(lengths) - 1] = True
    ends[np.cumsum(lengths) - 1] = last <= cut
    actions = np.random.default_rng(1).normal(0.0, 1.0, (len(ends), 1))
    states = np.zeros((len(ends), 1))
    rewards = np.full(len(ends), reward)
    return Transitions.from_arrays(states, actions, rewards, ends, is_last & ~ends, states)


def test_episodes_cut_at_different_lengths_leave_constant_rewards_as_they_are() -> None:
    """The narrow target makes products of 60 ratios e⁻²⁰⁰ as large as those of episodes that were cut at once."""
    log = lengths_log(np.full(40, 1_000), np.arange(40) * 3 // 2, 7.0)
    behavior = LinearGaussian(np.zeros((1, 1)), np.ones(1))
    target = GaussianLinearPolicy(make_world().policy, LinearGaussian(np.zeros((1, 1)), np.full(1, 0.3)))
    problem = Problem.build(log, target, behavior, 0.9, trajectories=True, draws=1)
    for kind in ("wis", "wpdis"):
        assert answer(kind, problem).value == pytest.approx(7.0, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_at_random_do_not_make_ends_seem_more_frequent(kind: str) -> None:
    """Every step is the last with a chance of 0.2; two in five episodes are cut before they end."""
    rng, gamma = np.random.default_rng(0), 0.9
    log = lengths_log(rng.geometric(0.2, 4_000) - 1, rng.integers(0, 8, 4_000), 1.0)
    behavior = LinearGaussian(np.zeros((1, 1)), np.ones(1))
    target = GaussianLinearPolicy(make_world().policy, behavior)
    problem = Problem.build(log, target, behavior, gamma, trajectories=True, draws=1)
    found = answer(kind, problem)
    error = float(found.infos["standard_error"][0, 0])
    # What was seen of eight steps stands for the rest, and here it is no guess: all steps are alike.
    assert abs(found.value - (1.0 - gamma) / (1.0 - 0.8 * gamma)) < STANDARD_ERRORS * error
    assert error < 0.01


def test_bootstrap_replicates_spread_like_the_standard_error() -> None:
    problem, _ = deterministic(0.5, 8)
    replicates = fit(estimator_with("wpdis"), problem, seeds=40, bootstrap=True, steps=1_000)
    assert replicates.steps == 1, "one step answers, however many are asked for"
    error = float(fit(estimator_with("wpdis"), problem, seeds=1).infos["standard_error"][0, 0])
    assert 0.6 * error < replicates.spread < 1.6 * error


def test_incremental_sampling_drops_ratios_that_do_not_matter() -> None:
    """Rewards here depend on the last action only: dropping earlier ratios costs no bias and saves variance."""
    rng = np.random.default_rng(0)
    actions, n = rng.normal(0.0, 1.0, (300, 20)), 6000
    log = Transitions.from_arrays(
        np.zeros((n, 1)),
        actions.reshape(n, 1),
        actions.ravel() + rng.normal(0.0, 0.1, n),
        np.zeros(n, bool),
        np.arange(1, n + 1) % 20 == 0,
        np.zeros((n, 1)),
    )
    behavior = LinearGaussian(np.zeros((1, 1)), np.ones(1))

    class Shifted(GaussianLinearPolicy):
        def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
            return self.density.log_prob(states, actions - 0.5)

    target = Shifted(make_world().policy, behavior)
    problem = Problem.build(log, target, behavior, 0.9, trajectories=True, draws=1)
    errors = {kind: float(answer(kind, problem).infos["standard_error"][0, 0]) for kind in ("pdis", "incris")}
    assert errors["incris"] < 0.6 * errors["pdis"]
    assert abs(answer("incris", problem).value - 0.5) < STANDARD_ERRORS * errors["incris"]


def test_an_episode_is_followed_until_rows_were_lost() -> None:
    states = np.arange(11.0)[:, None]
    following = states + 1.0
    following[2] = 50.0  # the row after row 2 was lost
    ends = np.isin(np.arange(11), (4, 10))
    log = Transitions.from_arrays(states, np.zeros((11, 1)), np.ones(11), np.zeros(11, bool), ends, following)
    order, _ = row_order(log)
    laid_out = trajectory_rows(log, order, 0.9)
    followed = [[int(order[row]) for row in episode if row >= 0] for episode in laid_out]
    assert followed == [[0, 1], [5, 6, 7, 8, 9, 10]]
    assert trajectory_rows(log, order, 0.0).shape[1] == 1, "without a future the first step is all"


def test_a_problem_that_was_not_laid_out_or_has_no_density_is_refused() -> None:
    world, log = world_and_log(0.5, 8)
    with pytest.raises(InputError, match="follows episodes"):
        answer("pdis", Problem.build(log, world.policy, world.behavior, 0.5))
    with pytest.raises(InputError, match="needs a behaviour density"):
        answer("pdis", Problem.build(log, world.policy, None, 0.5, trajectories=True))


def test_where_no_bandwidth_leaves_enough_episodes_few_are_reported() -> None:
    """A kernel as wide as the logged actions would leave many, and give about the behaviour's value."""
    world = make_world(0.8)
    problem = Problem.build(world.collect(0, 60, 25), world.policy, world.behavior, 0.8, trajectories=True)
    for kind in ("is", "wis"):
        found = answer(kind, problem)
        assert found.infos["effective_episodes"][0, 0] < 10.0
        assert EFFECTIVE.level(float(found.infos["effective_episodes"][0, 0])) == "bad"
