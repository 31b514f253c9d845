from __future__ import annotations

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.worlds.gym_envs import EnvPool, describe_task
from kmifqe.worlds.gym_truth import play_episodes
from worlds.gym_test_envs import LIFE, env_id, half


@pytest.mark.parametrize("episodes", [1, 3, 4, 11])
def test_exactly_as_many_episodes_as_asked_each_with_its_closed_form_return(episodes):
    told = []
    with EnvPool(describe_task(env_id("Countdown")), 4) as pool:
        played = play_episodes(pool, half, episodes, gammas=(0.9,), progress=told.append)
    assert len(played.returns) == episodes == told[-1]
    np.testing.assert_allclose(played.discounted, (1 - 0.9**LIFE) / 0.1)
    assert (played.returns == LIFE).all()
    assert (played.lengths == LIFE).all()
    assert (played.discounts_left == 0).all()


def test_returns_stop_at_the_tasks_limit_while_the_discounted_sum_goes_on():
    task = describe_task(env_id("Endless"))
    with EnvPool(task, 2, max_episode_steps=30) as pool:
        played = play_episodes(pool, half, 2, gammas=(0.9,))
    np.testing.assert_allclose(played.discounted, (1 - 0.9**30) / 0.1)
    np.testing.assert_allclose(played.discounts_left, 0.9**30)
    assert (played.returns == task.time_limit).all()
    assert (played.lengths == task.time_limit).all()


def test_only_the_given_slots_play_and_the_others_keep_their_episode():
    with EnvPool(describe_task(env_id("Countdown")), 4) as pool:
        pool.reset()
        before = pool.states[:2].copy()
        play_episodes(pool, half, 5, slots=range(2, 4), first_round=7)
        np.testing.assert_array_equal(pool.states[:2], before)


def test_the_same_rounds_start_in_the_same_states():
    with EnvPool(describe_task("Pendulum-v1"), 3, max_episode_steps=2) as pool:
        first, again, other = (play_episodes(pool, half, 6, first_round=r).returns for r in (0, 0, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_no_episode_is_refused():
    with EnvPool(describe_task("Pendulum-v1"), 1) as pool, pytest.raises(InputError, match="episodes is 0"):
        play_episodes(pool, half, 0)
