"""Random numbers of a step from one call: every call of the generator is a kernel of its own on a GPU."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def uniforms(words: Int[Array, ...]) -> Float[Array, ...]:
    """Return numbers uniform in [0, 1) from random 32-bit words."""
    return (words >> 8).astype(jnp.float32) * 2.0**-24


def row_numbers(words: Int[Array, " size"], n: int) -> Int[Array, " size"]:
    """Return whole numbers uniform in 0 … n − 1 from random 32-bit words: the upper half of the product word·n.

    In halves of 16 bits, since there are no 64-bit numbers; float32 could not name every row of a long log.
    """
    upper, lower = words >> 16, words & 0xFFFF
    middle = upper * (n & 0xFFFF) + ((lower * (n & 0xFFFF)) >> 16)
    carried = (middle & 0xFFFF) + lower * (n >> 16)
    return (upper * (n >> 16) + (middle >> 16) + (carried >> 16)).astype(jnp.int32)
