"""Rows drawn by their weights: importance resampling, and exact draws at a cost that does not grow with the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kmifqe.maths.kernel import log_clipped_weight


def uniforms(random_bits: Int[Array, ...]) -> Float[Array, ...]:
    """Return numbers uniform in [0, 1) from random 32-bit integers."""
    return (random_bits >> 8).astype(jnp.float32) * 2.0**-24


def row_numbers(random_bits: Int[Array, " size"], n: int) -> Int[Array, " size"]:
    """Return whole numbers uniform in 0 … n − 1 from random 32-bit integers: the upper half of the product with n.

    In halves of 16 bits, since there are no 64-bit numbers; float32 could not name every row of a long log.
    """
    upper, lower = random_bits >> 16, random_bits & 0xFFFF
    middle = upper * (n & 0xFFFF) + ((lower * (n & 0xFFFF)) >> 16)
    carried = (middle & 0xFFFF) + lower * (n >> 16)
    return (upper * (n >> 16) + (middle >> 16) + (carried >> 16)).astype(jnp.int32)


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


def _padded(values: Float[Array, " n"]) -> Float[Array, "rows fanout"]:
    n = values.shape[0]
    rows = -(-n // FANOUT)
    return jnp.pad(values, (0, rows * FANOUT - n)).reshape(rows, FANOUT)


def _child(u: Float[Array, " size"], upper: Float[Array, "size fanout"]) -> Int[Array, " size"]:
    """Return the child that each draw goes to, in proportion to its weight; one of weight 0 is never chosen."""
    total = upper[:, -1]
    u = jnp.minimum(u * total, total * (1.0 - 1e-7))  # rounding must not carry u up to the total itself
    return jnp.sum(upper <= u[:, None], axis=1).astype(jnp.int32)


PIECES = 8  # of the interval, where a weight is a product: bounding factor by factor is loose on a long one
LARGEST_LOG = 30.0  # of a mean weight: e³⁰ squared, in Adam, is far from float32's end


class Interval(NamedTuple):
    """Bandwidths for which a bound holds."""

    low: Float[Array, ""]
    high: Float[Array, ""]


class Envelope(NamedTuple):
    """Bounds of all rows' weights, ready to draw from."""

    sums: PartialSums  # of bound/scale
    interval: Interval
    log_scale: Float[Array, ""]  # the largest log bound: weights of any size fit float32
    mean: Float[Array, ""]  # of bound/scale over the rows


class Accepted(NamedTuple):
    """Rows drawn from ρᴷ, as many as were accepted, and what the proposals say about all weights."""

    rows: Int[Array, " size"]
    filled: Bool[Array, " size"]  # False: too few proposals were accepted to fill this place
    mean_weight: Float[Array, ""]  # unbiased for the mean over all rows
    mean_square: Float[Array, ""]  # unbiased for the mean square


def log_bound(
    squared: Float[Array, " k"],
    interval: Interval,
    log_mu: Float[Array, " k"],
    action_dim: int,
    clip: tuple[float, float],
) -> Float[Array, ""]:
    """Return the logarithm of a number that `clipped_weight` does not exceed for any h of the `interval`.

    −‖z‖²/2h² − dims·log h has its maximum over h at h² = ‖z‖²/dims, or at the nearer end of the interval. Where
    the weight is a product of clipped factors, the interval is cut into pieces and the largest bound is used.
    `squared`, `log_mu`, `action_dim` and `clip` are those of `log_clipped_weight`.
    """
    k = squared.shape[0]
    dims = action_dim // k
    pieces = 1 if k == 1 else min(PIECES, k + 1)
    steps = jnp.linspace(0.0, 1.0, pieces + 1)
    edges = interval.low * (interval.high / interval.low) ** steps
    low, high = edges[:-1, None], edges[1:, None]
    peak = jnp.sqrt(jnp.clip(squared / dims, low**2, high**2))  # (pieces, k)
    bound = jax.vmap(lambda h: log_clipped_weight(squared, h, log_mu, action_dim, clip))(peak)
    return jnp.max(bound)


def build_envelope(
    squared: Float[Array, "n k"],
    interval: Interval,
    log_mu: Float[Array, "n k"],
    action_dim: int,
    clip: tuple[float, float],
    multiples: Float[Array, " n"] | None = None,
) -> Envelope:
    """Return the envelope of the weights of n rows over an `interval` of bandwidths: one pass over the rows.

    `squared`, `log_mu`, `action_dim` and `clip` are those of `log_clipped_weight`, a row for each row of the log.
    `multiples` say how often each row counts, by default once: a row is then drawn in proportion to its multiple
    times its weight, and the means that `draw_accepted` estimates are over rows counted so.
    """
    bounds = jax.vmap(lambda s, m: log_bound(s, interval, m, action_dim, clip))(squared, log_mu)
    if multiples is not None:
        bounds = bounds + jnp.log(multiples)
    scale = jnp.max(bounds)
    relative = jnp.exp(bounds - scale)
    return Envelope(partial_sums(relative), interval, scale, jnp.mean(relative))


def draw_accepted(
    uniforms: Float[Array, "levels+1 proposals"],
    envelope: Envelope,
    h: Float[Array, ""],
    distance_and_density: Callable[[Array], tuple[Array, Array]],
    action_dim: int,
    clip: tuple[float, float],
    size: int,
) -> Accepted:
    """Return `size` independent draws from ρᴷ at bandwidth `h`, which must lie in the interval of the `envelope`.

    `uniforms` are numbers in [0, 1), a column for each proposal: one number for each level of the tree, and a last
    one to accept by. The number of proposals is fixed, so nothing waits on it. Which rows were accepted does not
    depend on how many were, so a short minibatch is as exact as a full one. `distance_and_density` gives `squared`
    and `log_mu` of rows, as the envelope was built from; `action_dim` and `clip` are those of `log_clipped_weight`.
    """
    proposed = draw(uniforms[:-1], envelope.sums)
    s, m = distance_and_density(proposed)
    log_w = jax.vmap(lambda s, m: log_clipped_weight(s, h, m, action_dim, clip))(s, m)
    bounds = jax.vmap(lambda s, m: log_bound(s, envelope.interval, m, action_dim, clip))(s, m)
    ratio = jnp.exp(log_w - bounds)
    accepted = uniforms[-1] < ratio
    place = jnp.where(accepted, jnp.cumsum(accepted) - 1, size)
    rows = jnp.zeros(size, jnp.int32).at[place].set(proposed, mode="drop")
    # Unclipped over a density near 0 weights overflow: capped, as one, they keep their ratios.
    excess = jnp.maximum(envelope.log_scale - LARGEST_LOG, 0.0)
    scale = jnp.exp(envelope.log_scale - excess) * envelope.mean
    return Accepted(
        rows=rows,
        filled=jnp.arange(size) < jnp.sum(accepted),
        mean_weight=scale * jnp.mean(ratio),
        mean_square=scale * jnp.mean(ratio * jnp.exp(log_w - excess)),
    )
