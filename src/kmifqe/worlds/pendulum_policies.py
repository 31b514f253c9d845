"""Pendulum's policies: the shipped actors, the paper's target and behaviour, and all of them inside jax."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor, load_safetensors_actor
from kmifqe.maths.mlp import apply_layers
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE

HIDDEN = {"tanh": jnp.tanh, "relu": jax.nn.relu}
STATIC = {"static": True}  # marks a field of a pytree that is not an array


def load_pendulum_actors() -> tuple[Actor, Actor]:
    """Return the shipped (target, behaviour mean), on one action (actors/README.md has their returns)."""
    with as_file(files("kmifqe.worlds") / "actors") as folder:
        target, behavior = (
            load_safetensors_actor(folder / f"pendulum-{name}.safetensors") for name in ("target", "behavior")
        )
    return target, behavior


@dataclass(frozen=True)
class WithDummies:
    """A policy that plays `actor`'s action in the first dimension and 0 in each of `n_dummies` others."""

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
        """The file of the actor, and what the dummies do."""
        return f"{Path(self.actor.name).name}, zeros for the dummies"

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


@dataclass(frozen=True)
class PendulumBehavior:
    """The paper's μ: (1 − share)·N(policy(s), (std·a_max)²) + share·U on the first action, U on each dummy.

    U is uniform on [−a_max, a_max]. Actions are logged as drawn: a Gaussian draw may lie outside the box (the
    environment clips it), so the density is exact.
    """

    policy: Actor
    n_dummies: int
    std: float = 0.5  # of the Gaussian, in half action ranges a_max (the paper's)
    uniform_share: float = 0.2  # in [0, 1] (the paper's)

    def __post_init__(self) -> None:
        _check_parts(self.policy, self.n_dummies)
        if not 0.0 < self.std < math.inf:
            raise InputError(f"std is {self.std}; expected a positive number, in units of a_max")
        if not 0.0 <= self.uniform_share <= 1.0:
            raise InputError(f"uniform_share is {self.uniform_share}; expected a share between 0 and 1")

    @property
    def name(self) -> str:
        """What draws the actions, in a few words."""
        if self.uniform_share == 1.0:
            return "uniform over all torques and dummies"
        gaussian = f"{Path(self.policy.name).name} with Gaussian noise of {self.std:g} half-ranges"
        return f"{gaussian}, {self.uniform_share:.0%} of the torques and all dummies uniform"

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


def _check_parts(actor: Actor, n_dummies: int) -> None:
    if (actor.state_dim, actor.action_dim) != (3, 1):
        raise InputError(
            f"{actor.name}: {actor.state_dim} inputs and {actor.action_dim} outputs; Pendulum needs 3 and 1"
        )
    if n_dummies < 0:
        raise InputError(f"n_dummies is {n_dummies}; expected 0 or more")


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
    hidden: str = field(metadata=STATIC)
    output: str = field(metadata=STATIC)
    obs_eps: float = field(metadata=STATIC)
    obs_clip: float = field(metadata=STATIC)
    mean_clip: float | None = field(metadata=STATIC)

    def __call__(self, states: jax.Array) -> jax.Array:
        """Return the action for each row of `states`."""
        if self.obs_mean is not None and self.obs_var is not None:
            scale = jnp.sqrt(self.obs_var + self.obs_eps)
            states = jnp.clip((states - self.obs_mean) / scale, -self.obs_clip, self.obs_clip)
        x = apply_layers(list(zip(self.weights, self.biases)), states, HIDDEN[self.hidden])
        if self.output == "clip":
            return jnp.clip(x, self.low, self.high)
        if self.mean_clip is not None:
            x = jnp.clip(x, -self.mean_clip, self.mean_clip)
        return self.low + 0.5 * (jnp.tanh(x) + 1.0) * (self.high - self.low)


def jax_actor(actor: Actor) -> JaxActor:
    """Return `actor` with its arrays on jax's default device."""
    values = {name: getattr(actor, name) for name in JaxActor.__dataclass_fields__}
    arrays = ("weights", "biases", "low", "high", "obs_mean", "obs_var")
    return JaxActor(**values | {name: jax.tree.map(jnp.asarray, values[name]) for name in arrays})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Controller:
    """What draws actions inside jax: a pytree, so that rollouts take it as an argument."""

    actor: JaxActor
    std: jax.Array | None = None  # of the Gaussian around the actor, a torque; None: nothing is random
    uniform_share: jax.Array | None = None
    n_dummies: int = field(default=0, metadata=STATIC)

    def draw(self, key: jax.Array, observations: jax.Array) -> jax.Array:
        """Return one action per row of `observations`."""
        if self.std is None or self.uniform_share is None:
            return self.actor(observations)
        which_key, normal_key, uniform_key = jax.random.split(key, 3)
        n = len(observations)
        uniform = jax.random.uniform(
            uniform_key, (n, 1 + self.n_dummies), minval=-MAX_TORQUE, maxval=MAX_TORQUE
        )
        gaussian = self.actor(observations) + self.std * jax.random.normal(normal_key, (n, 1))
        is_uniform = jax.random.uniform(which_key, (n, 1)) < self.uniform_share
        first = jnp.where(is_uniform, uniform[:, :1], gaussian)
        return jnp.concatenate([first, uniform[:, 1:]], axis=1)


def controller_of(policy: Actor | WithDummies | PendulumBehavior) -> Controller:
    """Return what plays `policy` inside jax; constant dummies do nothing and are left out."""
    match policy:
        case Actor():
            _check_parts(policy, 0)
            return Controller(jax_actor(policy))
        case WithDummies():
            return Controller(jax_actor(policy.actor))
        case PendulumBehavior(mean, n_dummies, std, share):
            return Controller(jax_actor(mean), jnp.float32(std * MAX_TORQUE), jnp.float32(share), n_dummies)
    raise TypeError(
        f"{type(policy).__name__} does not run inside jax; expected Actor, WithDummies, PendulumBehavior"
    )
