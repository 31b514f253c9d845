"""The bandwidth that balances bias and variance of the TD update vector."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def kernel_roughness(d: int) -> float:
    """Return C(K) = ∫K(z)² dz = (4π)^(−d/2), Theorem 1."""
    return float((4.0 * jnp.pi) ** (-0.5 * d))


def variance_term(
    td_error: Float[Array, ""],
    gradient_norm_squared: Float[Array, ""],
    mu_target: Float[Array, ""],
    d: int,
) -> Float[Array, ""]:
    """Return one sample's share of v = C(K) E[δ² ‖∇θQ‖² / μ(π̃(s')|s')], Theorem 1.

    δ is the TD error with the target action, r + γQ̄(s', π̃(s')) − Q(s, a).
    """
    return kernel_roughness(d) * td_error**2 * gradient_norm_squared / mu_target


def optimal_bandwidth(
    v: Float[Array, ""], b_squared: Float[Array, ""], n: int | Float[Array, ""], d: int
) -> Float[Array, ""]:
    """Return h* = (v d / (4 n ‖b‖²))^(1/(d+4)), Proposition 1.

    In logarithms, so that v and ‖b‖² may be of any size; b → 0 gives +inf and v → 0 gives 0: callers bound h.
    """
    log_ratio = jnp.log(v) - jnp.log(b_squared) + jnp.log(d / 4.0) - jnp.log(jnp.asarray(n, jnp.float32))
    return jnp.exp(log_ratio / (d + 4))


def leading_order_mse(
    h: Float[Array, ""], v: Float[Array, ""], b_squared: Float[Array, ""], n: int, d: int
) -> Float[Array, ""]:
    """Return LOMSE(h, n, d) = h⁴‖b‖² + v/(n hᵈ), Corollary 1."""
    return h**4 * b_squared + v / (n * h**d)
