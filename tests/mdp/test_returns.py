"""What logged episodes were worth: ended, cut by a time limit, or with rows lost."""

from __future__ import annotations

import numpy as np

from kmifqe.mdp.returns import episode_returns, value_units
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
