"""Learned ratios: one that balances passes, one that does not is refused, whoever learned it."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import make_world, quick, tabular_problem
from estimators.test_doubly_robust import visits
from kmifqe.estimators import Estimate, Estimator, fit
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks.ratios import RatioFacts, balance_checks, ratio_facts
from kmifqe.worlds.stochastic_lqr import stochastic_target

GAMMA = 0.8


def given(ratios: np.ndarray) -> tuple[Estimator, Estimate]:
    """Return an estimator that has nothing to learn, whose ratio is given, and its estimate."""
    nothing = lambda *_: None  # noqa: E731
    estimator = Estimator(
        "given",
        None,
        nothing,
        nothing,
        nothing,  # type: ignore[arg-type]
        default_steps=1,
        ratio=lambda state, problem, rows: jnp.asarray(ratios)[rows],
    )
    estimate = Estimate(
        estimator="given",
        config={},
        gamma=GAMMA,
        seeds=(0, 1, 2),
        steps=1,
        values=np.zeros(3),
        recorded_steps=np.array([1]),
        trajectory=np.zeros((1, 3)),
        infos={},
        seconds=0.0,
        device="cpu",
        final_state=jnp.zeros(3),
        bootstrap=True,
    )
    return estimator, estimate


def exact_ratios(problem: Problem) -> np.ndarray:
    states = np.asarray(problem.states).argmax(1)
    actions = (np.asarray(problem.actions)[:, 0] > 0).astype(int)
    counts = np.zeros((3, 2))
    np.add.at(counts, (states, actions), 1.0 / len(states))
    return (visits(GAMMA) / counts)[states, actions]


def levels(facts: RatioFacts | None) -> dict[str, str]:
    assert facts is not None
    return {check.name: check.level for check in balance_checks(facts)}


def test_the_exact_ratio_balances_and_others_do_not() -> None:
    """In the tabular world the products of the inputs are all functions of state and action there are."""
    problem = tabular_problem(GAMMA)
    exact = exact_ratios(problem)
    facts = ratio_facts(*given(exact), problem)
    assert levels(facts) == {"ratio_visits": "ok", "ratio_balance": "ok", "smoothed_ratio": "ok"}
    assert facts is not None
    assert facts.visits == pytest.approx(1.0, abs=1e-6)
    assert levels(ratio_facts(*given(np.ones(len(exact))), problem))["ratio_balance"] == "bad"
    assert levels(ratio_facts(*given(1.25 * exact), problem))["ratio_visits"] == "care"
    assert levels(ratio_facts(*given(1.5 * exact), problem))["ratio_visits"] == "bad"


def test_only_a_trained_dice_passes() -> None:
    world = make_world(GAMMA)
    target, _ = stochastic_target(world, 0.4)
    problem = Problem.build(world.collect(0, 200, 25), target, world.behavior, GAMMA, draws=2)
    estimator = quick("best-dice")
    for steps, level in ((50, "bad"), (1_000, "ok")):
        found = fit(estimator, problem, seeds=2, steps=steps, record_every=50, bootstrap=True)
        assert levels(ratio_facts(estimator, found, problem))["ratio_balance"] == level


def test_after_an_end_nothing_flows_on() -> None:
    """Three steps and an end, a target that takes action 1: the ratios' mean is 1 − γ³, and still they balance."""
    rng, time, n = np.random.default_rng(0), np.tile(np.arange(3), 300), 900
    actions = rng.integers(0, 2, n)
    log = Transitions.from_arrays(
        np.eye(3)[time],
        2.0 * actions[:, None] - 1.0,
        np.ones(n),
        time == 2,
        np.zeros(n, bool),
        np.eye(3)[(time + 1) % 3],
    )
    problem = Problem.build(log, lambda states: np.ones((len(states), 1)), None, GAMMA)
    at, chosen = np.asarray(problem.states).argmax(1), np.asarray(problem.actions)[:, 0] > 0
    shares = np.bincount(at[chosen], minlength=3) / n
    exact = np.where(chosen, (1 - GAMMA) * GAMMA**at / shares[at], 0.0)
    assert exact.mean() == pytest.approx(1 - GAMMA**3)
    facts = ratio_facts(*given(exact), problem)
    assert levels(facts) == {"ratio_visits": "ok", "ratio_balance": "ok", "smoothed_ratio": "ok"}
    assert levels(ratio_facts(*given(np.ones(n)), problem))["ratio_visits"] != "ok"


def test_a_deterministic_target_asks_for_care_where_the_log_does_not_take_its_actions() -> None:
    """A target that draws has a density, and one whose actions are logged has its share of them."""
    world = make_world(GAMMA)
    log = world.collect(0, 30, 10)
    target, _ = stochastic_target(world, 0.4)

    def judged(policy: object, draws: int = 0) -> dict[str, str]:
        problem = Problem.build(log, policy, world.behavior, GAMMA, draws=draws)
        return levels(ratio_facts(*given(np.ones(len(problem))), problem))

    assert judged(world.policy)["smoothed_ratio"] == "care"
    assert "smoothed_ratio" not in judged(target, draws=2)
    problem = Problem.build(log, world.policy, world.behavior, GAMMA)
    of_log = replace(problem, target_actions=problem.next_actions)
    assert levels(ratio_facts(*given(np.ones(len(problem))), of_log))["smoothed_ratio"] == "ok"


def test_a_q_beside_the_ratio_mends_it_and_nothing_is_said() -> None:
    problem = tabular_problem(GAMMA)
    estimator, estimate = given(np.ones(len(problem)))
    q = lambda state, problem, states, actions: jnp.zeros(len(states))  # noqa: E731
    assert ratio_facts(estimator._replace(q=q), estimate, problem) is None
    assert balance_checks(None) == []
