"""Doubly robust estimates: right with the exact Q, right with the exact ratio, and sums one can write down."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import (
    NEXT,
    REWARD,
    START,
    TARGET,
    estimator_with,
    logged,
    lqr_problem,
    quick,
    run,
    tabular_problem,
    tabular_value,
)
from kmifqe.errors import InputError
from kmifqe.estimators import Estimator, fit
from kmifqe.estimators.base import over_first
from kmifqe.estimators.doubly_robust import mended_along_episodes, mended_over_rows, td_errors
from kmifqe.estimators.importance_sampling import ImportanceSamplingConfig
from kmifqe.mdp.problem import Problem
from kmifqe.worlds.stochastic_lqr import stochastic_target

NORMALIZED = ImportanceSamplingConfig()
PLAIN = ImportanceSamplingConfig(self_normalized=False)


def given_q(q: Callable[[jnp.ndarray, jnp.ndarray], jnp.ndarray]) -> Estimator:
    """Return an estimator that has nothing to learn: its Q is given."""

    def asked(state: object, problem: Problem, states: jnp.ndarray, actions: jnp.ndarray) -> jnp.ndarray:
        return q(states, actions)

    def value(state: object, problem: Problem) -> jnp.ndarray:
        return jnp.mean(over_first(q, problem, slice(None)))

    nothing = lambda *_: None  # noqa: E731
    return Estimator("given", None, nothing, nothing, value, default_steps=1, q=asked)  # type: ignore[arg-type]


def exact_q(world: object) -> Callable[[jnp.ndarray, jnp.ndarray], jnp.ndarray]:
    G, c = jnp.asarray(world.q_function.matrix), world.q_function.constant

    def q(states: jnp.ndarray, actions: jnp.ndarray) -> jnp.ndarray:
        x = jnp.concatenate([states, actions], axis=1)
        return jnp.einsum("ni,ij,nj->n", x, G, x) + c

    return q


def nothing_q(states: jnp.ndarray, actions: jnp.ndarray) -> jnp.ndarray:
    return jnp.zeros(len(states))


@pytest.mark.parametrize("weights", [PLAIN, NORMALIZED])
@pytest.mark.parametrize("h", [0.2, 0.6])
def test_with_the_exact_q_any_weights_will_do(weights: ImportanceSamplingConfig, h: float) -> None:
    """At h = 0.6 a kernel alone moves the value by more than the value itself."""
    problem, world, value = lqr_problem()
    found = mended_along_episodes(weights, jnp.float32(h), given_q(exact_q(world)), None, problem)
    assert float(found) == pytest.approx(value, abs=0.02)
    assert float(jnp.mean(td_errors(given_q(exact_q(world)), None, problem))) == pytest.approx(0.0, abs=2e-3)


@pytest.mark.parametrize("weights, name", [(PLAIN, "pdis"), (NORMALIZED, "wpdis")])
def test_without_a_q_it_is_per_decision_importance_sampling(
    weights: ImportanceSamplingConfig, name: str
) -> None:
    problem, _, _ = lqr_problem()
    found = mended_along_episodes(weights, jnp.float32(0.2), given_q(nothing_q), None, problem)
    sampled = fit(estimator_with(name, bandwidth=0.2), problem, seeds=1)
    seen = 1.0 - float(sampled.infos["unseen"][0, 0])
    assert float(found) == pytest.approx(sampled.value * seen, rel=1e-4)


def test_with_the_exact_ratio_any_q_will_do() -> None:
    """A stochastic target has an exact ratio; Q here is the behaviour's reward, which is wrong by far."""
    world, log = logged(gamma=0.5, length=25)
    target, value = stochastic_target(world, 0.5)
    problem = Problem.build(log, target, world.behavior, 0.5, trajectories=True, draws=64)
    wrong = given_q(lambda states, actions: 0.3 + 0.2 * states[:, 0])
    unmended = float(wrong.value(None, problem))
    error = 3.0 * float(log.rewards.std()) / np.sqrt(len(problem.first_states))
    for weights in (PLAIN, NORMALIZED):
        found = float(mended_along_episodes(weights, jnp.float32(0.0), wrong, None, problem))
        assert abs(found - value) < error < 0.5 * abs(unmended - value)


def visits(gamma: float) -> np.ndarray:
    """Return how often the target visits each state and action of the tabular world, discounted and normalised."""
    P = np.eye(3)[NEXT[np.arange(3), TARGET]]
    of_states = (1 - gamma) * np.linalg.solve(np.eye(3) - gamma * P.T, START)
    return of_states[:, None] * np.eye(2)[TARGET]


def test_the_marginalised_estimate_is_exact_with_the_exact_ratio_whatever_q_is() -> None:
    gamma = 0.8
    problem = tabular_problem(gamma)
    states, actions = (
        np.asarray(problem.states).argmax(1),
        (np.asarray(problem.actions)[:, 0] > 0).astype(int),
    )
    counts = np.zeros((3, 2))
    np.add.at(counts, (states, actions), 1.0 / len(states))
    exact = jnp.asarray((visits(gamma) / counts)[states, actions], jnp.float32)
    wrong = given_q(lambda s, a: 5.0 * s[:, 0] - 2.0 * a[:, 0] + 1.0)
    found = mended_over_rows(lambda rows: exact[rows], wrong, None, problem)
    assert float(found) == pytest.approx(tabular_value(gamma), abs=1e-4)
    assert abs(float(wrong.value(None, problem)) - tabular_value(gamma)) > 1.0
    assert float(np.sum(visits(gamma) * REWARD)) == pytest.approx(tabular_value(gamma), abs=1e-6)


@pytest.mark.parametrize("name", ["dr", "wdr", "mdr"])
def test_they_find_the_worlds_value(name: str) -> None:
    problem, _, value = lqr_problem()
    assert run(quick(name), problem).value == pytest.approx(value, abs=0.03)


def test_a_ratio_that_no_estimator_learns_is_refused() -> None:
    with pytest.raises(InputError, match="which learns no density ratio"):
        estimator_with("mdr", ratio="fqe")
