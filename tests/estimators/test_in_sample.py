"""In-sample learning and the others on targets that draw their actions: closed forms, and SARSA where π = μ."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import logged, quick, run
from kmifqe.api import evaluate
from kmifqe.errors import InputError
from kmifqe.estimators.base import over_first, over_target
from kmifqe.estimators.in_sample import ratios
from kmifqe.mdp.problem import Problem
from kmifqe.worlds.lqr import LinearGaussian
from kmifqe.worlds.stochastic_lqr import GaussianLinearPolicy, stochastic_target


@cache
def noisy_problem(std: float = 0.3, draws: int = 8) -> tuple[Problem, float]:
    world, log = logged()
    target, value = stochastic_target(world, std)
    shift = world.value_from(log.states[log.first_rows]) - world.value  # of these first states
    return Problem.build(log, target, world.behavior, world.gamma, draws=draws), value + shift


@cache
def behaviour_problem() -> tuple[Problem, float]:
    """Return the problem of judging the behaviour itself, and the mean of what Q^μ says of its first states."""
    world, log = logged()
    own = replace(world, gain=world.behavior_gain)
    target, value = stochastic_target(own, world.behavior_std)
    shift = own.value_from(log.states[log.first_rows]) - own.value
    return Problem.build(log, target, world.behavior, world.gamma, draws=8), value + shift


@pytest.mark.parametrize("name, tolerance", [("in-sample", 0.03), ("fqe", 0.03), ("sr-dice", 0.05)])
def test_a_stochastic_target_is_worth_what_the_world_says(name: str, tolerance: float) -> None:
    """The noise costs 0.15 of a value of −0.29, far more than the tolerance."""
    problem, value = noisy_problem()
    assert run(quick(name), problem).value == pytest.approx(value, abs=tolerance)


def test_where_the_target_is_the_behaviour_it_is_sarsa() -> None:
    problem, value = behaviour_problem()
    np.testing.assert_allclose(ratios(problem, 100.0), 1.0, rtol=1e-4)
    found = run(quick("in-sample"), problem)
    assert found.value == pytest.approx(value, abs=0.03)
    assert found.infos["effective_rows"][-1, 0] == pytest.approx(problem.counts.nonterminal, rel=1e-4)


def test_terminal_rows_count_as_much_as_others_on_average() -> None:
    world, _ = logged()
    ending = replace(world, end_rate=0.2)
    target, _ = stochastic_target(ending, 0.3)
    problem = Problem.build(ending.collect(0, 40, 25), target, world.behavior, world.gamma, draws=1)
    rho, n = np.asarray(ratios(problem, 100.0)), problem.counts.nonterminal
    assert problem.counts.terminated > 0
    np.testing.assert_allclose(rho[n:], rho[:n].mean(), rtol=1e-5)


def test_expectations_are_means_over_draws() -> None:
    problem, _ = noisy_problem(draws=3)
    product = lambda states, actions: states[:, 0] * actions[:, 0] ** 2  # noqa: E731
    rows = jnp.arange(5)
    s, a = np.asarray(problem.next_states)[:5], np.asarray(problem.target_samples)[:5]
    np.testing.assert_allclose(over_target(product, problem, rows), (s * (a[..., 0] ** 2)).mean(1), rtol=1e-5)
    s, a = np.asarray(problem.first_states), np.asarray(problem.first_samples)
    everywhere = over_first(product, problem, slice(None))
    np.testing.assert_allclose(everywhere, (s * a[..., 0] ** 2).mean(1), rtol=1e-5)
    np.testing.assert_array_equal(problem.target_actions, problem.target_samples[:, 0])


def test_estimators_refuse_the_other_kind_of_target_and_name_one_that_fits() -> None:
    world, log = logged()
    target, _ = stochastic_target(world, 0.3)
    asked = {"behavior": world.behavior, "gamma": 0.8, "steps": 2, "seeds": 1}
    with pytest.raises(InputError, match=r"kmifqe judges deterministic targets only; .*in-sample"):
        evaluate(log, target, stochastic=True, estimators=["kmifqe"], **asked)
    with pytest.raises(InputError, match=r"in-sample judges stochastic targets only; .*kmifqe"):
        evaluate(log, world.policy, estimators=["in-sample"], **asked)
    with pytest.raises(InputError, match=r"KMIFQE relaxes a deterministic target.* in-sample"):
        run(quick("kmifqe"), noisy_problem()[0], steps=1)
    with pytest.raises(InputError, match="expected an object with sample"):
        evaluate(log, 3, stochastic=True, estimators=["fqe"], **asked)


def test_evaluate_says_that_the_target_draws_its_actions() -> None:
    world, log = logged()
    target = GaussianLinearPolicy(world.policy, LinearGaussian(world.gain, np.array([0.3])))
    result = evaluate(
        log,
        target,
        stochastic=True,
        behavior=world.behavior,
        gamma=0.8,
        estimators=["in-sample", "wpdis"],
        steps=20,
        seeds=2,
    )
    assert any("draws its actions" in note for note in result.question.notes)
    assert {check.name for check in result.checks} >= {"effective_rows", "effective_episodes"}
