from __future__ import annotations

import numpy as np

from kmifqe.worlds.gym_envs import EnvGroup, describe_task
from worlds.gym_test_envs import LIFE, env_id


def group(name: str, slots: range, n_slots: int, seed: int = 0) -> EnvGroup:
    return EnvGroup(describe_task(env_id(name)), slots, n_slots, seed, None)


def test_the_state_reached_belongs_to_the_episode_that_ended_and_the_next_state_to_the_new_one():
    envs = group("Countdown", range(2), 2)
    first = envs.reset(np.ones(2, bool), 0)
    for _ in range(LIFE):
        stepped = envs.step(np.zeros((2, 1)), np.ones(2, bool))
    assert stepped.terminated.all()
    assert not stepped.truncated.any()
    assert (stepped.reached[:, 1] == LIFE).all()
    assert (stepped.reached[:, 0] == first[:, 0]).all()
    assert (stepped.states[:, 1] == 0).all()
    assert (stepped.states[:, 0] != first[:, 0]).all()


def test_environments_that_are_not_active_stay_where_they_are():
    envs = group("Countdown", range(2), 2)
    envs.reset(np.ones(2, bool), 0)
    assert envs.step(np.zeros((2, 1)), np.array([True, False])).states[:, 1].tolist() == [1, 0]


def test_first_states_depend_on_the_episodes_number_alone():
    """Episode k starts alike in one slot of one, after k episodes, and in slot k of many, at once."""
    one, many = group("Countdown", range(1), 1), group("Countdown", range(4), 4)
    at_once = many.reset(np.ones(4, bool), 0)[:, 0]
    in_turn = [one.reset(np.ones(1, bool), round_)[0, 0] for round_ in range(4)]
    assert at_once.tolist() == in_turn
    assert group("Countdown", range(1), 1, seed=1).reset(np.ones(1, bool), 0)[0, 0] != at_once[0]


def test_the_environment_gets_the_action_clipped_to_its_box():
    envs = group("Countdown", range(2), 2)
    envs.reset(np.ones(2, bool), 0)
    assert envs.step(np.array([[-9.0], [9.0]]), np.ones(2, bool)).reached[:, 2].tolist() == [-2.0, 1.0]


def test_an_end_and_a_cut_on_one_step_count_as_an_end():
    envs = EnvGroup(describe_task(env_id("Countdown")), range(1), 1, 0, max_episode_steps=LIFE)
    envs.reset(np.ones(1, bool), 0)
    for _ in range(LIFE):
        stepped = envs.step(np.zeros((1, 1)), np.ones(1, bool))
    assert stepped.terminated[0]
    assert not stepped.truncated[0]
