from __future__ import annotations

import numpy as np

from kmifqe.worlds.gym_envs import EnvPool, describe_task
from worlds.gym_test_envs import LIFE, env_id


def pool(name: str, n_envs: int, seed: int = 0, max_episode_steps: int | None = None) -> EnvPool:
    return EnvPool(describe_task(env_id(name)), n_envs, seed=seed, max_episode_steps=max_episode_steps)


def test_the_state_reached_belongs_to_the_episode_that_ended_and_the_next_state_to_the_new_one():
    envs = pool("Countdown", 2)
    first = envs.reset()
    for _ in range(LIFE):
        stepped = envs.step(np.zeros((2, 1)))
    assert stepped.terminated.all()
    assert not stepped.truncated.any()
    assert (stepped.reached[:, 1] == LIFE).all()
    assert (stepped.reached[:, 0] == first[:, 0]).all()
    assert (stepped.states[:, 1] == 0).all()
    assert (stepped.states[:, 0] != first[:, 0]).all()


def test_environments_that_are_not_active_stay_where_they_are():
    envs = pool("Countdown", 2)
    envs.reset()
    assert envs.step(np.zeros((2, 1)), np.array([True, False])).states[:, 1].tolist() == [1, 0]
    assert envs.reset(np.array([True, False]))[:, 1].tolist() == [0, 0]
    assert envs.step(np.zeros((2, 1)), np.zeros(2, bool)).states[:, 1].tolist() == [0, 0]
    assert envs.step(np.zeros((2, 1))).states[:, 1].tolist() == [1, 1]


def test_first_states_depend_on_the_episodes_number_alone():
    """Episode k starts alike in one slot of one, after k episodes, and in slot k of many, at once."""
    one, many = pool("Countdown", 1), pool("Countdown", 4)
    at_once = many.reset()[:, 0]
    in_turn = [one.reset(first_round=round_)[0, 0] for round_ in range(4)]
    assert at_once.tolist() == in_turn
    assert pool("Countdown", 1, seed=1).reset()[0, 0] != at_once[0]


def test_the_environment_gets_the_action_clipped_to_its_box():
    envs = pool("Countdown", 2)
    envs.reset()
    assert envs.step(np.array([[-9.0], [9.0]])).reached[:, 2].tolist() == [-2.0, 1.0]


def test_an_end_and_a_cut_on_one_step_count_as_an_end():
    envs = pool("Countdown", 1, max_episode_steps=LIFE)
    envs.reset()
    for _ in range(LIFE):
        stepped = envs.step(np.zeros((1, 1)))
    assert stepped.terminated[0]
    assert not stepped.truncated[0]
