from __future__ import annotations

import math

import numpy as np
import pytest

from kmifqe.behavior import GaussianBehavior
from kmifqe.errors import InputError
from kmifqe.worlds.gym_truth import TOLERANCE, mean_and_error, measure_truth, measure_truths
from worlds.gym_test_envs import LIFE, env_id, half


def test_a_task_that_ends_has_its_closed_form_value():
    truth = measure_truth(env_id("Countdown"), half, episodes=7, gamma=0.9)
    assert truth.value == pytest.approx(1 - 0.9**LIFE)
    assert truth.discounted_return == pytest.approx(truth.value / 0.1)
    assert (truth.episode_return, truth.length, truth.left_out) == (LIFE, LIFE, 0.0)
    assert truth.value_standard_error == pytest.approx(0.0, abs=1e-12)


def test_the_value_goes_past_the_time_limit_and_the_return_does_not():
    truth = measure_truth(env_id("Endless"), half, episodes=2, gamma=0.95)
    assert truth.value == pytest.approx(1.0, abs=1.1 * TOLERANCE)  # cut at the limit of 10 it would be 0.40
    assert truth.left_out < TOLERANCE
    assert (truth.episode_return, truth.length) == (10, 10)


def test_a_limit_that_hides_the_end_is_seen_through():
    truth = measure_truth(env_id("LimitedCountdown"), half, episodes=2, gamma=0.9)
    assert truth.value == pytest.approx(1 - 0.9**LIFE)
    assert (truth.episode_return, truth.length) == (3, 3)


def test_several_discounts_are_measured_on_the_same_episodes():
    near, far = measure_truths(env_id("Countdown"), half, (0.5, 0.9), episodes=3)
    assert (near.gamma, far.gamma) == (0.5, 0.9)
    assert (near.value, far.value) == (pytest.approx(1 - 0.5**LIFE), pytest.approx(1 - 0.9**LIFE))
    assert far == measure_truth(env_id("Countdown"), half, episodes=3, gamma=0.9)


def test_without_discounting_ahead_the_value_is_the_first_reward():
    assert measure_truth(env_id("Endless"), half, episodes=1, gamma=0.0).value == 1.0


def test_a_standard_error_is_the_spread_over_the_root_of_the_count_and_unknown_for_one():
    assert mean_and_error(np.array([1.0, 2.0, 3.0, 6.0])) == (3.0, pytest.approx(math.sqrt(14 / 3) / 2))
    assert math.isnan(mean_and_error(np.array([1.0]))[1])


def test_neither_workers_nor_repetition_change_the_truth_but_noise_does():
    alone = measure_truth("Pendulum-v1", half, episodes=3, gamma=0.9)
    assert measure_truth("Pendulum-v1", half, episodes=3, gamma=0.9, workers=2) == alone
    noisy = [measure_truth("Pendulum-v1", half, episodes=3, gamma=0.9, noise=0.5, seed=s) for s in (0, 0, 1)]
    assert noisy[0] == noisy[1]
    assert len({alone.value, noisy[0].value, noisy[2].value}) == 3


def test_a_policy_that_draws_is_played_with_its_own_draws():
    class Drawing:
        """Draws around `half`, as noise of 0.5 half action ranges does."""

        low, high = np.full(1, -2.0), np.full(1, 2.0)

        def __call__(self, states):
            return half(states)

        def sample(self, states, rng, n):
            density = GaussianBehavior(half, 0.5, self.low, self.high)
            return np.stack([density.sample(rng, states) for _ in range(n)], axis=1)

        def log_prob(self, states, actions):
            raise AssertionError("nobody asks")

    options = {"episodes": 3, "gamma": 0.9, "seed": 0}
    drawn = measure_truth("Pendulum-v1", Drawing(), stochastic=True, **options)
    assert drawn == measure_truth("Pendulum-v1", half, noise=0.5, **options)
    assert drawn != measure_truth("Pendulum-v1", Drawing(), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episodes": 0}, "episodes is 0"),
        ({"gamma": 1.0}, "gamma is 1.0"),
        ({"gamma": math.nan}, "gamma is nan"),
        ({"noise": -1.0}, "std is -1"),
        ({"uniform_share": 0.5}, "std is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_a_wrong_wish_is_one_sentence(change, message):
    with pytest.raises(InputError, match=message):
        measure_truth(env_id("Countdown"), half, **({"episodes": 1} | change))
