"""Faults of a log, planted in logs of varied worlds, sizes and dimensions: found there and not in the sound ones."""

from __future__ import annotations

import numpy as np
import pytest

from kmifqe.mdp.problem import Problem, RowCounts
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks.log import LogFacts, episode_lengths, log_checks, log_facts, value_checks
from trust.checks.test_training import estimate
from trust.planted import changed, clipped_log, ended_log, log_of, problem_of, world_of


def problem_with(lengths, ends, *, last_state_logged=True, actions=None):
    """A log of episodes of these lengths; `ends` says which of them terminate."""
    n = sum(lengths)
    last = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(n, bool), np.zeros(n, bool)
    terminals[last[np.asarray(ends)]] = True
    timeouts[last[~np.asarray(ends)]] = True
    states = np.random.default_rng(0).standard_normal((n, 2))
    log = Transitions.from_arrays(
        states,
        np.random.default_rng(1).standard_normal((n, 1)) if actions is None else actions,
        np.arange(n, dtype=float),
        terminals,
        timeouts,
        np.roll(states, -1, axis=0) if last_state_logged else None,
    )
    return Problem.build(log, lambda s: np.zeros((len(s), log.action_dim)), None, 0.9)


@pytest.mark.parametrize("last_state_logged", [True, False])
def test_lengths_count_every_logged_step_however_the_episode_ended(last_state_logged):
    lengths, ends = [3, 7, 5, 7], [True, False, True, True]
    problem = problem_with(lengths, ends, last_state_logged=last_state_logged)
    found, terminated = episode_lengths(problem)
    assert found.tolist() == lengths
    assert terminated.tolist() == ends
    facts = log_facts(problem)
    assert (facts.episode_longest, facts.episodes_at_longest) == (7, 2)
    assert facts.episodes_at_longest_terminated == 1
    assert facts.rows.without_next_state == (0 if last_state_logged else 1)


def test_ends_just_below_the_longest_length_are_counted_per_length():
    lengths = [20] * 6 + [19] * 2 + [18] * 4 + [5] * 9
    facts = log_facts(problem_with(lengths, [True] * len(lengths)))
    # A tenth of 20 steps and one more: the lengths 17, 18 and 19 hold 6 ends.
    assert facts.episodes_per_length_below_longest == pytest.approx(2.0)


def test_an_atom_is_an_extreme_that_several_rows_share():
    actions = np.random.default_rng(0).uniform(-2, 2, (100, 2))
    assert log_facts(problem_with([50, 50], [True, True], actions=actions)).atom_share == 0
    clipped = actions.copy()
    clipped[:, 1] = np.clip(actions[:, 1], -1, 1)
    facts = log_facts(problem_with([50, 50], [True, True], actions=clipped))
    on_bound = float(np.mean(np.abs(actions[:, 1]) >= 1))
    assert facts.atom_shares == [0.0, pytest.approx(on_bound)]
    assert facts.atom_share == pytest.approx(on_bound)


def test_an_action_that_never_varies_is_no_atom():
    assert log_facts(problem_with([50, 50], [True, True], actions=np.ones((100, 1)))).atom_share == 0


def test_rewards_are_summed_up():
    facts = log_facts(problem_with([50, 51], [True, True]))
    assert (facts.reward_low, facts.reward_high, facts.reward_mean) == (0.0, 100.0, 50.0)


VARIED = [(11, 1, 40, 12), (12, 2, 150, 20), (13, 4, 60, 50)]  # seed, action dimensions, episodes, length


def levels(problem, uses_density=True):
    found = log_checks(log_facts(problem), float(problem.gamma), uses_density=uses_density)
    return {d.name: d.level for d in found}


def findings(problem):
    return {check.name: check.finding for check in log_checks(log_facts(problem), 0.9, uses_density=True)}


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
        f"All {episodes} episodes of the longest length, {length} steps, are marked"
        in findings(problem)["time_limit"]
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
    (found,) = [d for d in log_checks(log_facts(problem), gamma, uses_density=True) if d.name == "time_limit"]
    assert found.value == pytest.approx(1 - (1 - gamma) / (1 - gamma * (1 - 1 / length)))


@pytest.mark.parametrize("seed, d, episodes, length", VARIED)
def test_clipped_actions_are_named_to_who_uses_their_density(seed, d, episodes, length):
    world = world_of(seed, d)
    problem = problem_of(world, clipped_log(log_of(world, seed, episodes, length), 0.03))
    assert levels(problem)["clipped_actions"] == "care"
    assert "sit exactly on a bound" in findings(problem)["clipped_actions"]
    assert levels(problem, uses_density=False)["clipped_actions"] == "ok"


def test_few_episodes_and_lost_rows_are_told():
    world = world_of(0)
    assert levels(problem_of(world, log_of(world, 0, 20, 5)))["episodes"] == "care"
    assert levels(problem_of(world, log_of(world, 0, 3, 5)))["episodes"] == "bad"
    short = problem_of(world, log_of(world, 0, 40, 2))  # every second row is the last of a cut episode
    assert levels(short)["rows_dropped"] == "care"
    assert findings(short)["rows_dropped"] == (
        "40 of 80 rows are not used: 40 at a cut, whose next action was not logged."
    )
    assert levels(short, uses_density=False)["rows_dropped"] == "ok"


def test_a_next_state_that_was_not_logged_is_told():
    world = world_of(0)
    log = log_of(world, 0, 40, 10)
    cut = changed(log, next_observations=np.where(log.truncated[:, None], np.nan, log.next_states))
    assert "40 whose next state was not logged" in findings(problem_of(world, cut))["rows_dropped"]


def facts_with(terminated=0, **changes):
    """Return the facts of a log whose rewards lie in [−10, 0] and whose returns spread by 2."""
    rows = RowCounts(1000, 1000, 1000, 0, 0, terminated, episodes=50)
    counts = {"episode_longest": 20, "episodes_at_longest": 50, "episodes_at_longest_terminated": 0}
    counts |= {"episodes_per_length_below_longest": 0.0, "atom_share": 0.0, "atom_shares": [0.0]}
    rewards = {"reward_mean": -5.0, "reward_std": 3.0, "reward_low": -10.0, "reward_high": 0.0}
    return LogFacts(rows=rows, **(counts | rewards | {"return_std": 2.0} | changes))


def value_levels(values, half_width=0.1, **facts):
    found = value_checks(estimate(np.tile(values, (8, 1))), facts_with(**facts), half_width)
    return {check.name: check.level for check in found}


@pytest.mark.parametrize(
    "values, terminated, level",
    [
        ([-4.0, -5.0], 0, "ok"),
        ([-4.0, 0.5], 0, "care"),
        ([-4.0, 1.5], 0, "bad"),
        ([-12.0, -4.0], 0, "bad"),
        ([-4.0, np.nan], 0, "ok"),
    ],
)
def test_a_mean_of_rewards_lies_among_them(values, terminated, level):
    assert value_levels(values, terminated=terminated)["reward_range"] == level


def test_an_end_is_worth_0_and_widens_the_range():
    facts = {"reward_low": 1.0, "reward_high": 2.0}
    assert value_levels([0.5, 0.5], **facts)["reward_range"] == "bad"
    assert value_levels([0.5, 0.5], **facts, terminated=1)["reward_range"] == "ok"


def test_an_interval_is_held_against_what_single_episodes_would_tell():
    assert value_levels([-4.0, -4.0], 0.9)["interval_width"] == "ok"
    assert value_levels([-4.0, -4.0], 1.1)["interval_width"] == "care"
    assert value_levels([-4.0, -4.0], 3.5)["interval_width"] == "bad"
