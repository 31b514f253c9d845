from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.small_actors import tiny_actor
from kmifqe.errors import InputError
from kmifqe.experiments.data import (
    PRE_TANH_LIMIT,
    PRE_TANH_STD,
    exploring,
    squashed_gaussian,
    stochastic_mean,
)

HIGH = 0.4  # Humanoid's box: not the unit one
ACTOR = tiny_actor(3, high=HIGH)
STATES = np.random.default_rng(0).standard_normal((4_000, 11)).astype(np.float32)


def test_noise_before_the_tanh_is_standard_normal_around_the_limited_mean():
    actions, _ = squashed_gaussian(ACTOR)(np.random.default_rng(1), STATES)
    z = np.arctanh(actions.astype(np.float64) / HIGH)
    mean = np.arctanh(stochastic_mean(ACTOR)(STATES).astype(np.float64) / HIGH)
    noise = ((z - mean) / PRE_TANH_STD).ravel()
    assert abs(noise.mean()) < 4 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 4 * np.sqrt(2 / noise.size)
    assert np.abs(mean).max() <= PRE_TANH_LIMIT + 1e-4
    assert np.abs(mean).max() > 0.9 * PRE_TANH_LIMIT  # the actor saturates: the limit is at work


def test_the_target_is_the_expert_without_its_noise():
    actions, densities = squashed_gaussian(ACTOR, std=0.0)(np.random.default_rng(1), STATES)
    np.testing.assert_allclose(actions, stochastic_mean(ACTOR)(STATES), atol=1e-6)
    assert densities is None


def test_exploration_is_clipped_to_the_box_as_td3_stores_it():
    actions, _ = exploring(ACTOR)(np.random.default_rng(1), STATES)
    assert (np.abs(actions) <= np.float32(HIGH)).all()
    assert (np.abs(actions) == np.float32(HIGH)).any()
    inside = np.abs(ACTOR(STATES)) < 0.5 * HIGH
    noise = (actions - ACTOR(STATES))[inside] / (0.1 * HIGH)
    assert abs(noise.var() - 1) < 4 * np.sqrt(2 / noise.size)


def test_an_actor_without_a_tanh_is_refused():
    with pytest.raises(InputError, match="output is 'clip'; expected tanh"):
        stochastic_mean(replace(ACTOR, output="clip"))
