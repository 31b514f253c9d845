"""Formulas of the paper that training does not evaluate, and tests hold it against."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float, Int

from kmifqe.maths.sampling import draw, partial_sums


def resample(key: Array, weights: Float[Array, " n"], size: int) -> Int[Array, " size"]:
    """Return `size` row indices drawn with replacement with probabilities ρ_j = w_j / Σ w.

    Eq. (importance resampling).
    """
    sums = partial_sums(weights)
    return draw(jax.random.uniform(key, (len(sums), size)), sums)


def leading_order_mse(
    h: Float[Array, ""], v: Float[Array, ""], b_squared: Float[Array, ""], n: int, d: int
) -> Float[Array, ""]:
    """Return LOMSE(h, n, d) = h⁴‖b‖² + v/(n hᵈ), Corollary 1."""
    return h**4 * b_squared + v / (n * h**d)
