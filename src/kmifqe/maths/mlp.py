"""The Q network: two tanh layers, with its action Hessian and gradient norms written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class QParams(NamedTuple):
    """Q(s, a) = w3 · tanh(w2ᵀ tanh(w1ᵀ[s, a] + b1) + b2) + b3."""

    w1: Float[Array, "inputs hidden"]
    b1: Float[Array, " hidden"]
    w2: Float[Array, "hidden hidden"]
    b2: Float[Array, " hidden"]
    w3: Float[Array, " hidden"]
    b3: Float[Array, ""]


class Pass(NamedTuple):
    """What one forward and backward pass leaves behind: enough for every gradient, norm and Hessian."""

    x: Float[Array, " inputs"]  # [s, a]
    u1: Float[Array, " hidden"]  # activations
    u2: Float[Array, " hidden"]
    d1: Float[Array, " hidden"]  # ∂q/∂(pre-activation)
    d2: Float[Array, " hidden"]
    q: Float[Array, ""]


def init_q(key: Array, inputs: int, hidden: int) -> QParams:
    """Return parameters drawn with `key`, uniform in ±1/√fan_in, PyTorch's default and so the authors'.

    `inputs` is the width of [s, a], `hidden` that of both hidden layers.
    """
    (w1, b1), (w2, b2), (w3, b3) = init_layers(key, (inputs, hidden, hidden, 1))
    return QParams(w1, b1, w2, b2, w3[:, 0], b3[0])


def q_value(params: QParams, x: Float[Array, " inputs"]) -> Float[Array, ""]:
    """Return Q at x = [s, a]."""
    u1 = jnp.tanh(x @ params.w1 + params.b1)
    u2 = jnp.tanh(u1 @ params.w2 + params.b2)
    return u2 @ params.w3 + params.b3


def q_pass(params: QParams, x: Float[Array, " inputs"]) -> Pass:
    """Return the forward pass and the deltas of ∂q at x = [s, a]."""
    u1 = jnp.tanh(x @ params.w1 + params.b1)
    u2 = jnp.tanh(u1 @ params.w2 + params.b2)
    d2 = params.w3 * (1.0 - u2**2)
    d1 = (params.w2 @ d2) * (1.0 - u1**2)
    return Pass(x, u1, u2, d1, d2, u2 @ params.w3 + params.b3)


def gradient_norm_squared(p: Pass) -> Float[Array, ""]:
    """Return ‖∇θQ‖² of one sample, from activations and deltas: ‖δ‖²(‖x‖² + 1) summed over the layers."""
    return (
        jnp.sum(p.d1**2) * (jnp.sum(p.x**2) + 1.0)
        + jnp.sum(p.d2**2) * (jnp.sum(p.u1**2) + 1.0)
        + jnp.sum(p.u2**2)
        + 1.0
    )


def weighted_gradient(p: Pass, c: Float[Array, " batch"]) -> QParams:
    """Return Σᵢ cᵢ ∇θQ(xᵢ) over a batched `Pass`; no per-sample gradient is formed."""
    cd1, cd2 = c[:, None] * p.d1, c[:, None] * p.d2
    return QParams(p.x.T @ cd1, cd1.sum(0), p.u1.T @ cd2, cd2.sum(0), c @ p.u2, c.sum())


def action_hessian(params: QParams, x: Float[Array, " inputs"], action_dim: int) -> Float[Array, "d d"]:
    """Return ∇²ₐQ of the network `params` at `x` = [s, a], whose last `action_dim` entries are the action.

    With Wₐ the rows of w1 that the action enters, J₁ = diag(1−u₁²)Wₐᵀ and J₂ = w2ᵀJ₁:
    ∇²ₐQ = J₂ᵀ diag(−2u₂δ₂) J₂ + Wₐ diag(−2u₁δ₁) Wₐᵀ.
    """
    p = q_pass(params, x)
    w_action = params.w1[-action_dim:]
    J2 = (w_action * (1.0 - p.u1**2)) @ params.w2
    return (J2 * (-2.0 * p.u2 * p.d2)) @ J2.T + (w_action * (-2.0 * p.u1 * p.d1)) @ w_action.T


Layers = list[tuple[Array, Array]]


def init_layers(key: Array, sizes: tuple[int, ...]) -> Layers:
    """Return weights (inputs × outputs) and biases of a plain network, uniform in ±1/√fan_in."""
    layers = []
    for layer_key, inputs, outputs in zip(jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:]):
        w_key, b_key = jax.random.split(layer_key)
        bound = inputs**-0.5
        w = jax.random.uniform(w_key, (inputs, outputs), minval=-bound, maxval=bound)
        layers.append((w, jax.random.uniform(b_key, (outputs,), minval=-bound, maxval=bound)))
    return layers


def apply_layers(
    layers: Layers, x: Float[Array, " inputs"], hidden: Callable[[Array], Array] = jax.nn.relu
) -> Float[Array, " outputs"]:
    """Return the output of the network `layers` at `x`, with `hidden`, by default ReLU, between two layers."""
    for w, b in layers[:-1]:
        x = hidden(x @ w + b)
    w, b = layers[-1]
    return x @ w + b
