"""Adam on the likelihood of all mixtures at once: padded to one size, one vmap, stopped early."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from kmifqe.behavior.fit_config import FitConfig, FitProgress
from kmifqe.behavior.network import Network, components_at, init_network, mixture_log_prob
from kmifqe.errors import InputError

CHECK_CHUNK = 2048  # held-out rows at a time: bounds the memory of a check


class Rows(NamedTuple):
    """Logged rows as the network sees them."""

    states: jax.Array  # (n, q) standardised
    z: jax.Array  # (n, d) latent actions
    side: jax.Array  # (n, d) boundary layers


class Trained(NamedTuple):
    """The best networks seen, one for each count and restart, counts first."""

    networks: Network  # leaves have a leading axis of models, padded to the largest count
    held_out: np.ndarray  # (counts, restarts) best mean log-likelihood in latent space
    steps: int

    def network(self, count_index: int, count: int, dims: int) -> Network:
        """Return the best restart of one count, without the outputs of its padding components."""
        model = count_index * self.held_out.shape[1] + int(self.held_out[count_index].argmax())
        *layers, (weight, bias) = jax.tree.map(lambda leaf: leaf[model], self.networks)
        used = count * (1 + 2 * dims)
        return (*layers, (weight[:, :used], bias[:used]))


def train_networks(
    train: Rows,
    check: Rows,
    edges: jax.Array,
    log_jacobian: float,
    config: FitConfig,
    progress: Callable[[FitProgress], None] | None,
) -> Trained:
    """Return the networks at their best held-out likelihood, for every count and restart of `config`.

    `log_jacobian` is the mean held-out log-Jacobian, which turns latent likelihoods into those of actions.
    """
    counts = np.repeat(config.components, config.restarts)
    padded = int(counts.max())
    masks = jnp.where(np.arange(padded) < counts[:, None], 0.0, -jnp.inf)
    init_rng, batch_rng = np.random.default_rng(config.seed).spawn(2)
    most_steps = config.most_steps(len(train.states))
    schedule = (config.learning_rate, most_steps)
    optimizer = _optimizer(*schedule)
    sizes = (train.states.shape[1], config.hidden, padded, train.z.shape[1])
    starts = [init_network(init_rng, *sizes) for _ in counts]
    networks: Network = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *starts)
    states = jax.vmap(optimizer.init)(networks)
    best = np.full(len(counts), -np.inf)
    best_networks, since, step = networks, 0, 0
    while step < most_steps and since < config.patience:
        chunk = min(config.check_every, most_steps - step)
        picked = batch_rng.integers(len(train.states), size=(chunk, config.batch), dtype=np.int32)
        networks, states = _advance(schedule, networks, states, masks, edges, train, picked)
        step += chunk
        now = _held_out(networks, masks, edges, check)
        better = now > best
        best_networks = _where_model(better, networks, best_networks)
        since = 0 if better.any() else since + 1
        best = np.maximum(best, now)
        if progress is not None:
            by_count = best.reshape(len(config.components), -1).mean(axis=1) + log_jacobian
            progress(FitProgress(step, most_steps, config.components, tuple(by_count.tolist())))
    if not np.isfinite(best).all():
        raise InputError(
            "behaviour fit: the likelihood never became finite; expected states and actions of sane size"
        )
    return Trained(best_networks, best.reshape(len(config.components), config.restarts), step)


def _optimizer(learning_rate: float, most_steps: int) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(10.0),
        optax.adam(optax.cosine_decay_schedule(learning_rate, most_steps)),
    )


@partial(jax.jit, static_argnums=0)
def _advance(
    schedule: tuple[float, int],
    networks: Network,
    states: optax.OptState,
    masks: jax.Array,
    edges: jax.Array,
    rows: Rows,
    picked: jax.Array,
) -> tuple[Network, optax.OptState]:
    """Return all models one gradient step on for each row of `picked`, the minibatches' row numbers.

    The models share each minibatch, so that counts compare in pairs.
    """
    optimizer = _optimizer(*schedule)

    def one_step(
        carry: tuple[Network, optax.OptState], numbers: jax.Array
    ) -> tuple[tuple[Network, optax.OptState], None]:
        minibatch = jax.tree.map(lambda array: array[numbers], rows)

        def one_model(
            network: Network, state: optax.OptState, mask: jax.Array
        ) -> tuple[Network, optax.OptState]:
            gradient = jax.grad(_loss)(network, mask, edges, minibatch)
            update, state = optimizer.update(gradient, state)
            return optax.apply_updates(network, update), state

        return jax.vmap(one_model)(*carry, masks), None

    carry, _ = jax.lax.scan(one_step, (networks, states), picked)
    return carry


def _loss(network: Network, mask: jax.Array, edges: jax.Array, rows: Rows) -> jax.Array:
    return -jax.vmap(_log_prob, (None, None, None, 0))(network, mask, edges, rows).mean()


def _log_prob(network: Network, mask: jax.Array, edges: jax.Array, row: Rows) -> jax.Array:
    return mixture_log_prob(components_at(network, mask, row.states), row.z, row.side, edges)


@jax.jit
def _held_out(networks: Network, masks: jax.Array, edges: jax.Array, rows: Rows) -> jax.Array:
    """Return each model's mean held-out log-likelihood in latent space, shape (models,)."""

    def one_row(row: Rows) -> jax.Array:
        return jax.vmap(_log_prob, (0, 0, None, None))(networks, masks, edges, row)

    return jax.lax.map(one_row, rows, batch_size=CHECK_CHUNK).mean(axis=0)


def _where_model(better: np.ndarray, new: Network, old: Network) -> Network:
    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, new, old)
