"""Kernel estimates for contextual bandits whose value is known in closed form."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from estimators.small import estimator_with, lqr_problem
from kmifqe.api import evaluate
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, fit
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions

ROWS = 4_000
SMALL = {"hidden": 32, "batch": 128, "learning_rate": 5e-3, "decay_steps": 1_000}


class Normal:
    """μ: a ~ N(0, 0.6² I), whatever the state is."""

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        z = np.asarray(actions, np.float64) / 0.6
        return np.sum(-0.5 * z**2 - np.log(0.6) - 0.5 * np.log(2 * np.pi), axis=1)


class Target:
    """π̃(s) = ½ s in the first dimension and 0 in those that do nothing."""

    def __init__(self, d: int) -> None:
        self.low, self.high = -np.ones(d, np.float32), np.ones(d, np.float32)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return np.concatenate([0.5 * states, np.zeros((len(states), len(self.low) - 1))], axis=1)


@cache
def bandit(dummies: int = 0, gamma: float = 0.0) -> tuple[Problem, float]:
    """Return r = 1 − (a₁ − s)² + noise with s ~ U(−1, 1), and V = (1 − γ)(1 − E(s/2)²) = (1 − γ)·11/12."""
    rng, d = np.random.default_rng(0), 1 + dummies
    states, actions = rng.uniform(-1, 1, (ROWS, 1)), rng.normal(0.0, 0.6, (ROWS, d))
    rewards = 1.0 - (actions[:, 0] - states[:, 0]) ** 2 + rng.normal(0.0, 0.1, ROWS)
    log = Transitions.from_arrays(states, actions, rewards, np.ones(ROWS, bool), name="bandit")
    return Problem.build(log, Target(d), Normal(), gamma, trajectories=True), (1 - gamma) * 11 / 12


def answer(name: str, problem: Problem, steps: int = 1_000, **settings: object) -> Estimate:
    return fit(
        estimator_with(name, **{**SMALL, **settings}), problem, seeds=2, steps=steps, record_every=steps
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5])
@pytest.mark.parametrize("name, tolerance", [("kernel-dr", 0.02), ("kernel-ipw", 0.06)])
def test_the_value_of_a_bandit_is_found(name: str, tolerance: float, gamma: float) -> None:
    """The behaviour itself is worth (1 − γ)(1 − 1/3 − 0.36) = 0.31 (1 − γ)."""
    problem, value = bandit(gamma=gamma)
    assert answer(name, problem).value == pytest.approx(value, abs=tolerance * (1 - gamma))


def test_a_learned_metric_averages_over_actions_that_do_nothing() -> None:
    """With two dummy dimensions the metric must not do worse than the identity, whose kernel is a ball."""
    problem, value = bandit(dummies=2)
    errors = {m: abs(answer("kernel-ipw", problem, metric=m).value - value) for m in ("learned", "identity")}
    assert errors["learned"] < 0.7 * errors["identity"]


@pytest.mark.parametrize("name", ["kernel-dr", "kernel-ipw"])
def test_a_wide_kernel_biases_the_weights_alone_and_not_what_mends_a_model(name: str) -> None:
    """A kernel of 0.4 in place of π̃ costs 0.4² = 0.16 of the reward."""
    problem, value = bandit()
    error = abs(answer(name, problem, bandwidth=0.4).value - value)
    assert error < 0.02 if name == "kernel-dr" else 0.1 < error < 0.22


def test_at_one_step_a_fixed_kernel_is_weighted_importance_sampling() -> None:
    problem, _ = bandit()
    weighted = fit(estimator_with("wis", bandwidth=0.2), problem, seeds=1).value
    found = answer("kernel-ipw", problem, steps=1, bandwidth=0.2, metric="identity").value
    assert found == pytest.approx(weighted, rel=1e-4)


def test_a_shift_and_a_scale_of_the_rewards_pass_through() -> None:
    problem, _ = bandit()
    plain = answer("kernel-dr", problem, steps=20).value
    rewards = 3.0 * problem.rewards + 50.0
    moved = replace(
        problem,
        rewards=rewards,
        value_center=3.0 * problem.value_center + 50.0,
        value_scale=3.0 * problem.value_scale,
    )
    assert answer("kernel-dr", moved, steps=20).value == pytest.approx(3.0 * plain + 50.0, abs=1e-3)


def test_evaluate_judges_a_bandit() -> None:
    rng = np.random.default_rng(0)
    states, actions = rng.uniform(-1, 1, (500, 1)), rng.normal(0.0, 0.6, (500, 1))
    log = Transitions.from_arrays(states, actions, -((actions - states)[:, 0] ** 2), np.ones(500, bool))
    asked = {"behavior": Normal(), "gamma": 0.0, "estimators": ["kernel-dr", "wis"], "steps": 200, "seeds": 3}
    result = evaluate(log, Target(1), **asked)
    assert {"effective_episodes", "largest_weight"} <= {check.name for check in result.checks}
    assert result.intervals["kernel-dr"] is not None
    assert result.estimates[1].value == pytest.approx(-1 / 12, abs=0.06), "the behaviour is worth −0.69"


def test_longer_episodes_are_refused_with_a_pointer() -> None:
    with pytest.raises(InputError, match=r"episodes of one step.*wpdis"):
        answer("kernel-dr", lqr_problem()[0], steps=1)
