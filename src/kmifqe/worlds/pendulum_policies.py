"""An actor that runs inside jax: the same forward pass as `kmifqe.policies.actor.Actor`, as a pytree."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor, load_safetensors_actor
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE

HIDDEN = {"tanh": jnp.tanh, "relu": jax.nn.relu}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class JaxActor:
    """An `Actor` whose arrays are leaves, so that a jitted function takes it as an argument."""

    weights: tuple[jax.Array, ...]
    biases: tuple[jax.Array, ...]
    low: jax.Array
    high: jax.Array
    obs_mean: jax.Array | None
    obs_var: jax.Array | None
    hidden: str = field(metadata={"static": True})
    output: str = field(metadata={"static": True})
    obs_eps: float = field(metadata={"static": True})
    obs_clip: float = field(metadata={"static": True})
    mean_clip: float | None = field(metadata={"static": True})

    def __call__(self, states: jax.Array) -> jax.Array:
        """Return the action for each row of `states`."""
        x = states
        if self.obs_mean is not None and self.obs_var is not None:
            scale = jnp.sqrt(self.obs_var + self.obs_eps)
            x = jnp.clip((x - self.obs_mean) / scale, -self.obs_clip, self.obs_clip)
        for w, b in zip(self.weights[:-1], self.biases[:-1]):
            x = HIDDEN[self.hidden](x @ w + b)
        x = x @ self.weights[-1] + self.biases[-1]
        if self.output == "clip":
            return jnp.clip(x, self.low, self.high)
        if self.mean_clip is not None:
            x = jnp.clip(x, -self.mean_clip, self.mean_clip)
        return self.low + 0.5 * (jnp.tanh(x) + 1.0) * (self.high - self.low)


def jax_actor(actor: Actor) -> JaxActor:
    """Return `actor` with its arrays on jax's default device."""

    def optional(array: object) -> jax.Array | None:
        return None if array is None else jnp.asarray(array)

    return JaxActor(
        weights=tuple(jnp.asarray(w) for w in actor.weights),
        biases=tuple(jnp.asarray(b) for b in actor.biases),
        low=jnp.asarray(actor.low),
        high=jnp.asarray(actor.high),
        obs_mean=optional(actor.obs_mean),
        obs_var=optional(actor.obs_var),
        hidden=actor.hidden,
        output=actor.output,
        obs_eps=actor.obs_eps,
        obs_clip=actor.obs_clip,
        mean_clip=actor.mean_clip,
    )


@dataclass(frozen=True)
class WithDummies:
    """A policy that takes `actor`'s action in the first dimension and 0 in each of `n_dummies` others."""

    actor: Actor
    n_dummies: int

    def __post_init__(self) -> None:
        _check_parts(self.actor, self.n_dummies)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`."""
        actions = self.actor(states)
        return np.concatenate([actions, np.zeros((len(actions), self.n_dummies), np.float32)], axis=1)

    @property
    def name(self) -> str:
        """The actor's name."""
        return self.actor.name

    @property
    def state_dim(self) -> int:
        """q, the width of a state."""
        return self.actor.state_dim

    @property
    def action_dim(self) -> int:
        """d, the width of an action with its dummies."""
        return 1 + self.n_dummies

    @property
    def low(self) -> np.ndarray:
        """The least action, shape (d,)."""
        return np.full(self.action_dim, -MAX_TORQUE, np.float32)

    @property
    def high(self) -> np.ndarray:
        """The greatest action, shape (d,)."""
        return np.full(self.action_dim, MAX_TORQUE, np.float32)


def with_dummies(actor: Actor, n_dummies: int) -> WithDummies:
    """Return the policy that plays `actor` and leaves the dummy actions at 0 (the paper's π̃)."""
    return WithDummies(actor, n_dummies)


def load_pendulum_actors() -> tuple[Actor, Actor]:
    """Return the shipped (target, behaviour mean), on one action (actors/README.md has their returns)."""
    target, behavior = (_load_shipped(name) for name in ("pendulum-target", "pendulum-behavior"))
    return target, behavior


def _load_shipped(name: str) -> Actor:
    with as_file(files("kmifqe.worlds") / "actors" / f"{name}.safetensors") as path:
        return load_safetensors_actor(path)


def _check_parts(actor: Actor, n_dummies: int) -> None:
    if (actor.state_dim, actor.action_dim) != (3, 1):
        raise InputError(
            f"{actor.name}: {actor.state_dim} inputs and {actor.action_dim} outputs; Pendulum needs 3 and 1"
        )
    if n_dummies < 0:
        raise InputError(f"n_dummies is {n_dummies}; expected 0 or more")


@dataclass(frozen=True)
class PendulumBehavior:
    """The paper's μ: (1 − share)·N(policy(s), (std·a_max)²) + share·U on the first action, U on each dummy.

    U is uniform on [−a_max, a_max]. Actions are logged as drawn: a Gaussian draw may lie outside the box (the
    environment clips it), so the density is exact.
    """

    policy: Actor
    n_dummies: int
    std: float = 0.5  # of the Gaussian, in units of a_max (the paper's)
    uniform_share: float = 0.2  # in [0, 1] (the paper's)

    def __post_init__(self) -> None:
        _check_parts(self.policy, self.n_dummies)
        if not 0.0 < self.std < math.inf:
            raise InputError(f"std is {self.std}; expected a positive number, in units of a_max")
        if not 0.0 <= self.uniform_share <= 1.0:
            raise InputError(f"uniform_share is {self.uniform_share}; expected a share between 0 and 1")

    @property
    def action_dim(self) -> int:
        """d, the width of an action with its dummies."""
        return 1 + self.n_dummies

    def sample(self, key: jax.Array, states: np.ndarray) -> np.ndarray:
        """Return one action per row of `states`, as drawn, shape (n, d)."""
        return np.asarray(controller_of(self).draw(key, jnp.asarray(states)))

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,)."""
        return self.log_prob_per_dimension(states, actions).sum(axis=1)

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ_j(a_j|s) for each dimension j, shape (n, d); −∞ where a dummy lies outside the box."""
        actions = np.asarray(actions, np.float32)
        if actions.ndim != 2 or actions.shape[1] != self.action_dim:
            raise InputError(f"actions have shape {actions.shape}; expected (steps, {self.action_dim})")
        uniform = (np.abs(actions) <= MAX_TORQUE) / (2.0 * MAX_TORQUE)
        std = self.std * MAX_TORQUE
        z = (actions[:, 0] - self.policy(states)[:, 0]) / std
        log_gaussian = -0.5 * z**2 - math.log(std * math.sqrt(2.0 * math.pi))
        with np.errstate(divide="ignore"):  # log 0 = −∞ is the density meant
            log_densities = np.log(uniform)
            log_densities[:, 0] = np.logaddexp(
                np.log1p(-self.uniform_share) + log_gaussian,
                np.log(self.uniform_share) + log_densities[:, 0],
            )
        return log_densities.astype(np.float32)


class Controller(Protocol):
    """What draws actions inside jax: a pytree, so that rollouts take it as an argument."""

    def draw(self, key: jax.Array, observations: jax.Array) -> jax.Array:
        """Return one action per row of `observations`."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Deterministic:
    actor: JaxActor

    def draw(self, key: jax.Array, observations: jax.Array) -> jax.Array:
        return self.actor(observations)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Mixture:
    actor: JaxActor
    std: jax.Array  # in units of torque
    uniform_share: jax.Array
    n_dummies: int = field(metadata={"static": True})

    def draw(self, key: jax.Array, observations: jax.Array) -> jax.Array:
        which_key, normal_key, uniform_key = jax.random.split(key, 3)
        n = len(observations)
        uniform = jax.random.uniform(
            uniform_key, (n, 1 + self.n_dummies), minval=-MAX_TORQUE, maxval=MAX_TORQUE
        )
        gaussian = self.actor(observations) + self.std * jax.random.normal(normal_key, (n, 1))
        take_uniform = jax.random.uniform(which_key, (n, 1)) < self.uniform_share
        first = jnp.where(take_uniform, uniform[:, :1], gaussian)
        return jnp.concatenate([first, uniform[:, 1:]], axis=1)


def controller_of(policy: Actor | WithDummies | PendulumBehavior) -> Controller:
    """Return what plays `policy` inside jax; constant dummies do nothing and are left out."""
    match policy:
        case Actor():
            _check_parts(policy, 0)
            return _Deterministic(jax_actor(policy))
        case WithDummies():
            return _Deterministic(jax_actor(policy.actor))
        case PendulumBehavior():
            return _Mixture(
                jax_actor(policy.policy),
                jnp.float32(policy.std * MAX_TORQUE),
                jnp.float32(policy.uniform_share),
                policy.n_dummies,
            )
    raise TypeError(
        f"{type(policy).__name__} does not run inside jax; expected Actor, WithDummies, PendulumBehavior"
    )
