"""What an environment is when it runs inside jax: a few pure functions of arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class Environment:
    """Pure functions over any leading batch axes, and the numbers that a learner needs.

    `reset(key, batch)` draws `batch` first states, `observe(state)` is what a policy sees, and
    `step(state, action)` gives the next state, the reward and whether the environment itself ended. The time
    limit is not part of the step: it truncates, and the value goes on past it.
    """

    reset: Callable[[jax.Array, int], jax.Array]
    observe: Callable[[jax.Array], jax.Array]
    step: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
    observation_dim: int
    low: tuple[float, ...]  # action bounds
    high: tuple[float, ...]
    time_limit: int  # steps
