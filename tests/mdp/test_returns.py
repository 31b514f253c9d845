"""What logged episodes were worth: ended, cut by a time limit, or with rows lost."""

from __future__ import annotations

import numpy as np

from kmifqe.mdp.returns import credited_returns, episode_returns, value_units
from kmifqe.mdp.transitions import Transitions

GAMMA = 0.5


def test_an_ended_episode_is_worth_its_rewards_and_a_cut_one_is_continued() -> None:
    log = Transitions.from_arrays(
        np.zeros((5, 1)),
        np.zeros((5, 1)),
        np.array([1.0, 2.0, 4.0, 8.0, 8.0]),
        np.array([False, False, True, False, False]),
        np.array([False, False, False, False, True]),
    )
    ended, cut = episode_returns(log, GAMMA)
    after, _ = value_units(log, GAMMA)
    assert ended == (1 - GAMMA) * (1 + 2 * GAMMA + 4 * GAMMA**2)
    np.testing.assert_allclose(cut, (1 - GAMMA) * (8 + 8 * GAMMA) + GAMMA**2 * after)


def test_constant_rewards_without_an_end_are_worth_themselves_however_early_the_cut() -> None:
    ends = np.array([False, True, False, False, False, True])
    log = Transitions.from_arrays(
        np.zeros((6, 1)), np.zeros((6, 1)), np.full(6, 3.0), np.zeros(6, bool), ends
    )
    np.testing.assert_allclose(episode_returns(log, 0.99), 3.0, rtol=1e-6)


def test_credited_returns_have_the_same_mean_and_scatter_as_much_as_episodes_differ() -> None:
    """Rewards are constant within episodes: another log would move the mean by the scatter of these constants."""
    rng = np.random.default_rng(0)
    levels, length = rng.normal(size=50), 20
    ends = np.tile(np.arange(length) == length - 1, len(levels))
    zeros = np.zeros((len(ends), 1))
    log = Transitions.from_arrays(zeros, zeros, np.repeat(levels, length), np.zeros(len(ends), bool), ends)
    plain, credited = episode_returns(log, 0.99), credited_returns(log, 0.99)
    np.testing.assert_allclose(credited.mean(), plain.mean(), rtol=1e-6)
    np.testing.assert_allclose(credited, levels, atol=1e-5)
    assert plain.std() < 0.2 * levels.std()  # what was seen is a fifth of the return


def test_an_ended_episode_has_nothing_to_be_credited_with_where_all_end() -> None:
    rng = np.random.default_rng(1)
    ends = np.arange(12) % 4 == 3
    zeros = np.zeros((12, 1))
    log = Transitions.from_arrays(zeros, zeros, rng.normal(size=12), ends, np.zeros(12, bool))
    np.testing.assert_allclose(credited_returns(log, 0.9), episode_returns(log, 0.9))
