"""Gymnasium's Pendulum-v1 as pure functions over batches, with room for actions that do nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp

GRAVITY = 10.0
TIME_STEP = 0.05
MAX_SPEED = 8.0
MAX_TORQUE = 2.0
EPISODE_STEPS = 200


def reset(key: jax.Array, batch: int) -> jax.Array:
    """Return `batch` first states: θ uniform on [−π, π], θ' on [−1, 1]."""
    return jax.random.uniform(key, (batch, 2), minval=-1.0, maxval=1.0) * jnp.array([jnp.pi, 1.0])


def observe(state: jax.Array) -> jax.Array:
    """Return the observation (cos θ, sin θ, θ')."""
    theta, speed = state[..., 0], state[..., 1]
    return jnp.stack([jnp.cos(theta), jnp.sin(theta), speed], axis=-1)


def state_of(observation: jax.Array) -> jax.Array:
    """Return the state (θ, θ') behind an observation: it hides nothing."""
    theta = jnp.arctan2(observation[..., 1], observation[..., 0])
    return jnp.stack([theta, observation[..., 2]], axis=-1)


def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the next state, the reward and `terminated` (never true), as Pendulum-v1 with m = l = 1."""
    theta, speed = _wrap(state[..., 0]), state[..., 1]
    torque = jnp.clip(action[..., 0], -MAX_TORQUE, MAX_TORQUE)
    reward = -(theta**2 + 0.1 * speed**2 + 0.001 * torque**2)
    speed = speed + (1.5 * GRAVITY * jnp.sin(theta) + 3.0 * torque) * TIME_STEP
    speed = jnp.clip(speed, -MAX_SPEED, MAX_SPEED)
    # Wrapped, unlike Gymnasium's: the same angle, and float32 keeps its digits when the pendulum spins.
    next_state = jnp.stack([_wrap(theta + speed * TIME_STEP), speed], axis=-1)
    return next_state, reward, jnp.zeros(reward.shape, bool)


def _wrap(angle: jax.Array) -> jax.Array:
    return (angle + jnp.pi) % (2.0 * jnp.pi) - jnp.pi
