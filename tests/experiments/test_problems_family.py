"""The family of problems: known values, drawn from numbers alone, from easy to hopeless."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest

from kmifqe.experiments import problems_family
from kmifqe.experiments.problems_base import Sources, halves, hopeless, overlap
from kmifqe.experiments.problems_family import SHAPES, LqrProblem, PendulumProblem, build, family
from kmifqe.mdp.problem import Problem
from kmifqe.worlds.lqr import LQR

LQR_SHAPE = SHAPES[0]


def lqr_problem(**changes) -> LqrProblem:
    given = {"shape": LQR_SHAPE, "half": "report", "seed": 1, "gamma": 0.9, "width": 1.0, "departure": 0.5}
    return LqrProblem(**(given | changes))


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


def test_more_problems_of_a_shape_keep_the_first_ones() -> None:
    assert family(2) == tuple(item for i, item in enumerate(family(6)) if i % 6 < 2)
    assert len({item.seed for item in family(6)}) == 6 * len(SHAPES)


def test_every_shape_has_as_many_problems_in_either_half() -> None:
    counts = Counter((item.shape, item.half) for item in family(6))
    assert set(counts.values()) == {3}
    assert len(counts) == 2 * len(SHAPES)


def test_more_names_change_no_earlier_half_and_neighbours_are_in_different_ones() -> None:
    names = [f"problem {i}" for i in range(41)]
    found = halves(names)
    assert halves(names[:20]) == found[:20]
    assert all(set(pair) == {"choose", "report"} for pair in zip(found[:40:2], found[1:40:2]))
    assert 5 < found[:40:2].count("choose") < 15, "which of two is for choosing should be a matter of chance"


def test_a_problem_has_its_shape_and_is_built_alike_every_time(sources) -> None:
    item = family(1, (LQR_SHAPE,))[0]
    one, other = build(item, sources), build(item, sources)
    assert one.problem.counts == other.problem.counts
    np.testing.assert_array_equal(one.problem.states, other.problem.states)
    assert (one.facts.truth, one.facts.overlap) == (other.facts.truth, other.facts.overlap)
    assert one.problem.counts.logged == LQR_SHAPE.rows
    assert one.facts.truth_error == 0
    assert one.facts.kind == "lqr"


def test_the_truth_is_what_the_target_earns_whatever_ends_offset_and_scale() -> None:
    item = lqr_problem(end_rate=0.05, offset=-10.0, scale=30.0, gamma=0.95)
    world = item.world()
    rng = np.random.default_rng(0)
    n = 20_000
    states, alive, returns = world.first_states(rng, n), np.ones(n), np.zeros(n)
    for t in range(150):  # (0.95 · 0.95)¹⁵⁰ < 1e-6
        actions = -states @ world.gain.T
        returns += 0.05 * 0.95**t * alive * world.reward(states, actions)
        states = world.step(rng, states, actions)
        alive *= rng.random(n) >= 0.05
    truth = item.arrays(Sources(Path())).truth
    assert abs(returns.mean() - truth) < 4 * returns.std() / np.sqrt(n)


def test_offset_and_scale_move_rewards_and_truth_together(sources) -> None:
    plain, moved = (lqr_problem(offset=offset, scale=scale) for offset, scale in ((0.0, 1.0), (10.0, 3.0)))
    level = 10.0 * 3.0 * plain.world().reward_std
    one, other = plain.arrays(sources), moved.arrays(sources)
    np.testing.assert_allclose(other.problem.rewards, 3.0 * one.problem.rewards + level, rtol=1e-4)
    assert other.truth == pytest.approx(3.0 * one.truth + level)
    np.testing.assert_array_equal(one.problem.states, other.problem.states)


def test_problems_of_one_program_have_arrays_of_the_same_shapes_and_counts(sources) -> None:
    def shapes(problem: Problem) -> object:
        return jax.tree.structure(problem), [leaf.shape for leaf in jax.tree.leaves(problem)]

    one, same, other = (
        lqr_problem(seed=seed, end_rate=0.05, half=half)
        for seed, half in ((1, "choose"), (2, "choose"), (1, "report"))
    )
    assert one.program == same.program != other.program
    assert shapes(one.arrays(sources).problem) == shapes(same.arrays(sources).problem)
    assert one.arrays(sources).problem.counts.terminated > 0
    assert not np.array_equal(
        one.arrays(sources).transitions.terminated, other.arrays(sources).transitions.terminated
    ), "the halves should not share their luck"


def test_settings_read_back_from_json_as_themselves() -> None:
    for item in family(1):
        text = msgspec.json.encode(item)
        assert msgspec.json.decode(text, type=LqrProblem | PendulumProblem) == item


def test_the_pendulums_log_is_cut_into_short_episodes_and_its_truth_is_measured_once(
    sources, monkeypatch
) -> None:
    monkeypatch.setattr(problems_family, "TRUTH_EPISODES", 2_000)
    shape = next(shape for shape in SHAPES if shape.world == "pendulum")
    item = msgspec.structs.replace(family(1, (shape,))[0], gamma=0.9)
    built = build(item, sources)
    assert built.problem.counts.episodes == shape.episodes
    assert built.transitions.truncated.sum() == shape.episodes
    assert not built.transitions.terminated.any()
    assert built.transitions.has_next_state.all()
    assert 0 < built.facts.truth_error < 0.2
    assert -16.3 < built.facts.truth < 0
    kept = item.file("truth", sources)
    written = kept.stat().st_mtime_ns
    assert build(item, sources).facts.truth == built.facts.truth
    assert kept.stat().st_mtime_ns == written


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


def test_a_density_told_too_wide_changes_the_density_and_nothing_else(sources) -> None:
    item = lqr_problem()
    right, wrong = (build(x, sources) for x in (item, msgspec.structs.replace(item, told_width=2.0)))
    np.testing.assert_array_equal(right.problem.actions, wrong.problem.actions)
    assert right.problem.log_mu is not None
    assert wrong.problem.log_mu is not None
    assert not np.allclose(right.problem.log_mu, wrong.problem.log_mu)
    assert right.facts.overlap == wrong.facts.overlap
    assert right.facts.description != wrong.facts.description
