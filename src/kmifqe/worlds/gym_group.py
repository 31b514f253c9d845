"""Several Gymnasium environments stepped together in one process, with their resets kept out of the log."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kmifqe.worlds.gym_task import Task, make_env


class Stepped(NamedTuple):
    """What one step of each environment gave. Rows of environments that were not stepped mean nothing."""

    reached: np.ndarray  # (n, q) float32: the state the step led to, also where the episode ended there
    rewards: np.ndarray  # (n,) float64
    terminated: np.ndarray  # (n,) bool: the environment ended
    truncated: np.ndarray  # (n,) bool: a time limit cut the episode, and the environment did not end
    states: (
        np.ndarray
    )  # (n, q) float32: where the next step starts; after an end, a new episode's first state


class EnvGroup:
    """Environments numbered `slots`, out of `n_slots` in all.

    Every episode has its own seed, made from `seed` and its number `round · n_slots + slot`: first states
    depend neither on how slots are spread over processes nor on what happened in earlier episodes.
    """

    def __init__(
        self, task: Task, slots: range, n_slots: int, seed: int, max_episode_steps: int | None
    ) -> None:
        self._task, self._slots, self._n_slots, self._seed = task, slots, n_slots, seed
        self._envs = [make_env(task.env_id, max_episode_steps) for _ in slots]
        self._rounds = [0] * len(slots)
        self._states = np.zeros((len(slots), task.state_dim), np.float32)

    def reset(self, active: np.ndarray, first_round: int) -> np.ndarray:
        """Return all current states after starting episode `first_round` in each active environment."""
        for i in np.flatnonzero(active).tolist():
            self._rounds[i] = first_round
            self._start_episode(i)
        return self._states.copy()

    def step(self, actions: np.ndarray, active: np.ndarray) -> Stepped:
        """Step each active environment; where its episode ends, start the next one."""
        n = len(self._envs)
        reached, rewards = self._states.copy(), np.zeros(n)
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        dtype = self._envs[0].action_space.dtype
        clipped = np.clip(actions, self._task.low, self._task.high).astype(dtype)
        for i in np.flatnonzero(active).tolist():
            observation, reward, ended, cut, _ = self._envs[i].step(clipped[i])
            reached[i] = self._states[i] = _finite_state(observation)
            rewards[i] = reward
            terminated[i], truncated[i] = ended, cut and not ended
            if ended or cut:
                self._start_episode(i)
        if not np.isfinite(rewards).all():
            raise ValueError("a reward is NaN or infinite")
        return Stepped(reached, rewards, terminated, truncated, self._states.copy())

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    def _start_episode(self, i: int) -> None:
        number = self._rounds[i] * self._n_slots + self._slots[i]
        seed = int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0])
        observation, _ = self._envs[i].reset(seed=seed)
        self._states[i] = _finite_state(observation)
        self._rounds[i] += 1


def _finite_state(observation: np.ndarray) -> np.ndarray:
    # float32 is what the log holds: the policy must act on what is logged, or the density is not exact.
    state = np.asarray(observation, np.float32)
    if not np.isfinite(state).all():
        raise ValueError("an observation holds NaN, infinity or a number beyond float32's range")
    return state
