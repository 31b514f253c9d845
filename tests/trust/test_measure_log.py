import numpy as np
import pytest

from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks.log import episode_lengths, log_facts


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
    assert (facts["episode_longest"], facts["episodes_at_longest"]) == (7, 2)
    assert facts["episodes_at_longest_terminated"] == 1
    assert facts["rows_without_next_state"] == (0 if last_state_logged else 1)


def test_ends_just_below_the_longest_length_are_counted_per_length():
    lengths = [20] * 6 + [19] * 2 + [18] * 4 + [5] * 9
    facts = log_facts(problem_with(lengths, [True] * len(lengths)))
    # A tenth of 20 steps and one more: the lengths 17, 18 and 19 hold 6 ends.
    assert facts["episodes_per_length_below_longest"] == pytest.approx(2.0)


def test_an_atom_is_an_extreme_that_several_rows_share():
    actions = np.random.default_rng(0).uniform(-2, 2, (100, 2))
    assert log_facts(problem_with([50, 50], [True, True], actions=actions))["atom_share"] == 0
    clipped = actions.copy()
    clipped[:, 1] = np.clip(actions[:, 1], -1, 1)
    facts = log_facts(problem_with([50, 50], [True, True], actions=clipped))
    on_bound = float(np.mean(np.abs(actions[:, 1]) >= 1))
    assert facts["atom_shares"] == [0.0, pytest.approx(on_bound)]
    assert facts["atom_share"] == pytest.approx(on_bound)


def test_an_action_that_never_varies_is_no_atom():
    assert log_facts(problem_with([50, 50], [True, True], actions=np.ones((100, 1))))["atom_share"] == 0


def test_rewards_are_summed_up():
    facts = log_facts(problem_with([50, 51], [True, True]))
    assert (facts["reward_low"], facts["reward_high"], facts["reward_mean"]) == (0.0, 100.0, 50.0)
