from dataclasses import replace

import numpy as np
import pytest

from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.overlap import density_facts, mean_and_error, nearby_actions, overlap_facts
from trust.planted import Shifted, changed, ended_log, log_of, problem_of, world_of


def facts_of(problem):
    near = nearby_actions(problem)
    return overlap_facts(problem, near) | density_facts(problem, near)


@pytest.mark.parametrize("d", [1, 3])
def test_mean_reference_weights_are_1_within_their_standard_errors_if_the_density_is_right(d):
    z = []
    for seed in range(8):
        world = world_of(seed, d, away=1.0)
        facts = facts_of(problem_of(world, log_of(world, seed, 80, 15)))
        z += ((np.array(facts["reference_weights"]) - 1) / facts["reference_errors"]).tolist()
    assert np.abs(z).max() < 4
    assert 0.7 < np.std(z) < 1.3  # the errors, with episodes as units, are neither too small nor too large


def test_a_wrong_width_changes_the_mean_weight_by_the_ratio_of_the_widths():
    # φ has half the true width: E[φ/μ'] = ∫ φ μ/μ', for μ' twice as wide 2·E exp(−⅜z²) with z² of mean ¼.
    world = world_of(0)
    told = replace(world.behavior, std=2.0 * world.behavior.std)
    facts = facts_of(problem_of(world, log_of(world, 0, 400, 20), told=told))
    expected = 2.0 / np.sqrt(1 + 0.75 * 0.25)
    error = facts["reference_errors"][0] + 0.02 * expected  # the width is itself estimated, to about 1 %
    assert abs(facts["reference_weights"][0] - expected) < 4 * error


def test_a_shifted_mean_makes_weights_lopsided():
    world = world_of(1)
    facts = facts_of(problem_of(world, log_of(world, 1, 400, 20), told=Shifted(world.behavior, 0.5)))
    _, below, above = facts["reference_weights"]
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

    facts = facts_of(Problem.build(log, moved, world.behavior, 0.8))
    assert facts["distance_quantiles"][1] == pytest.approx(sigmas, abs=0.15)
    far = sigmas > 1.25 * 2.58
    assert (facts["distance_outside"] > 0.99) == far
    assert (facts["density_outside"] == 1.0) == far
    assert facts["log_density_quantiles"][1] == pytest.approx(0.2275 - 0.5 * sigmas**2, abs=0.1)


def test_a_target_on_the_edge_of_a_uniform_log_is_not_outside():
    rng = np.random.default_rng(0)
    world = world_of(3)
    log = log_of(world, 3, 200, 20)
    log = changed(log, actions=rng.uniform(-1, 1, log.actions.shape))
    problem = Problem.build(log, lambda s: np.ones((len(s), 1)), None, 0.8)
    assert overlap_facts(problem, nearby_actions(problem))["distance_outside"] < 0.01


def test_the_regression_bends():
    """A behaviour that saturates: a straight line would leave residuals three times the noise."""
    world = world_of(4)
    log = log_of(world, 4, 200, 20)
    rng = np.random.default_rng(0)
    mean = np.sign(log.states[:, :1])
    log = changed(log, actions=mean + 0.1 * rng.standard_normal(log.actions.shape))
    problem = Problem.build(log, lambda s: np.sign(s[:, :1]), None, 0.8)
    near = nearby_actions(problem)
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
    assert nearby_actions(problem) is None
