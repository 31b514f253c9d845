"""Rewards moved by a constant, or multiplied by one, move and multiply V̂ exactly as they do V."""

from __future__ import annotations

import numpy as np
import pytest

from kmifqe.estimators import entries, fit, make_estimator
from kmifqe.estimators.registry import entry_named
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.returns import value_units
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.lqr import LQR, random_lqr

SMALL = ["hidden=8", "features=8", "batch=32", "ratio_batch=32", "value_rows=500", "target_period=10"]
EQUIVARIANT = ["kmifqe", "fqe", "sr-dice", "wis", "wpdis", "dr", "wdr", "mdr", "best-dice"]
STEPS = 30


def world() -> LQR:
    return random_lqr(3, 2, 1, gamma=0.9)


def with_rewards(log: Transitions, rewards: np.ndarray, terminals: np.ndarray | None = None) -> Transitions:
    return Transitions.from_arrays(
        log.states,
        log.actions,
        rewards,
        log.terminated if terminals is None else terminals,
        log.truncated if terminals is None else log.truncated & ~terminals,
        log.next_states,
    )


def value(name: str, log: Transitions) -> float:
    lqr = world()
    estimator = make_estimator(name, settings=SMALL, steps=STEPS)
    problem = Problem.build(log, lqr.policy, lqr.behavior, lqr.gamma, trajectories=True)
    return float(fit(estimator, problem, seeds=1, steps=STEPS).value)


@pytest.mark.parametrize("name", EQUIVARIANT)
def test_a_shift_and_a_scale_of_the_rewards_pass_through(name: str) -> None:
    log = world().collect(0, 20, 10)
    plain = value(name, log)
    moved = value(name, with_rewards(log, log.rewards + 100.0))
    scaled = value(name, with_rewards(log, 1000.0 * log.rewards))
    spread = float(log.rewards.std())
    assert moved - 100.0 == pytest.approx(plain, abs=2e-3 * spread)
    assert scaled / 1000.0 == pytest.approx(plain, abs=2e-3 * spread)


def test_the_estimators_that_are_not_equivariant_are_the_papers_own_and_sums_of_weights() -> None:
    """Weights that do not add up to 1 multiply a constant reward by their sum."""
    assert {entry.name for entry in entries()} - set(EQUIVARIANT) == {
        *("kmifqe-paper", "kmifqe-identity", "fqe-paper"),
        *("is", "pdis", "incris", "in-sample"),
        *("dual-dice", "gen-dice", "gradient-dice"),  # equivariant as best-dice is, whose code they share
        "mis",  # equivariant where nothing ends
        *("kernel-dr", "kernel-ipw"),  # for bandits, where tests/estimators/test_bandit.py shows it
    }
    assert entry_named("fqe").config.units == entry_named("kmifqe").config.units == "returns"


def test_the_units_of_values_move_with_the_rewards() -> None:
    log = world().collect(0, 20, 10)
    center, scale = value_units(log, 0.9)
    assert value_units(with_rewards(log, log.rewards + 7.0), 0.9) == pytest.approx(
        (center + 7.0, scale), rel=1e-5
    )
    assert value_units(with_rewards(log, 3.0 * log.rewards), 0.9) == pytest.approx(
        (3 * center, 3 * scale), rel=1e-5
    )


def test_the_center_is_the_logs_own_value_where_episodes_end_and_rewards_are_constant() -> None:
    """A reward of 1 and an end after step 3: the returns that follow are 1 − γ³, 1 − γ², 1 − γ."""
    log = Transitions.from_arrays(
        np.zeros((6, 1)), np.zeros((6, 1)), np.ones(6), np.array([0, 0, 1, 0, 0, 1], bool), np.zeros(6, bool)
    )
    returns = 1.0 - 0.9 ** np.array([3, 2, 1])
    assert value_units(log, 0.9) == pytest.approx((returns.mean(), returns.std()))


def test_constant_rewards_without_an_end_have_a_unit_of_their_own_size() -> None:
    log = world().collect(0, 3, 5)
    assert value_units(with_rewards(log, np.full(len(log), -4.0)), 0.9) == pytest.approx((-4.0, 4.0))
    assert value_units(with_rewards(log, np.zeros(len(log))), 0.9)[1] > 0.0


@pytest.mark.parametrize("name", ["kmifqe", "fqe"])
def test_after_an_end_the_value_is_zero_whatever_the_center(name: str) -> None:
    """Every row ends its episode, so V is the mean reward of first actions times 1 − γ, not the center."""
    lqr = world()
    log = lqr.collect(0, 200, 1)
    ended = with_rewards(log, np.full(len(log), 50.0), np.ones(len(log), bool))
    problem = Problem.build(ended, lqr.policy, lqr.behavior, lqr.gamma)
    estimator = make_estimator(name, settings=SMALL, steps=300)
    assert fit(estimator, problem, seeds=1, steps=300).value == pytest.approx(5.0, abs=0.3)
