"""DICE: the ratio and the value of a tabular world, where both are one linear solve."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import make_world, quick, run, tabular_problem, tabular_value
from estimators.test_doubly_robust import visits
from kmifqe.errors import InputError
from kmifqe.estimators.base import state_of_seed
from kmifqe.estimators.dice import DICEConfig
from kmifqe.mdp.problem import Problem
from kmifqe.worlds.stochastic_lqr import stochastic_target

GAMMA = 0.8
NAMES = ("best-dice", "dual-dice", "gen-dice", "gradient-dice")


@pytest.mark.parametrize("name", NAMES)
def test_the_ratio_is_how_often_the_target_is_there_for_every_logged_visit(name: str) -> None:
    problem = tabular_problem(GAMMA)
    estimator = quick(name)
    found = run(estimator, problem, seeds=2, steps=1_000)
    assert found.value == pytest.approx(tabular_value(GAMMA), abs=0.1), "rewards are −2 to 2"
    states, actions = (
        np.asarray(problem.states).argmax(1),
        (np.asarray(problem.actions)[:, 0] > 0).astype(int),
    )
    counts = np.zeros((3, 2))
    np.add.at(counts, (states, actions), 1.0 / len(states))
    expected = (visits(GAMMA) / counts)[states, actions]
    ratios = estimator.ratio(state_of_seed(found.final_state, 0), problem, jnp.arange(len(states)))
    assert np.mean(np.abs(np.asarray(ratios) - expected)) < 0.25, "ratios are 0 to 3, and 1 on average"
    if estimator.config.positive:
        assert (np.asarray(ratios) > 0).all()


def test_after_an_end_nothing_is_visited() -> None:
    """With ends at a rate p the ratios' mean is the share (1 − γ)/(1 − γ(1 − p)) of the discounted time before."""
    world = replace(make_world(GAMMA), end_rate=0.1)
    target, value = stochastic_target(world, 0.5)
    problem = Problem.build(world.collect(0, 100, 25), target, world.behavior, GAMMA, draws=2)
    estimator = quick("best-dice")
    found = run(estimator, problem, seeds=2, steps=1_000)
    ratios = estimator.ratio(state_of_seed(found.final_state, 0), problem, jnp.arange(len(problem)))
    assert float(jnp.mean(ratios)) == pytest.approx((1 - GAMMA) / (1 - GAMMA * 0.9), abs=0.1)
    assert found.value == pytest.approx(value, abs=0.05)


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(InputError, match="exponent is 1; expected a number above 1"):
        DICEConfig(exponent=1)
    with pytest.raises(InputError, match="nu_weight is -1"):
        DICEConfig(nu_weight=-1)
