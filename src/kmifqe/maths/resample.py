"""Importance resampling: weights to row indices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

FANOUT = 32  # of a million rows four levels either way: half of what 64 reads

PartialSums = tuple[Float[Array, "nodes fanout"], ...]


def partial_sums(weights: Float[Array, " n"]) -> PartialSums:
    """Return a tree over the weights, leaves first: running sums inside nodes of FANOUT children."""
    levels = []
    while True:
        children = _padded(weights)
        levels.append(jnp.cumsum(children, axis=1))
        if children.shape[0] == 1:
            return tuple(levels)
        weights = jnp.sum(children, axis=1)


def draw(uniforms: Float[Array, "levels size"], sums: PartialSums) -> Int[Array, " size"]:
    """Return row indices drawn with replacement, row j with probability w_j / Σ w, from numbers in [0, 1).

    The draw walks down the tree with a fresh uniform number at every level, so it has full float32 resolution
    however many rows there are. (One float32 running sum over a million rows could not tell neighbours apart.)
    """
    node = jnp.zeros(uniforms.shape[1], jnp.int32)
    for level, u in zip(reversed(sums), uniforms, strict=True):
        node = node * FANOUT + _child(u, level[node])
    return node


def resample(key: Array, weights: Float[Array, " n"], size: int) -> Int[Array, " size"]:
    """Return `size` row indices drawn with replacement with probabilities ρ_j = w_j / Σ w.

    Eq. (importance resampling).
    """
    sums = partial_sums(weights)
    return draw(jax.random.uniform(key, (len(sums), size)), sums)


def _padded(values: Float[Array, " n"]) -> Float[Array, "rows fanout"]:
    n = values.shape[0]
    rows = -(-n // FANOUT)
    return jnp.pad(values, (0, rows * FANOUT - n)).reshape(rows, FANOUT)


def _child(u: Float[Array, " size"], upper: Float[Array, "size fanout"]) -> Int[Array, " size"]:
    """Return which child each draw takes, in proportion to its weight; one of weight 0 is never taken."""
    total = upper[:, -1]
    u = jnp.minimum(u * total, total * (1.0 - 1e-7))  # rounding must not carry u up to the total itself
    return jnp.sum(upper <= u[:, None], axis=1).astype(jnp.int32)
