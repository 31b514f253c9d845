"""The conditional mixture at one state, as pure functions: network -> components -> density, CDF, draws."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, logsumexp, ndtr
from jaxtyping import Array, Float, Int

MIN_LOG_STD, MAX_LOG_STD = -6.0, 3.0  # in units of the log's own spread: no spike narrower than 1/400 of it
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

Network = tuple[
    tuple[Array, Array], ...
]  # (weight, bias) pairs; the last gives components × (1 + 2d) numbers


class Components(NamedTuple):
    """The mixture at one state, in latent space."""

    log_weight: Float[Array, " k"]
    mean: Float[Array, "k d"]
    log_std: Float[Array, "k d"]


def init_network(
    rng: np.random.Generator, state_dim: int, hidden: tuple[int, ...], components: int, action_dim: int
) -> Network:
    """Return random weights whose components start spread over the log's own range, alike at every state."""
    layers = []
    inputs = state_dim
    for width in hidden:
        layers.append((rng.normal(size=(inputs, width)) * math.sqrt(2.0 / inputs), np.zeros(width)))
        inputs = width
    head = 0.1 * rng.normal(size=(inputs, components * (1 + 2 * action_dim))) / math.sqrt(inputs)
    bias = np.zeros((components, 1 + 2 * action_dim))
    bias[:, 1 : 1 + action_dim] = rng.normal(size=(components, action_dim))
    bias[:, 1 + action_dim :] = -0.5
    layers.append((head, bias.reshape(-1)))
    return tuple((jnp.asarray(w, jnp.float32), jnp.asarray(b, jnp.float32)) for w, b in layers)


def components_at(network: Network, mask: Float[Array, " k"], state: Float[Array, " q"]) -> Components:
    """Return the mixture at a standardised state; `mask` is 0 for a component in use and −inf for padding."""
    x = state
    for weight, bias in network[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = network[-1]
    out = (x @ weight + bias).reshape(len(mask), -1)
    dims = (out.shape[1] - 1) // 2
    return Components(
        jax.nn.log_softmax(out[:, 0] + mask), out[:, 1 : 1 + dims], _bounded_log_std(out[:, 1 + dims :])
    )


def _bounded_log_std(raw: Float[Array, "k d"]) -> Float[Array, "k d"]:
    """Return log-stds within the bounds: a sigmoid through (0, 0) with slope 1; gradients never die."""
    span = MAX_LOG_STD - MIN_LOG_STD
    slope = span / (-MIN_LOG_STD * MAX_LOG_STD)
    return MIN_LOG_STD + span * jax.nn.sigmoid(slope * raw + math.log(-MIN_LOG_STD / MAX_LOG_STD))


def component_log_probs(
    mixture: Components, z: Float[Array, " d"], side: Int[Array, " d"], edges: Float[Array, "2 d"]
) -> Float[Array, "k d"]:
    """Return each component's log-density per dimension, or its log-mass beyond the edge in a layer."""
    inverse_std = jnp.exp(-mixture.log_std)
    density = -0.5 * ((z - mixture.mean) * inverse_std) ** 2 - mixture.log_std - HALF_LOG_2PI
    beyond = jnp.where(side < 0, edges[0] - mixture.mean, mixture.mean - edges[1])
    return jnp.where(side == 0, density, log_ndtr(beyond * inverse_std))


def mixture_log_prob(
    mixture: Components, z: Float[Array, " d"], side: Int[Array, " d"], edges: Float[Array, "2 d"]
) -> Float[Array, ""]:
    """Return log Σ_k w_k Π_j p_kj in latent space; the support's log-Jacobian makes it the action's."""
    return logsumexp(mixture.log_weight + component_log_probs(mixture, z, side, edges).sum(axis=1))


def conditional_cdf(
    mixture: Components,
    z: Float[Array, " d"],
    side: Int[Array, " d"],
    edges: Float[Array, "2 d"],
    uniform: Float[Array, " d"],
) -> Float[Array, " d"]:
    """Return F(a_j | a_1..a_{j−1}, s) for each j (Rosenblatt): iid uniform if the density is right.

    An action in a boundary layer is known only to be there: `uniform` places it within that cell's mass.
    """
    before = jnp.cumsum(component_log_probs(mixture, z, side, edges), axis=1)
    before = jnp.concatenate([jnp.zeros_like(before[:, :1]), before[:, :-1]], axis=1)
    weight = jax.nn.softmax(mixture.log_weight[:, None] + before, axis=0)
    inverse_std = jnp.exp(-mixture.log_std)
    cdf = ndtr((z - mixture.mean) * inverse_std)
    lower = uniform * ndtr((edges[0] - mixture.mean) * inverse_std)
    upper = 1.0 - (1.0 - uniform) * ndtr((mixture.mean - edges[1]) * inverse_std)
    return (weight * jnp.where(side == 0, cdf, jnp.where(side < 0, lower, upper))).sum(axis=0)


def sample_latent(
    mixture: Components, uniform: Float[Array, ""], normal: Float[Array, " d"]
) -> Float[Array, " d"]:
    """Return one draw in latent space: `uniform` in [0, 1) picks the component, `normal` the place in it."""
    k = jnp.searchsorted(jnp.cumsum(jnp.exp(mixture.log_weight[:-1])), uniform, side="right")
    return mixture.mean[k] + jnp.exp(mixture.log_std[k]) * normal
