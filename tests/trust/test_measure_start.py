from dataclasses import replace

import numpy as np
import pytest

from kmifqe.trust.checks.consistency import Early, discounted_mean, early_rows, start_facts
from kmifqe.trust.checks.overlap import nearby_actions
from trust.fitted import sound_fit
from trust.planted import log_of, problem_of, world_of


def test_rows_come_with_their_time_and_the_target_s_action_at_their_own_state():
    world = world_of(0)
    problem = problem_of(world, log_of(world, 0, 20, 10))
    early = early_rows(problem)
    assert len(early.rows) == 200  # 0.8⁹ still matters
    np.testing.assert_array_equal(early.time, np.tile(np.arange(10), 20))
    states = np.asarray(problem.states)[early.rows]
    np.testing.assert_allclose(early.targets, world.policy(states), rtol=1e-5, atol=1e-6)


def episodes_of(count, length, ends=False):
    time, episode = np.tile(np.arange(length), count), np.repeat(np.arange(count), length)
    return Early(
        np.arange(count * length), time, episode, np.zeros((count * length, 1)), ends & (time == length - 1)
    )


@pytest.mark.parametrize("length", [5, 40])
def test_a_constant_error_b_of_q_is_found_whole_however_soon_episodes_are_cut(length):
    """Q + b has δ = −(1−γ) b at every step: discounted and summed over an endless episode, −b."""
    gamma, b, early = 0.8, 3.0, episodes_of(100, length)
    g = np.random.default_rng(0).uniform(size=len(early.rows))
    missed, error = discounted_mean(np.full(len(g), -(1 - gamma) * b), g, early, gamma)
    assert missed == pytest.approx(-b)
    assert error == pytest.approx(0.0, abs=1e-12)


def test_an_episode_that_terminates_has_nothing_after_it():
    early = episodes_of(10, 3, ends=True)
    missed, _ = discounted_mean(np.ones(30), np.ones(30), early, 0.5)
    assert missed == pytest.approx(1 + 0.5 + 0.25)


def test_the_standard_error_is_that_of_repeated_logs():
    rng = np.random.default_rng(0)
    early = episodes_of(100, 6)
    found = []
    for _ in range(200):
        errors = rng.standard_normal(100)[early.episode] + rng.standard_normal(600)
        found.append(discounted_mean(errors, rng.uniform(size=600), early, 0.8))
    missed, errors = np.array(found).T
    assert errors.mean() == pytest.approx(missed.std(), rel=4 / np.sqrt(2 * 200))


def test_a_state_that_is_not_there_has_no_q():
    estimator, estimate, problem = sound_fit()
    near = nearby_actions(problem)
    assert start_facts(estimator, replace(estimate, final_state=None), problem, near) == {}
    facts = start_facts(estimator, estimate, problem, near)
    assert np.isfinite(facts["start_td"])
    assert facts["start_td_error"] > 0
