"""Faults of a log, planted in logs of varied worlds, sizes and dimensions: found there and not in the sound ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from kmifqe.experiments.planted import (
    appended_log,
    changed,
    chosen_rows,
    clipped_log,
    copied_log,
    doubled_log,
    ended_log,
    interrupted_log,
    log_of,
    offset_log,
    partly_shuffled_log,
    problem_of,
    reset_log,
    reward_shift_log,
    shuffled_log,
    world_of,
)
from kmifqe.io.logs.faults import faults_found
from kmifqe.io.logs.summary import inspect
from kmifqe.io.logs.time_order import TimeOrdered
from kmifqe.mdp.problem import Problem, RowCounts
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks.base import Reach
from kmifqe.trust.checks.log import LogFacts, log_checks, log_facts, value_checks
from trust.checks.test_training import estimate


def problem_with(lengths, ends, *, last_state_logged=True, actions=None, states=None, rewards=None):
    """A log of episodes of these lengths; `ends` says which of them terminate."""
    n = sum(lengths)
    last = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(n, bool), np.zeros(n, bool)
    terminals[last[np.asarray(ends)]] = True
    timeouts[last[~np.asarray(ends)]] = True
    states = np.random.default_rng(0).standard_normal((n, 2)) if states is None else states
    log = Transitions.from_arrays(
        states,
        np.random.default_rng(1).standard_normal((n, 1)) if actions is None else actions,
        np.arange(n, dtype=float) if rewards is None else rewards,
        terminals,
        timeouts,
        np.roll(states, -1, axis=0) if last_state_logged else None,
    )
    return Problem.build(log, lambda s: np.zeros((len(s), log.action_dim)), None, 0.9)


@pytest.mark.parametrize("last_state_logged", [True, False])
def test_lengths_count_every_logged_step_however_the_episode_ended(last_state_logged):
    lengths, ends = [3, 7, 5, 7], [True, False, True, True]
    problem = problem_with(lengths, ends, last_state_logged=last_state_logged)
    log = TimeOrdered.of_problem(problem)
    assert log.lengths.tolist() == lengths
    assert log.ended.tolist() == ends
    facts = log_facts(problem)
    assert facts.episode_longest == 7
    assert facts.rows.without_next_state == (0 if last_state_logged else 1)


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


def raised(problem, uses_density=False):
    """Return the names of the checks that are not ok, but for the number of episodes and rows."""
    found = levels(problem, uses_density)
    return {name for name, level in found.items() if level != "ok"} - {"episodes", "rows_dropped"}


PLANTED = {
    "row_order": [shuffled_log],
    "misplaced_rows": [partly_shuffled_log],
    "time_limit": [ended_log, partial(ended_log, share=0.5), partial(ended_log, share=0.9)],
    "unexplained_ends": [partial(interrupted_log, rate=0.1)],
    "reset_states": [reset_log],
    "copied_rows": [doubled_log, appended_log, copied_log],
    "reward_shift": [reward_shift_log],
    "lost_digits": [offset_log],
}


@pytest.mark.parametrize("seed, d, episodes, length", [(11, 1, 100, 12), *VARIED[1:]])
@pytest.mark.parametrize(
    "name, plant",
    [(name, plant) for name, plants in PLANTED.items() for plant in plants],
    ids=lambda x: x if isinstance(x, str) else getattr(x, "__name__", str(getattr(x, "keywords", x))),
)
def test_a_planted_fault_is_named_and_nothing_else(name, plant, seed, d, episodes, length):
    world = world_of(seed, d)
    log = plant(log_of(world, seed, episodes, length))
    assert raised(problem_of(world, log)) == {name}
    assert [fault.name for fault in faults_found(inspect(log).faults)] == [name]


@pytest.mark.parametrize("seed, d, episodes, length", VARIED)
def test_the_verdict_and_inspect_measure_the_same(seed, d, episodes, length):
    world = world_of(seed, d)
    for log in (
        log_of(world, seed, episodes, length),
        interrupted_log(log_of(world, seed, episodes, length)),
    ):
        assert log_facts(problem_of(world, log)).faults == inspect(log).faults


@pytest.mark.parametrize("seed", range(40, 45))
def test_sound_logs_of_many_worlds_raise_no_alarm(seed):
    """With and without next states, with rows lost, and with a behaviour that changes halfway."""
    rng = np.random.default_rng(seed)
    world = world_of(seed, int(rng.integers(1, 5)))
    log = log_of(world, seed, int(rng.integers(40, 200)), int(rng.integers(8, 40)))
    other = replace(
        world, behavior_gain=0.5 * world.behavior_gain, behavior_std=1.5 * world.behavior_std
    ).collect(seed + 1, 60, 20)
    lost = log.first_rows[1:][::7] + 3
    for sound in (
        log,
        changed(log, next_observations=None),
        chosen_rows(log, np.delete(np.arange(len(log)), lost)),
        joined(other, log),
        changed(log, rewards=log.rewards + 1e4),
    ):
        assert raised(problem_of(world, sound)) == set()


def joined(one, other):
    fields = ("states", "actions", "rewards", "terminated", "truncated", "next_states")
    return Transitions.from_arrays(
        *(np.concatenate([getattr(log, field) for log in (one, other)]) for field in fields)
    )


def test_states_without_memory_raise_no_alarm():
    """Where no state depends on another, any order of the rows is as good as the logged one."""
    assert levels(problem_with([20] * 200, [False] * 200))["row_order"] == "ok"


def ended_by_state(log, beyond=1.5):
    """Return the log of a system that ends where its first state leaves a range."""
    over = np.abs(log.next_states[:, 0]) > beyond * log.states[:, 0].std()
    before = np.cumsum(over) - over
    kept = before == before[log.first_rows][log.episode]
    return chosen_rows(changed(log, terminals=over, timeouts=log.truncated & ~over), kept)


@pytest.mark.parametrize("seed, d, episodes, length", VARIED)
def test_ends_that_the_state_decides_raise_no_alarm(seed, d, episodes, length):
    world = world_of(seed, d)
    log = ended_by_state(log_of(world, seed, 4 * episodes, length))
    assert log.terminated.sum() > 30
    for sound in (log, changed(log, next_observations=None)):
        assert raised(problem_of(world, sound)) == set()


@pytest.mark.parametrize("seed, d, episodes, length", VARIED)
def test_a_stream_that_was_cut_into_pieces_goes_on_at_its_cuts(seed, d, episodes, length):
    """Here the state after a cut is the next row's and right: the system was not reset."""
    world = world_of(seed, d)
    stream = log_of(world, seed, 2, episodes * length // 2)
    pieces = changed(stream, timeouts=np.arange(1, len(stream) + 1) % length == 0)
    assert "reset_states" not in raised(problem_of(world, pieces))


@pytest.mark.parametrize("step", [0.01, 0.5])
def test_a_reset_is_seen_with_coarse_sensors_too(step):
    """Many states then equal others by chance, but not every cut's next state that of the next row."""
    world = world_of(21, 2)
    log = log_of(world, 21, 100, 20)
    coarse = {
        name: np.round(states / step) * step
        for name, states in (("observations", log.states), ("next_observations", log.next_states))
    }
    sound = changed(log, **coarse)
    assert "reset_states" not in raised(problem_of(world, sound))
    assert raised(problem_of(world, reset_log(sound))) == {"reset_states"}


@pytest.mark.parametrize("seed", range(4))
def test_a_short_log_shows_whether_its_cuts_were_resets(seed):
    world = world_of(seed, 2)
    assert "reset_states" in raised(problem_of(world, reset_log(log_of(world, seed, 8, 12))))
    stream = log_of(world, seed, 1, 96)
    pieces = changed(stream, timeouts=np.arange(1, len(stream) + 1) % 12 == 0)
    assert "reset_states" not in raised(problem_of(world, pieces))


def test_a_wrong_next_state_at_a_cut_misleads_only_who_reads_it():
    world = world_of(0)
    problem = problem_of(world, reset_log(log_of(world, 0)))
    assert levels(problem, uses_density=False)["reset_states"] == "bad"
    assert levels(problem, uses_density=True)["reset_states"] == "ok"


def test_copied_episodes_count_once():
    world = world_of(0)
    problem = problem_of(world, copied_log(log_of(world, 0), episodes=4, copies=50))
    assert (problem.counts.episodes, log_facts(problem).faults.distinct_episodes) == (200, 4)
    assert levels(problem)["episodes"] == "bad"


def test_a_plant_at_rest_repeats_its_rows_honestly():
    """Coarse sensors, and a controller that does nothing for a while: equal rows in runs of any length."""
    rng = np.random.default_rng(0)
    awake = rng.random((60, 50)) < 0.3
    states = np.round(np.cumsum(awake * rng.standard_normal((60, 50)), axis=1), 1).reshape(-1, 1)
    actions = np.round(awake * rng.standard_normal((60, 50)), 1).reshape(-1, 1)
    problem = problem_with(
        [50] * 60, [False] * 60, actions=actions, states=states, rewards=-(states[:, 0] ** 2)
    )
    assert "copied_rows" not in raised(problem)


def test_a_time_limit_below_the_longest_length_is_seen():
    """Half of the log was made with a limit of 40 steps, which is marked as an end, and half with one of 100."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(0.01, 400), np.where(np.arange(400) < 200, 40, 100))
    ends = lengths < 100
    states = np.cumsum(rng.standard_normal((int(lengths.sum()), 2)), axis=0) % 10.0
    facts = log_facts(problem_with(lengths.tolist(), ends.tolist(), states=states))
    assert facts.faults.spike_length == 40


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
    counts = {"episode_longest": 20, "atom_share": 0.0, "atom_shares": [0.0]}
    rewards = {"reward_mean": -5.0, "reward_std": 3.0, "reward_low": -10.0, "reward_high": 0.0}
    spread = {"reward_span": 9.0, "return_std": 2.0}
    return LogFacts(rows=rows, **(counts | rewards | spread | changes))


def value_levels(values, half_width=0.1, **facts):
    found = value_checks(
        estimate(np.tile(values, (8, 1))), facts_with(**facts), Reach(half_width, half_width)
    )
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
    """Single episodes scatter by 2: 1.6 to either side is what six of them give, 3.92 what one gives."""
    assert value_levels([-4.0, -4.0], 1.5)["interval_width"] == "ok"
    assert value_levels([-4.0, -4.0], 1.7)["interval_width"] == "care"
    assert value_levels([-4.0, -4.0], 4.0)["interval_width"] == "bad"


def test_a_narrow_interval_is_not_refused_where_returns_hardly_scatter():
    still = {"return_std": 1e-4, "reward_low": 0.0, "reward_high": 1.0, "reward_span": 1.0}
    assert value_levels([0.9917, 0.9917], 0.00375, **still)["interval_width"] == "ok"
    assert value_levels([0.5, 0.5], 0.2, **still)["interval_width"] == "bad"
    # Where rewards hardly differ either, a number that is known to a hundredth of itself asks for care at most.
    alike = still | {"reward_low": 0.98, "reward_span": 0.02}
    assert value_levels([0.9917, 0.9917], 0.00375, **alike)["interval_width"] == "care"


def test_the_unit_of_a_width_does_not_depend_on_the_rewards_level():
    world = world_of(0)
    log = log_of(world, 0)
    here, there = (
        log_facts(problem_of(world, each)) for each in (log, changed(log, rewards=log.rewards + 100))
    )
    assert here.reward_span == pytest.approx(there.reward_span, rel=1e-4)


@pytest.mark.parametrize("gamma, level", [(0.9, "ok"), (0.98, "care"), (0.999, "bad")])
def test_what_is_cut_off_adds_up_over_the_steps_of_the_future(gamma, level):
    """Cut by 0.04 at each step where rewards span 9: that is 4 % of them at γ = 0.9, 22 % at 0.98, 444 % at 0.999."""
    fitted = estimate([[-4.0, -4.0]], gamma, {"cut": 0.04})
    found = {check.name: check.level for check in value_checks(fitted, facts_with(), Reach(0.1, 0.1))}
    assert found["cut_values"] == level
