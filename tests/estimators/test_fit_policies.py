"""Several policies trained side by side: each gets what it would get alone, and all share a seed's randomness."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from estimators.small import RECORD_EVERY, SEEDS, logged, quick
from kmifqe.estimators import fit
from kmifqe.estimators.fit import fit_policies, make_plan
from kmifqe.mdp.policies import ask_policy, common_box, judged, judged_together
from kmifqe.mdp.problem import OF_POLICY, Problem
from kmifqe.worlds.stochastic_lqr import stochastic_target

GAINS = (0.1, 0.4)


def linear(gain: float):
    return lambda states: -gain * states


def problem_and_answers():
    world, log = logged()
    problem = Problem.build(log, linear(GAINS[0]), world.behavior, 0.8)
    return problem, [ask_policy(log, linear(gain), world.behavior) for gain in GAINS]


@pytest.mark.parametrize("name", ["fqe", "kmifqe"])
def test_each_of_several_policies_gets_what_it_gets_alone(name: str) -> None:
    problem, answers = problem_and_answers()
    estimator = quick(name)
    options = {"seeds": SEEDS, "steps": 2 * RECORD_EVERY, "record_every": RECORD_EVERY, "bootstrap": True}
    plan = make_plan(estimator, problem, **options)
    together = fit_policies(estimator, judged_together(problem, answers), plan)
    assert [estimate.values.shape for estimate in together] == [(SEEDS,)] * len(GAINS)
    assert not np.allclose(together[0].values, together[1].values)
    alone = fit(estimator, judged(problem, answers[1]), plan)
    np.testing.assert_allclose(together[1].trajectory, alone.trajectory, rtol=2e-4, atol=2e-4)
    assert set(together[1].infos) == set(alone.infos)
    shapes = [jax.tree.map(np.shape, each.final_state) for each in (together[1], alone)]
    assert shapes[0] == shapes[1]


def test_a_problem_with_another_policy_is_the_problem_built_with_it() -> None:
    problem, answers = problem_and_answers()
    world, log = logged()
    built = Problem.build(log, linear(GAINS[1]), world.behavior, 0.8)
    other = judged(problem, answers[1])
    for name in ("target_actions", "log_mu_target", "first_actions", "states", "value_center"):
        np.testing.assert_array_equal(getattr(other, name), getattr(built, name))
    assert judged_together(problem, answers).policies == len(GAINS)
    assert other.policies is None


def test_a_problem_with_another_policy_that_draws_is_the_problem_built_with_it() -> None:
    """Of a stochastic target the samples and the densities are the policy's too; episodes are the log's."""
    world, log = logged()
    kept = [stochastic_target(replace(world, gain=np.array([[gain]])), 0.3)[0] for gain in GAINS]
    built = [Problem.build(log, policy, world.behavior, 0.8, trajectories=True, draws=3) for policy in kept]
    answers = [ask_policy(log, policy, world.behavior, 3) for policy in kept]
    other = judged(built[0], answers[1])
    jax.tree.map(np.testing.assert_array_equal, other, built[1])
    together = judged_together(built[0], answers)
    for name in OF_POLICY:
        np.testing.assert_array_equal(getattr(together, name)[1], getattr(built[1], name))
    on_host = judged(built[0].on_host(), answers[1]).on_device()
    jax.tree.map(np.testing.assert_array_equal, on_host, built[1])


def test_policies_with_bounds_of_their_own_are_judged_in_one_box() -> None:
    class Bounded:
        def __init__(self, high: float) -> None:
            self.low, self.high = np.array([-1.0]), np.array([high])

        def __call__(self, states: np.ndarray) -> np.ndarray:
            return 0.0 * states

    log = replace(logged()[1])
    low, high, differ = common_box(log, [Bounded(1.0), Bounded(2.0)])
    assert (low.item(), high.item(), differ) == (-1.0, 2.0, True)
    assert not common_box(log, [Bounded(1.0), Bounded(1.0)])[2]
