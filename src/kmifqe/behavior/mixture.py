"""The fitted behaviour density: a tanh-squashed mixture of Gaussians given the state."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, logsumexp, ndtr
from jaxtyping import Array, Float, Int
from safetensors.numpy import save

from kmifqe.behavior.support import Support
from kmifqe.errors import InputError, listed, shown
from kmifqe.io.archives import read_safetensors
from kmifqe.io.files import write_file

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
    """Return random weights whose components start spread over the log's own range, alike at every state.

    `rng` draws them; `state_dim`, `hidden`, `components` and `action_dim` are the network's sizes.
    """
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
    """Return the mixture of `network` at a standardised `state`; `mask` is 0, or −inf for padding components."""
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
    """Return each component's log-density per dimension, or its log-mass beyond the edge in a layer.

    mixture: the components at the state.
    z: the action in latent space.
    side: −1 or +1 where the action lies in the lower or upper boundary layer, else 0.
    edges: where the two layers begin in latent space.
    """
    inverse_std = jnp.exp(-mixture.log_std)
    density = -0.5 * ((z - mixture.mean) * inverse_std) ** 2 - mixture.log_std - HALF_LOG_2PI
    beyond = jnp.where(side < 0, edges[0] - mixture.mean, mixture.mean - edges[1])
    return jnp.where(side == 0, density, log_ndtr(beyond * inverse_std))


def mixture_log_prob(
    mixture: Components, z: Float[Array, " d"], side: Int[Array, " d"], edges: Float[Array, "2 d"]
) -> Float[Array, ""]:
    """Return log Σ_k w_k Π_j p_kj in latent space; the support's log-Jacobian makes it the action's.

    `mixture`, `z`, `side` and `edges` are as for `component_log_probs`.
    """
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
    `mixture`, `z`, `side` and `edges` are as for `component_log_probs`.
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
    """Return a draw from `mixture`: `uniform` in [0, 1) picks the component, `normal` the place in it."""
    k = jnp.searchsorted(jnp.cumsum(jnp.exp(mixture.log_weight[:-1])), uniform, side="right")
    return mixture.mean[k] + jnp.exp(mixture.log_std[k]) * normal


FORMAT = "kmifqe tanh mixture 1"
CHUNK = 8192  # rows at a time: 40 components × 17 dimensions × 4 bytes × 8192 is 22 MB an intermediate


@dataclass(frozen=True, eq=False)
class TanhMixture:
    """μ(a|s): K diagonal Gaussians in the pre-tanh space, their weights, means, spreads given by a network.

    Diagonal per component, so not a product over dimensions: weights made with it are clipped in total.
    """

    network: Network  # the last layer gives K × (1 + 2d) numbers
    support: Support
    state_mean: np.ndarray  # (q,)
    state_std: np.ndarray  # (q,)
    name: str = "fitted behaviour"

    @property
    def state_dim(self) -> int:
        """q, the width of a state."""
        return len(self.state_mean)

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return len(self.support.low)

    @property
    def components(self) -> int:
        """K, the number of Gaussians."""
        return int(self.network[-1][1].shape[0]) // (1 + 2 * self.action_dim)

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,), float64, finite for every finite input."""
        states, actions = self._checked(states, actions)
        out = np.empty(len(states))
        for rows, x, z, side, log_jacobian in self._chunks(states, actions):
            latent = _log_probs(self.network, self.support.edges, x, z, side)
            out[rows] = np.asarray(latent, np.float64)[: len(log_jacobian)] + log_jacobian.sum(axis=1)
        return out

    def pit(self, states: np.ndarray, actions: np.ndarray, seed: int = 0) -> np.ndarray:
        """Return F(a_j | a_1..a_{j−1}, s), shape (n, d): uniform on [0, 1] if the density is right.

        Within a boundary layer the place is random; `seed` fixes it.
        """
        states, actions = self._checked(states, actions)
        rng = np.random.default_rng(seed)
        out = np.empty(actions.shape)
        for rows, x, z, side, log_jacobian in self._chunks(states, actions):
            uniform = rng.random(z.shape, np.float32)
            cdf = _conditional_cdfs(self.network, self.support.edges, x, z, side, uniform)
            out[rows] = np.asarray(cdf)[: len(log_jacobian)]
        return out

    def sample(self, rng: np.random.Generator, states: np.ndarray) -> np.ndarray:
        """Return one action drawn for each state, shape (n, d), float32."""
        states = self._checked_states(states)
        out = np.empty((len(states), self.action_dim), np.float32)
        for start in range(0, len(states), CHUNK):
            rows = slice(start, start + CHUNK)
            x = self._standardised(states[rows])
            uniform = _padded(rng.random(len(x), np.float32))
            normal = _padded(rng.standard_normal((len(x), self.action_dim), np.float32))
            z = np.asarray(_samples(self.network, _padded(x), uniform, normal))[: len(x)]
            out[rows] = self.support.to_actions(z, rng.random(z.shape))
        return out

    def save(self, path: str | Path) -> None:
        """Write as safetensors; the file appears whole or not at all."""
        tensors = {"state_mean": self.state_mean, "state_std": self.state_std}
        for field in ("low", "high", "centre", "scale"):
            tensors[field] = getattr(self.support, field)
        for i, (weight, bias) in enumerate(self.network):
            tensors[f"w{i}"], tensors[f"b{i}"] = np.asarray(weight), np.asarray(bias)
        arrays = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
        metadata = {"format": FORMAT, "layer": json.dumps(self.support.layer)}
        write_file(Path(path), save(arrays, metadata=metadata))

    @staticmethod
    def load(path: str | Path) -> TanhMixture:
        """Read what `save` wrote."""
        fields, settings = read_safetensors(path)
        if settings.get("format") != FORMAT:
            raise InputError(
                f"{path}: not a fitted behaviour; expected format {FORMAT!r} in the metadata, found "
                f"{shown(settings.get('format', 'none'))!r} (a policy goes into gaussian:POLICY:STD)"
            )
        return _from_fields(fields, settings, str(path))

    def _chunks(
        self, states: np.ndarray, actions: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield row slices with padded states, latent actions and sides, and the log-Jacobian unpadded."""
        for start in range(0, len(states), CHUNK):
            rows = slice(start, start + CHUNK)
            latent = self.support.to_latent(actions[rows])
            x = self._standardised(states[rows])
            yield rows, _padded(x), _padded(latent.z), _padded(latent.side), latent.log_jacobian

    def _standardised(self, states: np.ndarray) -> np.ndarray:
        return ((np.asarray(states, np.float32) - self.state_mean) / self.state_std).astype(np.float32)

    def _checked_states(self, states: np.ndarray) -> np.ndarray:
        states = np.asarray(states)
        if states.ndim != 2 or states.shape[1] != self.state_dim:
            raise InputError(f"{self.name}: states have shape {states.shape}; expected (n, {self.state_dim})")
        return states

    def _checked(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        states, actions = self._checked_states(states), np.asarray(actions)
        expected = (len(states), self.action_dim)
        if actions.shape != expected:
            raise InputError(f"{self.name}: actions have shape {actions.shape}; expected {expected}")
        return states, actions

    def __repr__(self) -> str:
        return (
            f"TanhMixture({self.name}: {self.components} components, states {self.state_dim}, "
            f"actions {self.action_dim})"
        )


def _padded(array: np.ndarray) -> np.ndarray:
    """Return `array` with zero rows up to the next power of two: few shapes, few compilations."""
    size = 1 << max(0, len(array) - 1).bit_length()
    return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), array.dtype)])


def _mixtures(network: Network, dims: int, states: jax.Array) -> Components:
    mask = jnp.zeros(network[-1][1].shape[0] // (1 + 2 * dims))
    return jax.vmap(partial(components_at, network, mask))(states)


@jax.jit
def _log_probs(
    network: Network, edges: jax.Array, states: jax.Array, z: jax.Array, side: jax.Array
) -> jax.Array:
    mixtures = _mixtures(network, z.shape[1], states)
    return jax.vmap(mixture_log_prob, (0, 0, 0, None))(mixtures, z, side, edges)


@jax.jit
def _conditional_cdfs(
    network: Network, edges: jax.Array, states: jax.Array, z: jax.Array, side: jax.Array, uniform: jax.Array
) -> jax.Array:
    mixtures = _mixtures(network, z.shape[1], states)
    return jax.vmap(conditional_cdf, (0, 0, 0, None, 0))(mixtures, z, side, edges, uniform)


@jax.jit
def _samples(network: Network, states: jax.Array, uniform: jax.Array, normal: jax.Array) -> jax.Array:
    return jax.vmap(sample_latent)(_mixtures(network, normal.shape[1], states), uniform, normal)


def _from_fields(fields: dict[str, np.ndarray], settings: dict[str, str], name: str) -> TanhMixture:
    layers = sum(key.startswith("w") for key in fields)  # no other field's name begins so
    wanted = ["state_mean", "state_std", "low", "high", "centre", "scale"]
    wanted += [f"{kind}{i}" for i in range(max(layers, 1)) for kind in "wb"]
    for field in wanted:
        if field not in fields:
            raise InputError(f"{name}: field {field} is missing; found {listed(fields)}")
        if fields[field].dtype.kind != "f" or not np.isfinite(fields[field]).all():
            found = "NaN or infinity" if fields[field].dtype.kind == "f" else f"type {fields[field].dtype}"
            raise InputError(f"{name}: {field} holds {found}; expected floating-point numbers")
    try:
        layer = float(settings["layer"])
    except (KeyError, ValueError) as error:
        raise InputError(f"{name}: layer is missing or no number in the metadata") from error
    dims, width = fields["low"].size, fields["state_mean"].size
    for field in wanted[:6]:
        expected = width if field.startswith("state") else dims
        if fields[field].shape != (expected,) or expected == 0:
            shape = fields[field].shape
            raise InputError(f"{name}: {field} has shape {shape}; expected ({expected or 'some'},)")
    if not (fields["low"] < fields["high"]).all():
        raise InputError(f"{name}: low is not below high in every action dimension")
    if not ((fields["scale"] > 0).all() and (fields["state_std"] > 0).all() and 0 < layer < 1):
        raise InputError(f"{name}: scale, state_std or layer is not positive; expected a density of a fit")
    for i in range(layers):
        weight, bias = fields[f"w{i}"], fields[f"b{i}"]
        if weight.ndim != 2 or weight.shape[0] != width or bias.shape != weight.shape[1:]:
            raise InputError(
                f"{name}: w{i} has shape {weight.shape} and b{i} {bias.shape}; expected ({width}, outputs) "
                "and (outputs,)"
            )
        width = weight.shape[1]
    if width == 0 or width % (1 + 2 * dims):
        raise InputError(f"{name}: the last layer has {width} outputs; expected a multiple of {1 + 2 * dims}")
    return TanhMixture(
        network=tuple((jnp.asarray(fields[f"w{i}"]), jnp.asarray(fields[f"b{i}"])) for i in range(layers)),
        support=Support(fields["low"], fields["high"], fields["centre"], fields["scale"], layer),
        state_mean=fields["state_mean"],
        state_std=fields["state_std"],
        name=name,
    )
