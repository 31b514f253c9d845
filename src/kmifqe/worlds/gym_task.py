"""A Gymnasium id -> its environment, and the facts about it that the commands need."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from kmifqe.errors import InputError
from kmifqe.policies.base import Policy
from kmifqe.policies.checked import check_policy_fits


@dataclass(frozen=True)
class Task:
    """What a policy, a log and a learner must fit."""

    env_id: str
    state_dim: int
    low: np.ndarray  # (d,) float32, action bounds
    high: np.ndarray
    time_limit: int | None  # steps after which the task itself cuts an episode; None: never

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return len(self.low)


def describe_task(env_id: str) -> Task:
    """Return the facts about a Gymnasium id; refuse what is not registered, or not made of flat Boxes."""
    env = make_env(env_id)
    try:
        states = _flat_box(env.observation_space, env_id, "observation")
        actions = _flat_box(env.action_space, env_id, "action")
        low, high = np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32)
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise InputError(f"{env_id}: the action box is {actions}; expected finite bounds, low below high")
        limit = None if env.spec is None else env.spec.max_episode_steps
        return Task(env_id, states.shape[0], low, high, limit)
    finally:
        env.close()


def make_env(env_id: str, max_episode_steps: int | None = None) -> gymnasium.Env[Any, Any]:
    """Return a new environment; `max_episode_steps` takes the place of the task's own time limit."""
    with warnings.catch_warnings():
        # "-v4 is out of date": that it is the closest to the paper's tasks is why it was asked for.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return gymnasium.make(env_id, max_episode_steps=max_episode_steps, disable_env_checker=True)
        except gymnasium.error.DependencyNotInstalled as error:
            hint = "; install kmifqe[mujoco]" if "mujoco" in str(error).lower() else ""
            raise InputError(f"{env_id}: a package it needs is missing ({_one_line(error)}){hint}") from error
        except Exception as error:  # making an environment runs its author's code, which may raise anything
            raise InputError(
                f"{env_id}: not an environment that Gymnasium can make ({_one_line(error)}); expected an id "
                "such as Pendulum-v1, or module:Name-v0 where importing the module registers it"
            ) from error


def check_policy_fits_task(policy: Policy, task: Task) -> None:
    """Raise InputError unless the policy maps the task's states to its actions."""
    try:
        check_policy_fits(policy, task.state_dim, task.action_dim)
    except InputError as error:
        # The check speaks of "the data"; here that is what the environment shows.
        raise InputError(str(error).replace("the data has", f"{task.env_id} has")) from error


def _flat_box(space: spaces.Space[Any], env_id: str, what: str) -> spaces.Box:
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] > 0:
        return space
    raise InputError(f"{env_id}: the {what} space is {space}; expected a Box of one axis")


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
