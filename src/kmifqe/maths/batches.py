"""Minibatches and whole logs through the Q network: values, gradients, action Hessians."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.maths import mlp
from kmifqe.maths.fused import metric_kernel, pass_kernel, use_kernels
from kmifqe.maths.metric import JACOBI_MAX_DIM, metric_root
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
    """Return values, norms and Σ c ∇θQ of a minibatch, with coefficients c = `offset` + `slope`·q.

    The coefficients may depend on the values, as a TD error does, and are still known inside one pass: on a GPU
    with `precision` "mixed" the whole pass is one kernel (`pass_kernel`) and two matrix products. "float32" is
    full precision on any device. `params` is the network, `x` has a row [s, a] for each sample.
    """
    if use_kernels(precision) and pass_kernel.fits(x.shape, params.w2.shape[0]):
        return MinibatchPass(*pass_kernel.fused_pass(params, x, offset, slope))
    with jax.default_matmul_precision("highest"):
        p = jax.vmap(mlp.q_pass, in_axes=(None, 0))(params, x)
        gradient = mlp.weighted_gradient(p, offset + slope * p.q)
    return MinibatchPass(p.q, jax.vmap(mlp.gradient_norm_squared)(p), gradient)


def state_part(params: QParams, states: Float[Array, "n q"], precision: str) -> Float[Array, "n hidden"]:
    """Return what `states` alone give the first layer of `params`: all actions at a state share it.

    `precision` is "mixed" or "float32", as of `minibatch_pass`.
    """
    return _matmul(states, params.w1[: states.shape[1]], precision) + params.b1


def values(
    params: QParams, from_states: Float[Array, "n hidden"], actions: Float[Array, "n d"], precision: str
) -> Float[Array, " n"]:
    """Return Q of the network `params` at states and `actions`.

    `from_states` is the `state_part` of the states, `precision` as of `minibatch_pass`.
    """
    w_action = params.w1[-actions.shape[1] :]
    u1 = jnp.tanh(from_states + _matmul(actions, w_action, precision))
    u2 = jnp.tanh(_matmul(u1, params.w2, precision) + params.b2)
    return u2 @ params.w3 + params.b3


def values_and_hessians(
    params: QParams, from_states: Float[Array, "n hidden"], actions: Float[Array, "n d"], precision: str
) -> tuple[Float[Array, " n"], Float[Array, "n d d"]]:
    """Return Q and ∇²ₐQ of `params` at `from_states` and `actions`, which are those of `values`.

    The formula is that of `mlp.action_hessian`, with the rows in the matrix products. The last layer is scaled to 1
    first, so that "mixed" `precision` has the range it needs whatever Q's own scale.
    """
    d = actions.shape[1]
    w_action = params.w1[-d:]
    scale = jnp.maximum(jnp.max(jnp.abs(params.w3)), 1e-30)
    w3 = params.w3 / scale
    u1 = jnp.tanh(from_states + _matmul(actions, w_action, precision))
    u2 = jnp.tanh(_matmul(u1, params.w2, precision) + params.b2)
    d2 = w3 * (1.0 - u2**2)
    d1 = _matmul(d2, params.w2.T, precision) * (1.0 - u1**2)
    c1, c2 = -2.0 * u1 * d1, -2.0 * u2 * d2
    J2 = _matmul((1.0 - u1**2)[:, None, :] * w_action, params.w2, precision)  # n d hidden
    pairs = w_action[:, None, :] * w_action[None, :, :]
    H = _matmul(c1, pairs.reshape(d * d, -1).T, precision).reshape(-1, d, d)
    return u2 @ params.w3 + params.b3, scale * (H + _weighted_outer(J2, c2, precision))


def taylor_terms(
    params: QParams,
    from_states: Float[Array, "n hidden"],
    actions: Float[Array, "n d"],
    directions: Float[Array, "n d"],
    precision: str,
) -> Float[Array, " n"]:
    """Return ∇ₐQᵀδ + ½ δᵀ∇²ₐQ δ: the change of Q between `actions` and `actions` + δ up to second order.

    Two derivatives along one direction δ, a row of `directions`, cost less than a Hessian. `params`, `from_states`
    and `precision` are those of `values`.
    """
    w_action = params.w1[-actions.shape[1] :]
    u1 = jnp.tanh(from_states + _matmul(actions, w_action, precision))
    u2 = jnp.tanh(_matmul(u1, params.w2, precision) + params.b2)
    slope = _matmul(directions, w_action, precision)
    first = (1.0 - u1**2) * slope
    first2, second2 = (_matmul(x, params.w2, precision) for x in (first, -2.0 * u1 * first * slope))
    return ((1.0 - u2**2) * (first2 + 0.5 * second2 - u2 * first2**2)) @ params.w3


def metric_distances(
    H: Float[Array, "n d d"], z: Float[Array, "n d"], floor: float, precision: str
) -> Float[Array, "n d"]:
    """Return Lᵀz for every row of `z`, L the symmetric root of the metric that the Hessian in `H` gives.

    Prop. 3; `floor` is that of `metric_root`, `precision` as of `minibatch_pass`.
    """
    d = z.shape[1]
    if d > JACOBI_MAX_DIM and use_kernels(precision) and metric_kernel.fits(d, floor):
        return metric_kernel.rooted(H, z, floor)
    return jax.vmap(lambda H, z: metric_root(H, floor) @ z)(H, z)


def _weighted_outer(
    J: Float[Array, "n d hidden"], c: Float[Array, "n hidden"], precision: str
) -> Float[Array, "n d d"]:
    """Return J diag(c) Jᵀ of every row; for small d entry by entry, since tiny matrix products idle the device."""
    d = J.shape[1]
    if d > JACOBI_MAX_DIM:
        return jax.vmap(lambda J, c: _matmul(J * c, J.T, precision))(J, c)
    entries = {(i, j): jnp.sum(J[:, i] * J[:, j] * c, axis=1) for i in range(d) for j in range(i, d)}
    rows = [jnp.stack([entries[min(i, j), max(i, j)] for j in range(d)], axis=1) for i in range(d)]
    return jnp.stack(rows, axis=1)


def _matmul(a: Array, b: Array, precision: str) -> Array:
    """Return a @ b: with 10-bit mantissas and float32 sums where a GPU does "mixed" precision, else in float32."""
    if use_kernels(precision):
        product = jnp.matmul(a.astype(jnp.float16), b.astype(jnp.float16), preferred_element_type=jnp.float16)
        return product.astype(jnp.float32)
    return jnp.matmul(a, b, precision="highest")
