from __future__ import annotations

import sys

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor
from kmifqe.worlds.gym_envs import check_policy_fits_task, describe_task, make_env
from worlds.gym_test_envs import env_id


def test_a_task_is_described_by_its_spaces_and_its_own_time_limit():
    task = describe_task("Pendulum-v1")
    assert (task.state_dim, task.action_dim, task.time_limit) == (3, 1, 200)
    assert task.low.tolist() == [-2.0]
    assert task.high.tolist() == [2.0]
    assert describe_task(env_id("Countdown")).time_limit is None


def test_another_time_limit_takes_the_place_of_the_tasks_own():
    env = make_env(env_id("LimitedCountdown"), max_episode_steps=4)
    env.reset(seed=0)
    assert [env.step(np.zeros(1))[3] for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nope-v1", "Nope-v1: not an environment .* doesn't exist"),
        ("Pendulum-v9", "Pendulum-v9: not an environment .*`v1`"),
        ("Pend ulum", "Malformed environment ID"),
        ("no_such_module:Foo-v0", "No module named 'no_such_module'"),
        # In older Gymnasiums v2 is there, for a MuJoCo binding that is not.
        ("Hopper-v2", "Hopper-v2: (not an environment|a package it needs is missing)"),
        (env_id("OddDict"), "the observation space is Dict.*expected a Box of one axis"),
        (env_id("OddDiscrete"), r"the action space is Discrete\(3\); expected a Box of one axis"),
        (env_id("OddUnbounded"), "the action box is .*expected finite bounds"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(name, message):
    with pytest.raises(InputError, match=message) as caught:
        describe_task(name)
    assert "\n" not in str(caught.value)


def test_a_missing_mujoco_says_which_extra_to_install(monkeypatch):
    for module in [name for name in sys.modules if "mujoco" in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(InputError, match=r"Hopper-v4: .*install kmifqe\[mujoco\]"):
        describe_task("Hopper-v4")


def test_a_policy_of_another_width_is_refused_by_the_environments_name():
    zeros = np.zeros(2, np.float32)
    actor = Actor((np.zeros((3, 2), np.float32),), (zeros,), "relu", "tanh", zeros - 1, zeros + 1, name="two")
    with pytest.raises(InputError, match="two: the policy gives actions of 2 numbers; Pendulum-v1 has 1"):
        check_policy_fits_task(actor, describe_task("Pendulum-v1"))
    with pytest.raises(InputError, match="takes states of 3 numbers; MountainCarContinuous-v0 has 2"):
        check_policy_fits_task(actor, describe_task("MountainCarContinuous-v0"))
