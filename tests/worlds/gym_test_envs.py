"""Tiny environments with known values, importable in worker processes: `worlds.gym_test_envs:NAME`."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

MODULE = "worlds.gym_test_envs"
LIFE = 5  # steps until Countdown ends


class Countdown(gym.Env):
    """Reward 1 a step; the observation is (a random episode mark, step, the last action)."""

    def __init__(self, life: int | None = LIFE, trouble: str = "") -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Box(-2.0, 1.0, (1,), np.float32)
        self._life, self._trouble = life, trouble

    def _observation(self, action: float) -> np.ndarray:
        return np.array([self._mark, self._step, action])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple:
        super().reset(seed=seed)
        self._mark, self._step = self.np_random.random(), 0
        return self._observation(0.0), {}

    def step(self, action: np.ndarray) -> tuple:
        self._step += 1
        if self._trouble and self._step == 3:
            self._misbehave()
        observation = self._observation(float(action[0]))
        if self._trouble == "nan" and self._step == 3:
            observation[0] = np.nan
        return observation, 1.0, self._step == self._life, False, {}

    def _misbehave(self) -> None:
        if self._trouble == "raise":
            raise ValueError("the motor\nis on fire")
        if self._trouble == "die":
            os._exit(3)
        if self._trouble == "hang":
            time.sleep(600)


class Reach(gym.Env):
    """One step costs (action − 0.6 · state)², and the next state is random: 10 steps, no memory."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _draw(self) -> np.ndarray:
        self._state = self.np_random.choice([-1.0, 1.0])
        return np.array([self._state], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: np.ndarray) -> tuple:
        cost = (float(action[0]) - 0.6 * self._state) ** 2
        return self._draw(), -cost, False, False, {}


class Odd(Countdown):
    """Spaces that no log of flat arrays can hold."""

    def __init__(self, which: str) -> None:
        super().__init__()
        if which == "dict":
            self.observation_space = spaces.Dict({"a": spaces.Box(0, 1, (2,))})
        if which == "discrete":
            self.action_space = spaces.Discrete(3)
        if which == "unbounded":
            self.action_space = spaces.Box(-np.inf, np.inf, (1,))


def _register(name: str, entry: type, limit: int | None, **kwargs: object) -> None:
    gym.register(f"{name}-v0", entry, max_episode_steps=limit, kwargs=kwargs)


_register("Countdown", Countdown, None)
_register("LimitedCountdown", Countdown, 3)
_register("Endless", Countdown, 10, life=None)
_register("Reach", Reach, 10)
for _trouble in ("raise", "die", "hang", "nan"):
    _register(f"Trouble{_trouble.title()}", Countdown, None, trouble=_trouble)
for _which in ("dict", "discrete", "unbounded"):
    _register(f"Odd{_which.title()}", Odd, None, which=_which)


def env_id(name: str) -> str:
    """Return the id under which any process can make the environment."""
    return f"{MODULE}:{name}-v0"


def half(states: np.ndarray) -> np.ndarray:
    """Return the action 0.5 in every state."""
    return np.full((len(states), 1), 0.5, np.float32)
