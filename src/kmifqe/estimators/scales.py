"""Powers of two that bring numbers of any unit to where a network can learn them.

A network starts with outputs near 0 and moves by the learning rate a step: rewards of a million are never
reached, rewards of a millionth drown in the noise of the updates. A power of two changes no bit but the exponent.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.problem import Problem, largest_magnitudes

# Rewards whose largest magnitude lies between these are learned as they are. On a linear-quadratic world FQE's
# errors are much the same from 0.04 to 700, and several times larger at 0.005 and at 5,600 (docs/numbers.md).
REWARDS = (2.0**-6, 2.0**10)
# The same for each raw input column; wide, so that what the paper ran on raw states stays as it was.
INPUTS = (2.0**-16, 2.0**16)

EXPONENT_BITS = 0x7F80_0000  # of a float32


def reward_scale(problem: Problem) -> Float[Array, ""]:
    """Return the unit in which rewards are learned: 1, or a power of two where |r| is extreme throughout."""
    return _scale(jnp.max(jnp.abs(problem.rewards)), REWARDS)


def input_scale(problem: Problem, inputs: str) -> Float[Array, " q+d"]:
    """Return what to divide [s, a] by, column by column: 1, or a power of two where a raw column is extreme."""
    if inputs != "raw":
        return jnp.ones(problem.state_dim + problem.action_dim)
    largest = [largest_magnitudes(problem.states), largest_magnitudes(problem.actions)]
    return _scale(jnp.concatenate(largest), INPUTS)


def in_unit(x: Float[Array, ...], scale: Float[Array, ...]) -> Float[Array, ...]:
    """Return x/scale, and x itself, to the bit and in any fusion, where the scale is 1."""
    return jnp.where(scale == 1.0, x, x / scale)


def _scale(largest: Float[Array, ...], as_it_is: tuple[float, float]) -> Float[Array, ...]:
    """Return 1 for a magnitude within the bounds, or 0; else the power of two at or just below it."""
    bits = jax.lax.bitcast_convert_type(largest.astype(jnp.float32), jnp.int32)
    power = jax.lax.bitcast_convert_type(bits & EXPONENT_BITS, jnp.float32)
    low, high = as_it_is
    extreme = (power > 0) & ((largest < low) | (largest > high))
    return jnp.where(extreme, power, 1.0)
