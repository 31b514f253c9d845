"""Marginalised importance sampling on worlds of known value, with long episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from estimators.small import estimator_with, make_world
from kmifqe.estimators import fit
from kmifqe.mdp.problem import Problem
from kmifqe.worlds.stochastic_lqr import stochastic_target

SMALL = {"hidden": 16, "batch": 64, "learning_rate": 5e-3, "decay_steps": 400}


@pytest.mark.parametrize("end_rate", [0.0, 0.1])
def test_the_value_of_a_stochastic_target_is_found_without_products_of_ratios(end_rate: float) -> None:
    """Episodes of 25 steps leave per-decision weights with a few episodes; here every step counts."""
    world = replace(make_world(0.9), end_rate=end_rate)
    target, value = stochastic_target(world, 0.4)
    problem = Problem.build(
        world.collect(0, 160, 25), target, world.behavior, 0.9, trajectories=True, draws=1
    )
    found = fit(estimator_with("mis", **SMALL), problem, seeds=1, steps=400, record_every=400)
    assert found.value == pytest.approx(value, abs=0.06), "the behaviour is worth less by 0.1"
    assert found.infos["effective_rows"][-1, 0] > 1_000


def test_the_loss_is_least_at_the_right_ratio() -> None:
    """A target that is the behaviour, from the log's own start, visits every state as often: w is 1 everywhere."""
    world = make_world(0.5)
    own = replace(world, gain=world.behavior_gain)
    target, value = stochastic_target(own, world.behavior_std)
    problem = Problem.build(
        world.collect(0, 400, 10), target, world.behavior, 0.5, trajectories=True, draws=1
    )
    found = fit(estimator_with("mis", **SMALL), problem, seeds=1, steps=400, record_every=400)
    np.testing.assert_allclose(found.final_state.ratios, 1.0, rtol=1e-4)
    assert abs(found.value - value) < 0.05
