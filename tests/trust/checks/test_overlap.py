"""Wrong densities and distant targets, planted in varied worlds: found there and not in the sound ones."""

from dataclasses import replace

import numpy as np
import pytest

from kmifqe.experiments.planted import Shifted, changed, ended_log, log_of, problem_of, world_of
from kmifqe.experiments.problems_base import hopeless
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.overlap import (
    LOOKED_AT,
    REFERENCE_BANDWIDTHS,
    DensityFacts,
    compared_actions,
    density_facts,
    density_fit,
    mean_and_error,
    next_actions,
    overlap_checks,
    overlap_facts,
    target_density,
)
from kmifqe.worlds.stochastic_lqr import stochastic_target

VARIED = [(21, 1, 60, 15), (22, 2, 150, 20), (23, 4, 300, 20)]  # seed, action dimensions, episodes, length
every_size = pytest.mark.parametrize("seed, d, episodes, length", VARIED)


def overlap_of(problem):
    return overlap_facts(problem, next_actions(problem))


def density_of(problem):
    return density_facts(problem, next_actions(problem))


def found(problem):
    checks = overlap_checks(overlap_of(problem), density_of(problem), uses_density=True)
    return {check.name: check for check in checks}


@every_size
def test_a_right_density_and_a_near_target_raise_no_alarm(seed, d, episodes, length):
    world = world_of(seed, d)
    assert {x.level for x in found(problem_of(world, log_of(world, seed, episodes, length))).values()} == {
        "ok"
    }


@pytest.mark.parametrize("fault", ["shifted", "wide", "narrow"])
@every_size
def test_a_wrong_density_is_named(seed, d, episodes, length, fault):
    world = world_of(seed, d)
    right = world.behavior
    told = {
        "shifted": Shifted(right.gain, right.std, 0.5),
        "wide": replace(right, std=1.4 * right.std),
        "narrow": replace(right, std=0.7 * right.std),
    }[fault]
    misfit = found(problem_of(world, log_of(world, seed, episodes, length), told=told))["density_fit"]
    assert misfit.level != "ok"
    assert misfit.finding.startswith("The behaviour density does not fit the logged actions")


@every_size
def test_a_target_far_outside_the_log_is_named(seed, d, episodes, length):
    world = world_of(seed, d)
    far = world.gain + 8.0 * np.sign(world.gain)
    told = found(problem_of(world, log_of(world, seed, episodes, length), gain=far))
    assert (told["distance"].level, told["rare_actions"].level) == ("bad", "bad")
    assert "the target acts outside what was logged" in told["distance"].finding


def misfit(weights, errors, rows=500):
    facts = DensityFacts(
        reference_weights=weights, reference_errors=errors, reference_rows=[float(rows)] * len(weights)
    )
    return density_fit(facts)


def test_an_error_within_its_standard_error_is_no_misfit():
    assert misfit([1.3, 0.9], [0.08, 0.03]).value == 0
    beyond = misfit([1.3, 0.9], [0.07, 0.03])
    assert (beyond.value, beyond.level) == (pytest.approx(0.3), "bad")


def test_too_large_and_too_small_weights_count_alike():
    assert misfit([1.25, 0.5], [0.01, 0.01]).value == pytest.approx(1.0)


def test_a_density_that_cannot_be_checked_asks_for_care():
    unknown = misfit([0.2], [0.01], rows=5)
    assert (unknown.level, unknown.value) == ("care", None)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_target_whose_density_is_twice_too_large_is_named(factor):
    world = world_of(0)
    target, _ = stochastic_target(world, world.behavior_std)
    log = log_of(world, 0, 80, 15)
    problem = Problem.build(log, target, world.behavior, world.gamma, draws=1)
    problem = replace(problem, log_pi=problem.log_pi + np.log(factor))
    check = target_density(*density_of(problem).target_ratio)
    assert check.level == ("ok" if factor == 1.0 else "bad")
    assert check.value == pytest.approx(factor - 1.0, abs=0.3)


@pytest.mark.parametrize("d", [1, 3])
def test_mean_reference_weights_are_1_within_their_standard_errors_if_the_density_is_right(d):
    z = []
    for seed in range(8):
        world = world_of(seed, d, away=1.0)
        density = density_of(problem_of(world, log_of(world, seed, 80, 15)))
        z += ((np.array(density.reference_weights) - 1) / density.reference_errors).tolist()
    assert np.abs(z).max() < 4
    assert 0.7 < np.std(z) < 1.3  # the errors, with episodes as units, are neither too small nor too large


def test_a_wrong_width_changes_the_mean_weight_by_the_ratio_of_the_widths():
    # φ has half the true width: E[φ/μ'] = ∫ φ μ/μ', for μ' twice as wide 2·E exp(−⅜z²) with z² of mean ¼.
    world = world_of(0)
    told = replace(world.behavior, std=2.0 * world.behavior.std)
    density = density_of(problem_of(world, log_of(world, 0, 400, 20), told=told))
    expected = 2.0 / np.sqrt(1 + 0.75 * 0.25)
    error = density.reference_errors[0] + 0.02 * expected  # the width is itself estimated, to about 1 %
    assert abs(density.reference_weights[0] - expected) < 4 * error


def test_a_shifted_mean_makes_weights_lopsided():
    world = world_of(1)
    density = density_of(
        problem_of(
            world, log_of(world, 1, 400, 20), told=Shifted(world.behavior.gain, world.behavior.std, 0.5)
        )
    )
    _, below, above = density.reference_weights
    # μ/μ' = exp(−½z + ⅛) in residual units; over N(±1, ¼) its mean is exp(∓½ + ⅛ + 1/32).
    assert below == pytest.approx(np.exp(0.5 + 0.125 + 0.03125), rel=0.1)
    assert above == pytest.approx(np.exp(-0.5 + 0.125 + 0.03125), rel=0.1)


@pytest.mark.parametrize("sigmas", [0.0, 2.0, 6.0])
def test_distances_are_in_typical_logged_distances(sigmas):
    world = world_of(2, away=0.0)  # the behaviour's mean is the target's action
    log = log_of(world, 2, 200, 20)
    bound = world.policy

    def moved(states):
        return bound(states) + sigmas * world.behavior_std.astype(np.float32)

    overlap = overlap_of(Problem.build(log, moved, world.behavior, 0.8))
    assert overlap.distance_quantiles[1] == pytest.approx(sigmas, abs=0.15)
    far = sigmas > 1.25 * 2.58
    assert (overlap.distance_outside > 0.99) == far
    assert (overlap.density_outside == 1.0) == far


def test_a_log_that_is_hopeless_by_all_of_its_rows_has_no_more_nearby_rows_than_that():
    """In a sample of the rows a few that hold nearly all weight may be missing, and many rows seem to be near."""
    world = world_of(5, 4, away=4.0)
    problem = problem_of(world, log_of(world, 5, 1_300, 20))
    assert problem.counts.nonterminal > LOOKED_AT
    half = 0.5 * np.asarray(problem.action_high - problem.action_low, np.float64)
    rows = slice(0, problem.counts.nonterminal)
    away = np.asarray(problem.next_actions - problem.target_actions, np.float64)[rows] / half
    log_mu = np.asarray(problem.log_mu, np.float64)[rows].sum(axis=1)
    w = [np.exp(-0.5 * np.sum((away / h) ** 2, axis=1) - log_mu) for h in REFERENCE_BANDWIDTHS]
    facts = overlap_of(problem)
    assert facts.overlap_rows == pytest.approx(max(np.sum(x) ** 2 / np.sum(x**2) for x in w))
    assert hopeless(problem)
    nearby = {check.name: check for check in overlap_checks(facts, None, uses_density=False)}["nearby_rows"]
    assert nearby.level == "care"


def test_compared_actions_are_as_far_apart_as_the_policies_in_standard_deviations_of_the_log():
    world = world_of(6, 2)
    log = log_of(world, 6, 200, 20)
    std = log.actions.std(axis=0)
    kept = [
        np.array(compared_actions(Problem.build(log, lambda s, by=by: world.policy(s) + by * std, None, 0.8)))
        for by in (0.0, 1.5)
    ]
    np.testing.assert_allclose(kept[1] - kept[0], 1.5, rtol=0.02)
    # As many states as are kept tell how far the target acts from one that does nothing.
    whole = np.mean((world.policy(log.next_states) / std) ** 2)
    np.testing.assert_allclose(np.mean(kept[0] ** 2), whole, rtol=0.5)


def test_a_target_on_the_edge_of_a_uniform_log_is_not_outside():
    rng = np.random.default_rng(0)
    world = world_of(3)
    log = log_of(world, 3, 200, 20)
    log = changed(log, actions=rng.uniform(-1, 1, log.actions.shape))
    problem = Problem.build(log, lambda s: np.ones((len(s), 1)), None, 0.8)
    assert overlap_of(problem).distance_outside < 0.01


def test_the_regression_is_not_a_straight_line():
    """A behaviour that saturates: a straight line would leave residuals three times the noise."""
    world = world_of(4)
    log = log_of(world, 4, 200, 20)
    rng = np.random.default_rng(0)
    mean = np.sign(log.states[:, :1])
    log = changed(log, actions=mean + 0.1 * rng.standard_normal(log.actions.shape))
    problem = Problem.build(log, lambda s: np.sign(s[:, :1]), None, 0.8)
    near = next_actions(problem)
    line = np.polynomial.Polynomial.fit(log.states[:, 0], mean[:, 0], 1)
    straight = np.std(mean[:, 0] - line(log.states[:, 0]))
    assert np.std(near.logged - near.mean) < 0.75 * straight


def test_standard_errors_take_whole_episodes_as_units():
    episode = np.repeat(np.arange(50), 10)
    weights = np.random.default_rng(0).exponential(size=50)[episode]  # the same weight all through an episode
    mean, error, rows = mean_and_error(weights, episode)
    assert error == pytest.approx(weights[::10].std() / np.sqrt(50))
    assert rows == pytest.approx(500 * mean**2 / np.mean(weights**2))


def test_a_log_without_rows_that_go_on_has_no_overlap():
    world = world_of(5)
    problem = problem_of(world, ended_log(log_of(world, 5, 20, 1)))
    assert next_actions(problem) is None
