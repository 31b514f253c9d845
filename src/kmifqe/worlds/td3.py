"""TD3 (Fujimoto et al. 2018) as pure functions: a replay buffer and a learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor
from kmifqe.maths.mlp import Layers, apply_layers, init_layers


@dataclass(frozen=True)
class Td3Config:
    """TD3's settings; defaults are its paper's unless said. Noise is in units of half the action range."""

    actor_hidden: tuple[int, ...] = (256, 256)  # widths of the policy's layers
    actor_activation: str = "relu"  # or "tanh": a smoother policy, where noise or theory asks for one
    saturation_cost: float = 0.0  # times the mean square before the policy's tanh: keeps it off the bounds
    critic_hidden: tuple[int, ...] = (256, 256)  # widths of each critic's ReLU layers
    learning_rate: float = 3e-4  # Adam, all networks (the authors' code; their paper has 1e-3)
    batch: int = 256  # transitions per update (the authors' code; their paper has 100)
    gamma: float = 0.99  # discount, in [0, 1)
    tau: float = 0.005  # share of the new weights in the target networks per policy update, in (0, 1]
    policy_delay: int = 2  # critic updates per policy update
    exploration_noise: float = 0.1  # standard deviation
    target_noise: float = 0.2  # standard deviation of the smoothing of target actions
    target_noise_clip: float = 0.5  # the smoothing's bound

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma < 1.0:
            raise InputError(f"gamma is {self.gamma}; expected 0 <= gamma < 1")
        if not 0.0 < self.tau <= 1.0:
            raise InputError(f"tau is {self.tau}; expected 0 < tau <= 1")
        if self.actor_activation not in ("relu", "tanh"):
            raise InputError(f"actor_activation is {self.actor_activation!r}; expected 'relu' or 'tanh'")
        for field in ("batch", "policy_delay"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} is {getattr(self, field)}; expected 1 or more")


# --- replay


class Batch(NamedTuple):
    """Transitions, one per row."""

    states: jax.Array  # (n, q)
    actions: jax.Array  # (n, d), in the environment's scale
    rewards: jax.Array  # (n,)
    next_states: jax.Array  # (n, q), the state reached, also where an episode was cut
    terminated: jax.Array  # (n,) bool: the environment ended; a time limit does not count


class Buffer(NamedTuple):
    """The latest transitions, in a ring."""

    rows: Batch  # `capacity` rows, the first `size` of them filled
    size: jax.Array
    position: jax.Array  # where the next row goes


def init_buffer(capacity: int, state_dim: int, action_dim: int) -> Buffer:
    """Return an empty buffer of `capacity` rows for states of `state_dim` and actions of `action_dim` numbers."""
    rows = Batch(
        states=jnp.zeros((capacity, state_dim)),
        actions=jnp.zeros((capacity, action_dim)),
        rewards=jnp.zeros(capacity),
        next_states=jnp.zeros((capacity, state_dim)),
        terminated=jnp.zeros(capacity, bool),
    )
    return Buffer(rows, jnp.int32(0), jnp.int32(0))


@partial(jax.jit, donate_argnums=0)
def add(buffer: Buffer, batch: Batch) -> Buffer:
    """Return `buffer` with `batch` written over the oldest rows; the old buffer's memory is reused."""
    capacity, n = len(buffer.rows.rewards), len(batch.rewards)
    slots = (buffer.position + jnp.arange(n)) % capacity
    rows = jax.tree.map(lambda ring, new: ring.at[slots].set(new), buffer.rows, batch)
    return Buffer(rows, jnp.minimum(buffer.size + n, capacity), (buffer.position + n) % capacity)


def sample(key: jax.Array, buffer: Buffer, n: int) -> Batch:
    """Return `n` rows of `buffer` drawn uniformly with `key`, with replacement."""
    rows = jax.random.randint(key, (n,), 0, buffer.size)
    return jax.tree.map(lambda ring: ring[rows], buffer.rows)


# --- the learner


class Td3State(NamedTuple):
    """Everything the next update needs. The twin critics are one set of layers with a leading axis of two."""

    actor: Layers
    critics: Layers
    target_actor: Layers
    target_critics: Layers
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    updates: jax.Array


class Td3Info(NamedTuple):
    """What a person wants to see of an update."""

    critic_loss: jax.Array  # mean squared TD error, summed over the twins
    mean_q: jax.Array  # first critic at the logged actions


class Td3(NamedTuple):
    """The learner: pure functions that share one configuration and one action box."""

    init: Callable[[jax.Array], Td3State]  # key -> state
    act: Callable[[Td3State, jax.Array], jax.Array]  # state, states (n, q) -> actions (n, d)
    explore: Callable[
        [jax.Array, Td3State, jax.Array], jax.Array
    ]  # key, state, states -> noisy actions in the box
    update: Callable[
        [jax.Array, Td3State, Buffer, int], tuple[Td3State, Td3Info]
    ]  # key, state, buffer, n_updates
    export: Callable[[Td3State, str], Actor]  # state, name -> the policy as plain arrays


def td3(config: Td3Config, state_dim: int, low: Sequence[float], high: Sequence[float]) -> Td3:
    """Return the learner of `config`, for states of width `state_dim` and actions in the box [`low`, `high`]."""
    low_array, high_array = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not (
        np.isfinite(low_array).all() and np.isfinite(high_array).all() and (low_array < high_array).all()
    ):
        raise InputError(f"action bounds are {low} and {high}; TD3 needs finite bounds, low below high")
    centre, half_range = jnp.asarray((low_array + high_array) / 2), jnp.asarray((high_array - low_array) / 2)
    action_dim = len(low_array)
    optimizer = optax.adam(config.learning_rate)
    activation = {"relu": jax.nn.relu, "tanh": jnp.tanh}[config.actor_activation]

    @jax.jit
    def init(key: jax.Array) -> Td3State:
        actor_key, critics_key = jax.random.split(key)
        actor = init_layers(actor_key, (state_dim, *config.actor_hidden, action_dim))
        widths = (state_dim + action_dim, *config.critic_hidden, 1)
        critics = jax.vmap(lambda k: init_layers(k, widths))(jax.random.split(critics_key))
        return Td3State(
            actor=actor,
            critics=critics,
            target_actor=actor,
            target_critics=critics,
            actor_optimizer=optimizer.init(actor),
            critic_optimizer=optimizer.init(critics),
            updates=jnp.int32(0),
        )

    def unit_act(actor: Layers, states: jax.Array) -> jax.Array:
        return jnp.tanh(apply_layers(actor, states, activation))

    @jax.jit
    def act(state: Td3State, states: jax.Array) -> jax.Array:
        return centre + half_range * unit_act(state.actor, states)

    @jax.jit
    def explore(key: jax.Array, state: Td3State, states: jax.Array) -> jax.Array:
        action = unit_act(state.actor, states)
        noise = config.exploration_noise * jax.random.normal(key, action.shape)
        return centre + half_range * jnp.clip(action + noise, -1.0, 1.0)

    def smoothed_targets(key: jax.Array, state: Td3State, batch: Batch) -> jax.Array:
        """Return r + γ min over twins Q'(s', clip(π'(s') + noise))."""
        next_action = unit_act(state.target_actor, batch.next_states)
        noise = config.target_noise * jax.random.normal(key, next_action.shape)
        noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
        next_q = _twin_q(state.target_critics, batch.next_states, jnp.clip(next_action + noise, -1.0, 1.0))
        return batch.rewards + config.gamma * jnp.where(batch.terminated, 0.0, next_q.min(axis=0))

    def update_critics(key: jax.Array, state: Td3State, batch: Batch) -> tuple[Td3State, Td3Info]:
        targets = smoothed_targets(key, state, batch)
        actions = (batch.actions - centre) / half_range

        def loss(critics: Layers) -> tuple[jax.Array, jax.Array]:
            q = _twin_q(critics, batch.states, actions)
            return ((q - targets) ** 2).mean(axis=1).sum(), q[0].mean()

        (critic_loss, mean_q), gradient = jax.value_and_grad(loss, has_aux=True)(state.critics)
        step, optimizer_state = optimizer.update(gradient, state.critic_optimizer)
        critics = optax.apply_updates(state.critics, step)
        return state._replace(critics=critics, critic_optimizer=optimizer_state), Td3Info(critic_loss, mean_q)

    def update_actor(state: Td3State, batch: Batch) -> Td3State:
        first_critic = jax.tree.map(lambda twins: twins[0], state.critics)

        def loss(actor: Layers) -> jax.Array:
            before_tanh = apply_layers(actor, batch.states, activation)
            inputs = jnp.concatenate([batch.states, jnp.tanh(before_tanh)], axis=1)
            return (
                -apply_layers(first_critic, inputs).mean() + config.saturation_cost * (before_tanh**2).mean()
            )

        step, optimizer_state = optimizer.update(jax.grad(loss)(state.actor), state.actor_optimizer)
        actor = optax.apply_updates(state.actor, step)
        return state._replace(
            actor=actor,
            actor_optimizer=optimizer_state,
            target_actor=optax.incremental_update(actor, state.target_actor, config.tau),
            target_critics=optax.incremental_update(state.critics, state.target_critics, config.tau),
        )

    def update_once(state: Td3State, key: jax.Array, buffer: Buffer) -> tuple[Td3State, Td3Info]:
        sample_key, noise_key = jax.random.split(key)
        batch = sample(sample_key, buffer, config.batch)
        state, info = update_critics(noise_key, state, batch)
        state = state._replace(updates=state.updates + 1)
        due = state.updates % config.policy_delay == 0
        return jax.lax.cond(due, update_actor, lambda same, _: same, state, batch), info

    @partial(jax.jit, static_argnums=3)
    def update(key: jax.Array, state: Td3State, buffer: Buffer, n_updates: int) -> tuple[Td3State, Td3Info]:
        """Return the state after `n_updates` updates, and their mean Info."""
        keys = jax.random.split(key, n_updates)
        state, infos = jax.lax.scan(lambda s, k: update_once(s, k, buffer), state, keys)
        return state, jax.tree.map(jnp.mean, infos)

    def export(state: Td3State, name: str) -> Actor:
        return Actor(
            weights=tuple(np.asarray(w) for w, _ in state.actor),
            biases=tuple(np.asarray(b) for _, b in state.actor),
            hidden=config.actor_activation,
            output="tanh",
            low=low_array,
            high=high_array,
            name=name,
        )

    return Td3(init, act, explore, update, export)


def _twin_q(critics: Layers, states: jax.Array, unit_actions: jax.Array) -> jax.Array:
    """Return both critics' values, shape (2, n)."""
    inputs = jnp.concatenate([states, unit_actions], axis=1)
    return jax.vmap(lambda critic: apply_layers(critic, inputs)[:, 0])(critics)
