"""Small linear-quadratic problems that are sound, and the same with one fault planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.lqr import LQR, LinearGaussian, random_lqr


def world_of(seed: int, d: int = 1, *, away: float = 0.3, gamma: float = 0.8) -> LQR:
    """Return a random world whose behaviour has ample noise and stays near the target."""
    world = random_lqr(seed, 2, d, gamma=gamma)
    near = world.gain + away * (world.behavior_gain - world.gain)
    return replace(world, behavior_gain=near)


def log_of(world: LQR, seed: int, episodes: int = 150, length: int = 20) -> Transitions:
    return world.collect(seed, episodes, length)


def problem_of(
    world: LQR, log: Transitions, *, gain: np.ndarray | None = None, told: LinearGaussian | None = None
) -> Problem:
    """Return the problem, for another target or with another density where given."""
    policy = world.policy if gain is None else replace(world.policy, gain=gain)
    return Problem.build(log, policy, told or world.behavior, world.gamma)


class Shifted(LinearGaussian):
    """The density with its mean moved by a part of its standard deviation."""

    def __init__(self, right: LinearGaussian, by: float) -> None:
        super().__init__(right.gain, right.std)
        object.__setattr__(self, "by", by)

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return super().log_prob_per_dimension(states, actions - self.by * self.std)


def clipped_log(log: Transitions, share: float) -> Transitions:
    """Return the log with actions clipped to bounds that about `share` of the rows exceed on either side."""
    low, high = np.quantile(log.actions, [share, 1.0 - share], axis=0)
    return changed(log, actions=np.clip(log.actions, low, high))


def ended_log(log: Transitions) -> Transitions:
    """Return the log with every timeout marked as a termination."""
    return changed(log, terminals=log.truncated, timeouts=np.zeros(len(log), bool))


def changed(log: Transitions, **fields: np.ndarray) -> Transitions:
    arrays = {
        "observations": log.states,
        "actions": log.actions,
        "rewards": log.rewards,
        "terminals": log.terminated,
        "timeouts": log.truncated,
        "next_observations": log.next_states,
    }
    return Transitions.from_arrays(**(arrays | fields))
