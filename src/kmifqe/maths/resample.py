"""Importance resampling: weights to row indices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

FANOUT = 64


def resample(key: Array, weights: Float[Array, " n"], size: int) -> Int[Array, " size"]:
    """Return `size` row indices drawn with replacement, row j with probability ρ_j = w_j / Σ w.

    Eq. (importance resampling). The draw walks down a tree of partial sums, 64 children a node, with a fresh
    uniform number at every level: one pass over the weights, and full float32 resolution however many rows
    there are. (One float32 running sum over a million rows could not tell neighbouring rows apart.)
    """
    levels = [_padded(weights)]
    while levels[-1].shape[0] > 1:
        levels.append(_padded(jnp.sum(levels[-1], axis=1)))
    keys = jax.random.split(key, len(levels))
    node = jnp.zeros(size, jnp.int32)
    for level, level_key in zip(reversed(levels), keys):
        node = node * FANOUT + _child(level_key, level[node])
    return node


def _padded(values: Float[Array, " n"]) -> Float[Array, "rows fanout"]:
    n = values.shape[0]
    rows = -(-n // FANOUT)
    return jnp.pad(values, (0, rows * FANOUT - n)).reshape(rows, FANOUT)


def _child(key: Array, children: Float[Array, "size fanout"]) -> Int[Array, " size"]:
    """Return which child each draw takes, in proportion to its weight; one of weight 0 is never taken."""
    upper = jnp.cumsum(children, axis=1)
    total = upper[:, -1]
    u = jax.random.uniform(key, total.shape) * total
    u = jnp.minimum(u, total * (1.0 - 1e-7))  # rounding must not carry u up to the total itself
    return jnp.sum(upper <= u[:, None], axis=1).astype(jnp.int32)
