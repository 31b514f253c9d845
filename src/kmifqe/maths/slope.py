"""SLOPE: which of several estimates to believe, from their standard errors alone."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def slope_choice(
    estimates: Float[Array, " g"], standard_errors: Float[Array, " g"], admissible: Bool[Array, " g"]
) -> Int[Array, ""]:
    """Return the last estimate whose interval still meets those of all before it.

    Su, Srinath and Krishnamurthy (2020), Section 3: `estimates` are ordered from the least biased, which varies
    most, to the most biased; the intervals are estimate ± 2·width, where the width is that of `standard_errors`. Bias
    shows when an interval leaves those of the less biased estimates. Only `admissible` estimates take part; where
    there are none the last one is chosen. A standard error that is smaller than a later one is raised to it, because
    an estimate from too few samples does not see how much it varies.
    """
    seen = jnp.where(admissible, standard_errors, 0.0)
    widths = jnp.flip(jnp.maximum.accumulate(jnp.flip(seen)))
    low = jnp.where(admissible, estimates - 2.0 * widths, -jnp.inf)
    high = jnp.where(admissible, estimates + 2.0 * widths, jnp.inf)
    meets = jnp.maximum.accumulate(low) <= jnp.minimum.accumulate(high)
    numbers = jnp.arange(len(estimates))
    chosen = jnp.max(jnp.where(meets & admissible, numbers, -1))
    return jnp.where(chosen < 0, len(estimates) - 1, chosen)
