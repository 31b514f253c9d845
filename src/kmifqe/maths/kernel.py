"""The Gaussian kernel that relaxes a deterministic policy, its importance weight and its best bandwidth."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

LOG_TWO_PI = 1.8378770664093453


def log_kernel(squared_norm: Float[Array, ""], h: Float[Array, ""] | float, dims: int) -> Float[Array, ""]:
    """Return log h^(−dims) K(z/h), the logarithm of the kernel around the target's action.

    Eq. (kernel relaxation) with the ½ that the proofs need: K(z) = (2π)^(−d/2) exp(−½ zᵀz). `squared_norm` is ‖z‖²,
    z = Lᵀ(a − π̃(s)), `h` the bandwidth, `dims` the number of dimensions of z.
    """
    return -0.5 * squared_norm / h**2 - dims * (jnp.log(h) + 0.5 * LOG_TWO_PI)


def log_clipped_weight(
    squared: Float[Array, " k"],
    h: Float[Array, ""] | Float[Array, " k"] | float,
    log_mu: Float[Array, " k"],
    action_dim: int,
    clip: tuple[float, float],
) -> Float[Array, ""]:
    """Return log wᴷ, wᴷ = h⁻ᵈ K(Lᵀ(a' − π̃(s'))/h) / μ(a'|s') as a product of k factors, each clipped to `clip`.

    k = 1: `squared` is ‖z‖² and the total weight is clipped. k = `action_dim`: `squared` is z², elementwise, and
    each dimension's ratio is clipped before the product. `h` is the bandwidth, for all factors or one each;
    `log_mu` is log μ(a'|s') by factor. In log space, so nothing overflows.
    """
    log_factors = log_kernel(squared, h, action_dim // squared.shape[0]) - log_mu
    low, high = clip
    log_low = math.log(low) if low > 0 else -math.inf
    log_high = math.log(high) if high < math.inf else math.inf
    return jnp.sum(jnp.clip(log_factors, log_low, log_high))


def clipped_weight(
    squared: Float[Array, " k"],
    h: Float[Array, ""] | float,
    log_mu: Float[Array, " k"],
    action_dim: int,
    clip: tuple[float, float],
) -> Float[Array, ""]:
    """Return wᴷ, the clipped importance weight.

    Its logarithm is `log_clipped_weight`, with the same `squared`, `h`, `log_mu`, `action_dim` and `clip`.
    """
    return jnp.exp(log_clipped_weight(squared, h, log_mu, action_dim, clip))


def effective_sample_size(w: Float[Array, " n"]) -> Float[Array, ""]:
    """Return (Σw)² / Σw², Kish's count of equally weighted rows that would be worth as much.

    Weights are scaled by their maximum first: squares of very small weights would vanish in float32.
    """
    scaled = w / jnp.maximum(jnp.max(w), 1e-30)
    return jnp.sum(scaled) ** 2 / jnp.maximum(jnp.sum(scaled**2), 1e-30)


def value_bias(
    bootstrap_bias: Float[Array, "*any"], gamma: float | Float[Array, ""], end_rate: float
) -> Float[Array, "*any"]:
    """Return the bias of V where every bootstrap value at a state that goes on is off by `bootstrap_bias`.

    It adds up over the steps that follow, Σ_{t≥1} (γ(1 − p))ᵗ: discounted by `gamma`, and cut off where an episode
    ends, which happens after a share p = `end_rate` of the steps.
    """
    continues = gamma * (1.0 - end_rate)
    return continues / (1.0 - continues) * bootstrap_bias


def kernel_roughness(d: int) -> float:
    """Return C(K) = ∫K(z)² dz = (4π)^(−d/2), Theorem 1."""
    return float((4.0 * jnp.pi) ** (-0.5 * d))


def variance_term(
    td_error: Float[Array, ""],
    gradient_norm_squared: Float[Array, ""],
    mu_target: Float[Array, ""],
    d: int,
) -> Float[Array, ""]:
    """Return one sample's share of v.

    Theorem 1: v = C(K) E[δ² ‖∇θQ‖² / μ(π̃(s')|s')]. `td_error` is δ with the target action,
    r + γQ̄(s', π̃(s')) − Q(s, a); `gradient_norm_squared` is ‖∇θQ‖², `mu_target` is μ(π̃(s')|s'), `d` the number of
    action dimensions.
    """
    return kernel_roughness(d) * td_error**2 * gradient_norm_squared / mu_target


def optimal_bandwidth(
    v: Float[Array, ""], b_squared: Float[Array, ""], n: int | Float[Array, ""], d: int
) -> Float[Array, ""]:
    """Return h*, the bandwidth of the least leading-order mean squared error.

    Proposition 1: h* = (`v` `d` / (4 `n` ‖b‖²))^(1/(d+4)), `b_squared` = ‖b‖². In logarithms, so that v and ‖b‖² may
    be of any size; b → 0 gives +inf and v → 0 gives 0: callers bound h.
    """
    log_ratio = jnp.log(v) - jnp.log(b_squared) + jnp.log(d / 4.0) - jnp.log(jnp.asarray(n, jnp.float32))
    return jnp.exp(log_ratio / (d + 4))
