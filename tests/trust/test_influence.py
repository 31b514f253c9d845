"""What is read off one log about other logs, against many other logs: least squares on features that are exact."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.estimators.base import Estimate, Estimator
from kmifqe.mdp.problem import Problem
from kmifqe.trust import influence
from kmifqe.trust.influence import chance_facts
from kmifqe.worlds.lqr import LQR, random_lqr

EPISODES, LENGTH = 60, 15


def world() -> LQR:
    return random_lqr(5, 2, 1, gamma=0.9)


def quadratics(states: Any, actions: Any) -> np.ndarray:
    x = np.concatenate([np.asarray(states, np.float64), np.asarray(actions, np.float64)], axis=1)
    i, j = np.triu_indices(x.shape[1])
    return np.concatenate([x, x[:, i] * x[:, j]], axis=1)


def solved(problem: Problem) -> np.ndarray:
    """Return θ of the least-squares fixed point on quadratics and a constant: the LQR's Q is one of them."""
    one = np.ones((len(problem), 1))
    phi = np.hstack([quadratics(problem.states, problem.actions), one])
    later = np.hstack([quadratics(problem.next_states, problem.target_actions), one])
    gamma, nonterminal = float(problem.gamma), ~np.asarray(problem.terminated)[:, None]
    rewards = (1.0 - gamma) * np.asarray(problem.rewards, np.float64)
    return np.linalg.solve(phi.T @ (phi - gamma * nonterminal * later), phi.T @ rewards)


def least_squares() -> Estimator:
    """Return an estimator whose state is θ; nothing is trained."""

    def q(theta: Any, problem: Problem, states: Any, actions: Any) -> np.ndarray:
        return quadratics(states, actions) @ np.asarray(theta)[:-1] + np.asarray(theta)[-1]

    def features(theta: Any, problem: Problem, states: Any, actions: Any) -> np.ndarray:
        return quadratics(states, actions)

    nothing: Any = lambda *_: None  # noqa: E731
    return Estimator("lstd", None, nothing, nothing, nothing, 1, q=q, features=features)


def estimate_of(problem: Problem) -> Estimate:
    theta = solved(problem)
    value = float(np.mean(least_squares().q(theta, problem, problem.first_states, problem.first_actions)))
    return SimpleNamespace(values=np.array([value]), final_state=jnp.asarray(theta)[None], value=value)  # type: ignore[return-value]


def problem_of(seed: int, end_rate: float = 0.0) -> Problem:
    lqr = world() if not end_rate else LQR(**{**vars(world()), "end_rate": end_rate})
    return Problem.build(lqr.collect(seed, EPISODES, LENGTH), lqr.policy, None, lqr.gamma)


@pytest.mark.parametrize("end_rate", [0.0, 0.05])
def test_one_log_tells_how_far_the_value_moves_from_log_to_log(end_rate, monkeypatch):
    monkeypatch.setattr(influence, "RIDGE", 0.0)
    problems = [problem_of(seed, end_rate) for seed in range(60)]
    values = [estimate_of(problem).value for problem in problems]
    told = [chance_facts(least_squares(), estimate_of(problem), problem) for problem in problems[:20]]
    spread = float(np.std(values, ddof=1))
    mean = float(np.sqrt(np.mean([facts.log_std**2 for facts in told])))
    # The spread of 60 values is known to 9 %; the linear expansion adds some per cent.
    assert mean == pytest.approx(spread, rel=0.3)
    assert all(facts.first_std < facts.log_std * 1.5 for facts in told)


def test_a_solved_regression_has_nothing_left_to_add_and_an_unsolved_one_has(monkeypatch):
    monkeypatch.setattr(influence, "RIDGE", 0.0)
    problem = problem_of(0)
    exact = estimate_of(problem)
    facts = chance_facts(least_squares(), exact, problem)
    assert facts.unsolved == pytest.approx(0.0, abs=1e-3 * abs(exact.value))
    # Q off by a constant c: every TD error is −(1 − γ)c, and V̂ is off by c.
    shifted = SimpleNamespace(values=exact.values + 2.0, final_state=exact.final_state.at[:, -1].add(2.0))
    assert chance_facts(least_squares(), shifted, problem).unsolved == pytest.approx(-2.0, rel=1e-3)


def test_a_long_log_is_judged_by_some_of_its_episodes(monkeypatch):
    monkeypatch.setattr(influence, "RIDGE", 0.0)
    problem = problem_of(1)
    whole = chance_facts(least_squares(), estimate_of(problem), problem)
    monkeypatch.setattr(influence, "ROWS", EPISODES * LENGTH // 3)
    part = chance_facts(least_squares(), estimate_of(problem), problem)
    assert part.log_std == pytest.approx(whole.log_std, rel=0.5)


def test_an_estimator_without_features_is_not_judged():
    problem = problem_of(2)
    assert chance_facts(least_squares()._replace(features=None), estimate_of(problem), problem) is None
