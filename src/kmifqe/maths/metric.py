"""From the action Hessian of Q to the kernel metric that minimises the bias bound."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.maths.eigen import eigh

SMALLEST_HESSIAN = 1e-30  # below this no direction can be told from another: the identity
RELATIVE_FLOOR = 1e-6  # keeps A ≻ 0 in float32 when the floor is set to 0


def optimal_metric(H: Float[Array, "d d"], floor: float = 0.1) -> Float[Array, "d d"]:
    """Return A*(s'), positive definite with unit determinant.

    Prop. 3: A* ∝ U diag(d₊Λ₊, −d₋Λ₋) Uᵀ, from H = ∇²ₐQ(s', a')|π̃(s'). `floor`·max(M) is added to every entry
    of M, which bounds the condition number by 1 + 1/floor. H ≈ 0 gives the identity.
    """
    scales, U = _scales(H, floor)
    return (U * scales) @ U.T


def metric_root(H: Float[Array, "d d"], floor: float = 0.1) -> Float[Array, "d d"]:
    """Return the symmetric L with L Lᵀ = A*(s').

    Any root gives the same kernel. The symmetric one turns axis j into the direction nearest to axis j, so that
    a dimension-wise ratio divides kernel and behaviour along (nearly) the same direction; it is also continuous
    in H, whatever the order and signs of the eigenvectors.
    """
    scales, U = _scales(H, floor)
    return (U * jnp.sqrt(scales)) @ U.T


def _scales(H: Float[Array, "d d"], floor: float) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Return the eigenvalues of A* (product 1) and its eigenvectors."""
    size = jnp.max(jnp.abs(H))
    flat = ~(size > SMALLEST_HESSIAN)
    scaled = jnp.where(flat, jnp.zeros_like(H), H / jnp.where(flat, 1.0, size))
    eigenvalues, U = eigh(0.5 * (scaled + scaled.T))
    positive, negative = eigenvalues > 0, eigenvalues < 0
    M = jnp.where(positive, jnp.sum(positive), jnp.sum(negative)) * jnp.abs(eigenvalues)
    M = jnp.maximum(M + floor * jnp.max(M), RELATIVE_FLOOR * jnp.max(M))
    M = jnp.where(flat | ~(jnp.max(M) > 0), 1.0, M)
    return M * jnp.exp(-jnp.mean(jnp.log(M))), U
