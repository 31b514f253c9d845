"""One pass of a minibatch through the Q network: values, gradient norms and a weighted sum of gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from kmifqe.maths import mlp, pass_kernel
from kmifqe.maths.device import use_kernels
from kmifqe.maths.mlp import QParams


class MinibatchPass(NamedTuple):
    """What a step needs of a minibatch."""

    q: Float[Array, " batch"]
    norms: Float[Array, " batch"]  # ‖∇θQ‖²
    gradient: QParams  # Σᵢ cᵢ ∇θQ(xᵢ)


def minibatch_pass(
    params: QParams,
    x: Float[Array, "batch inputs"],
    offset: Float[Array, " batch"],
    slope: Float[Array, " batch"],
    precision: str,
) -> MinibatchPass:
    """Return values, norms and Σ c ∇θQ with c = offset + slope·q.

    The coefficients may depend on the values, as a TD error does, and are still known inside one pass: on a GPU
    with `precision` "mixed" the whole pass is one kernel (`pass_kernel`) and two matrix products. "float32":
    full precision on any device.
    """
    if use_kernels(precision) and pass_kernel.fits(x.shape, params.w2.shape[0]):
        return MinibatchPass(*pass_kernel.fused_pass(params, x, offset, slope))
    with jax.default_matmul_precision("highest"):
        p = jax.vmap(mlp.q_pass, in_axes=(None, 0))(params, x)
        gradient = mlp.weighted_gradient(p, offset + slope * p.q)
    return MinibatchPass(p.q, jax.vmap(mlp.gradient_norm_squared)(p), gradient)
