"""Faults of a log, planted in logs of varied worlds, sizes and dimensions: found there and not in the sound ones."""

import numpy as np
import pytest

from kmifqe.trust.checks.log import log_diagnostics, log_facts
from trust.planted import changed, clipped_log, ended_log, log_of, problem_of, world_of
from trust.test_measure_log import problem_with

VARIED = [(11, 1, 40, 12), (12, 2, 150, 20), (13, 4, 60, 50)]  # seed, action dimensions, episodes, length


def levels(problem, uses_density=True):
    found = log_diagnostics(log_facts(problem), float(problem.gamma), uses_density=uses_density)
    return {d.name: d.level for d in found}


def lines(problem):
    return {d.name: d.line for d in log_diagnostics(log_facts(problem), 0.9, uses_density=True)}


@pytest.mark.parametrize("seed, d, episodes, length", VARIED)
def test_a_sound_log_raises_no_alarm(seed, d, episodes, length):
    world = world_of(seed, d)
    assert set(levels(problem_of(world, log_of(world, seed, episodes, length))).values()) == {"ok"}


@pytest.mark.parametrize("seed, d, episodes, length", VARIED)
def test_timeouts_marked_as_terminals_are_named(seed, d, episodes, length):
    world = world_of(seed, d)
    problem = problem_of(world, ended_log(log_of(world, seed, episodes, length)))
    assert levels(problem)["time_limit"] != "ok"
    assert (
        f"all {episodes} episodes of the longest length, {length} steps, are marked"
        in lines(problem)["time_limit"]
    )


def test_timeouts_marked_as_terminals_are_named_among_episodes_that_do_terminate():
    lengths = np.minimum(np.random.default_rng(0).geometric(0.02, 300), 60)
    found = levels(problem_with(lengths.tolist(), [True] * 300))
    assert found["time_limit"] != "ok"


def test_natural_ends_are_no_time_limit_even_where_some_share_the_longest_length():
    rng = np.random.default_rng(0)
    for lengths in (rng.geometric(0.1, 300), rng.integers(5, 15, 300), 1 + rng.binomial(6, 0.5, 300)):
        assert levels(problem_with(lengths.tolist(), [True] * 300))["time_limit"] == "ok"


def test_timeouts_that_are_marked_as_such_are_right():
    lengths = np.minimum(np.random.default_rng(0).geometric(0.02, 300), 60)
    assert levels(problem_with(lengths.tolist(), (lengths < 60).tolist()))["time_limit"] == "ok"


def test_what_a_wrong_end_hides_is_its_effect_on_a_constant_reward():
    """Reward 1 a step for ever is worth 1; ended at a rate p it is worth (1−γ)/(1−γ(1−p))."""
    gamma, length = 0.9, 20
    world = world_of(0)
    problem = problem_of(world, ended_log(log_of(world, 0, 50, length)))
    (found,) = [
        d for d in log_diagnostics(log_facts(problem), gamma, uses_density=True) if d.name == "time_limit"
    ]
    assert found.value == pytest.approx(1 - (1 - gamma) / (1 - gamma * (1 - 1 / length)))


@pytest.mark.parametrize("seed, d, episodes, length", VARIED)
def test_clipped_actions_are_named_to_who_uses_their_density(seed, d, episodes, length):
    world = world_of(seed, d)
    problem = problem_of(world, clipped_log(log_of(world, seed, episodes, length), 0.03))
    assert levels(problem)["clipped_actions"] == "care"
    assert "sit exactly on a bound" in lines(problem)["clipped_actions"]
    assert levels(problem, uses_density=False)["clipped_actions"] == "ok"


def test_few_episodes_and_lost_rows_are_told():
    world = world_of(0)
    assert levels(problem_of(world, log_of(world, 0, 20, 5)))["episodes"] == "care"
    assert levels(problem_of(world, log_of(world, 0, 3, 5)))["episodes"] == "bad"
    short = problem_of(world, log_of(world, 0, 40, 2))  # every second row is the last of a cut episode
    assert levels(short)["rows_dropped"] == "care"
    assert lines(short)["rows_dropped"] == (
        "40 of 80 rows are not used: 40 at a cut, whose next action was not logged"
    )
    assert levels(short, uses_density=False)["rows_dropped"] == "ok"


def test_a_next_state_that_was_not_logged_is_told():
    world = world_of(0)
    log = log_of(world, 0, 40, 10)
    cut = changed(log, next_observations=np.where(log.truncated[:, None], np.nan, log.next_states))
    assert "40 whose next state was not logged" in lines(problem_of(world, cut))["rows_dropped"]
