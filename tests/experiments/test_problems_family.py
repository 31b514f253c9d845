"""The family of problems: known values, drawn from numbers alone, from easy to hopeless."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kmifqe.experiments.problems_family import SHAPES, FamilyProblem, family, hopeless, overlap
from kmifqe.mdp.problem import Problem
from kmifqe.worlds.lqr import LQR

LQR_SHAPE = SHAPES[0]


def test_more_problems_of_a_shape_keep_the_first_ones() -> None:
    assert family(2) == tuple(item for i, item in enumerate(family(5)) if i % 5 < 2)
    assert len({item.seed for item in family(5)}) == 5 * len(SHAPES)


def test_a_problem_has_its_shape_and_is_built_alike_every_time() -> None:
    item = family(1, (LQR_SHAPE,))[0]
    one, other = item.build(), item.build()
    assert one.problem.counts == other.problem.counts
    np.testing.assert_array_equal(one.problem.states, other.problem.states)
    assert (one.facts.truth, one.facts.overlap) == (other.facts.truth, other.facts.overlap)
    assert one.problem.counts.logged == LQR_SHAPE.rows
    assert one.problem.counts.episodes == LQR_SHAPE.episodes
    assert one.facts.truth_error == 0


def test_the_pendulums_log_is_cut_into_short_episodes_of_the_same_first_states() -> None:
    shape = next(shape for shape in SHAPES if shape.world == "pendulum")
    built = family(1, (shape,))[0].build()
    assert built.problem.counts.episodes == shape.episodes
    assert built.transitions.truncated.sum() == shape.episodes
    assert not built.transitions.terminated.any()
    assert built.transitions.has_next_state.all()
    assert 0 < built.facts.truth_error < 0.05
    assert -16.3 < built.facts.truth < 0


def kernel_problem(std: float, away: float) -> Problem:
    """Return a log with actions N(away, std²) in half action ranges, to judge a policy that takes 0."""
    world = LQR(
        F=np.zeros((1, 1)),
        B=np.zeros((1, 1)),
        noise_cov=np.zeros((1, 1)),
        cost=np.eye(2),
        gain=np.zeros((1, 1)),
        behavior_gain=np.array([[-away]]),
        behavior_std=np.array([std]),
        initial_mean=np.ones(1),
        initial_cov=np.zeros((1, 1)),
        gamma=0.5,
        action_bound=1.0,
    )
    world = replace(world, F=np.eye(1))
    log = world.collect(0, 400, 6)
    return Problem.build(log, world.policy, world.behavior, 0.5)


def test_overlap_is_one_where_the_behaviour_is_the_kernel_itself() -> None:
    assert overlap(kernel_problem(0.2, 0.0), bandwidths=(0.2,)) == pytest.approx(1.0, abs=1e-5)


def test_overlap_is_the_inverse_of_the_weights_mean_square() -> None:
    # E[w²] of N(0, h²) over N(0, s²), s² > h²/2: (s²/h²) / sqrt(2 s²/h² − 1)
    ratio = (0.4 / 0.2) ** 2
    assert overlap(kernel_problem(0.4, 0.0), bandwidths=(0.2,)) == pytest.approx(
        np.sqrt(2 * ratio - 1) / ratio, rel=0.05
    )


def test_a_behaviour_far_from_the_target_is_hopeless() -> None:
    assert not hopeless(kernel_problem(0.3, 0.0))
    assert hopeless(kernel_problem(0.2, 1.5))


def test_a_density_told_too_wide_changes_the_density_and_nothing_else() -> None:
    item: FamilyProblem = family(1, (LQR_SHAPE,))[0]
    right, wrong = item.build(), replace(item, told_width=2.0).build()
    np.testing.assert_array_equal(right.problem.actions, wrong.problem.actions)
    assert right.problem.log_mu is not None
    assert wrong.problem.log_mu is not None
    assert not np.allclose(right.problem.log_mu, wrong.problem.log_mu)
    assert "density told 2 times as wide" in wrong.facts.description
