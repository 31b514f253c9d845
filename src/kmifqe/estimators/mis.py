"""Marginalised importance sampling: a ratio of states, times the ratio of the action alone (Liu et al., 2018).

w(s), how often the target visits a state for every visit of the log, is the only function for which, for every f,

    E_log[w(s) f(s)] = (1 − γ) E f(s₀) + γ E_log[w(s) ρ(a|s) f(s')],    ρ = π(a|s)/μ(a|s).

The largest difference of the two sides over the unit ball of a Gaussian kernel's space is the norm of the sum of the
kernels at these states with these weights, so no second network is needed: its square is the loss. V̂ = Σ wρr/Σ wρ.
No product of ratios appears, however long an episode is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from kmifqe.estimators.base import (
    Estimator,
    Info,
    learning_rates,
    require,
    require_counts,
    require_positive,
    standardized,
)
from kmifqe.estimators.importance_sampling import BANDWIDTHS
from kmifqe.estimators.registry import PRESETS, EstimatorEntry
from kmifqe.estimators.sizing import FitSize
from kmifqe.estimators.trajectories import LARGEST, check_trajectories, log_ratios, steps_of, widest_bandwidth
from kmifqe.maths.kernel import effective_sample_size
from kmifqe.maths.mlp import Layers, apply_layers, init_layers
from kmifqe.mdp.problem import Problem

SOFTPLUS_ONE = 0.5413  # softplus of it is 1: w begins around 1
CHUNK = 65_536  # steps whose w is in flight at once


@dataclass(frozen=True)
class MISConfig:
    """Settings of marginalised importance sampling; Liu et al. leave sizes and the kernel's width to the task."""

    hidden: int = 64  # units in each of two ReLU layers of w
    batch: int = 256  # steps in each of two minibatches: the loss is a product of two independent sums
    learning_rate: float = 1e-3  # Adam
    decay_steps: int = 0  # steps over which the learning rate falls to a hundredth; 0: constant
    width: float = 1.0  # of the kernel over states, in the root mean square distance of two states over √2
    bandwidth: float | None = (
        None  # around a deterministic target's action, half action ranges; None: from the log
    )
    largest_ratio: float = 100.0  # of one action

    def __post_init__(self) -> None:
        require_counts(self, "hidden", "batch")
        require_positive(self, "learning_rate", "width", "largest_ratio")
        require(self.decay_steps >= 0, "decay_steps", self.decay_steps, "0 or more")
        require(
            self.bandwidth is None or self.bandwidth > 0, "bandwidth", self.bandwidth, "a positive number"
        )


class MISState(NamedTuple):
    """The network of w and its optimiser, and the ratio of every laid-out step, 0 where there is none."""

    params: Layers
    opt_state: optax.OptState
    ratios: Float[Array, "m horizon"]
    info: dict[str, Array]


class Drawn(NamedTuple):
    """Some steps, with their weights in a bootstrap."""

    rows: Int[Array, " batch"]
    ratios: Float[Array, " batch"]
    weights: Float[Array, " batch"]
    first: Int[Array, " batch"]  # episodes whose first states are drawn
    first_weights: Float[Array, " batch"]


@cache  # one set of functions per config, so that jit compiles it once
def make_mis(config: MISConfig) -> Estimator:
    """Return marginalised importance sampling with the settings `config`."""
    name = "mis"
    optimizer = optax.adam(learning_rates(config))

    def w_of(params: Layers, x: Float[Array, "n q"]) -> Float[Array, " n"]:
        return jax.nn.softplus(apply_layers(params, x)[:, 0] + SOFTPLUS_ONE)

    def init(key: Array, problem: Problem) -> MISState:
        check_trajectories(name, problem)
        steps, d = steps_of(problem), problem.action_dim
        grid = jnp.asarray(BANDWIDTHS)
        h = jnp.float32(config.bandwidth or 0.0)
        if config.bandwidth is None and not problem.is_stochastic:
            h = 0.5 * grid[widest_bandwidth(steps, grid, d)]
        ratios = jnp.where(steps.there, jnp.exp(log_ratios(steps, h, d, config.largest_ratio)), 0.0)
        params = init_layers(key, (problem.state_dim, config.hidden, config.hidden, 1))
        info = {"effective_rows": effective_sample_size(ratios.ravel())}
        if not problem.is_stochastic:
            info["bandwidth"] = h
        return MISState(params, optimizer.init(params), ratios, info)

    def drawn(key: Array, state: MISState, problem: Problem) -> Drawn:
        """Draw steps, each that is laid out as likely as any other, and first states."""
        assert problem.trajectory_rows is not None
        step_key, first_key = jax.random.split(key)
        lengths = jnp.sum(problem.trajectory_rows >= 0, axis=1)
        ends = jnp.cumsum(lengths)
        number = jax.random.randint(step_key, (config.batch,), 0, ends[-1])
        episode = jnp.searchsorted(ends, number, side="right")
        time = number - (ends - lengths)[episode]
        first = jax.random.randint(first_key, (config.batch,), 0, len(lengths))
        e = jnp.ones(len(lengths)) if problem.episode_weights is None else problem.episode_weights
        mean = jnp.sum(e * lengths) / ends[-1]
        return Drawn(
            rows=problem.trajectory_rows[episode, time],
            ratios=state.ratios[episode, time],
            weights=e[episode] / mean,
            first=first,
            first_weights=e[first],
        )

    def sums(params: Layers, part: Drawn, problem: Problem) -> tuple[Array, Array]:
        """Return the states and weights whose sum of kernels is the difference of the two sides."""
        now = standardized(problem, problem.states[part.rows])
        later = standardized(problem, problem.next_states[part.rows])
        first = standardized(problem, problem.first_states[part.first])
        w = part.weights * w_of(params, now)
        goes_on = ~problem.terminated[part.rows]
        coefficients = jnp.concatenate(
            [
                w,
                -problem.gamma * goes_on * w * part.ratios,
                -(1.0 - problem.gamma) * part.first_weights,
            ]
        )
        return jnp.concatenate([now, later, first]), coefficients / config.batch

    def step(key: Array, t: Array, state: MISState, problem: Problem) -> tuple[MISState, Info]:
        one, other = (drawn(half, state, problem) for half in jax.random.split(key))

        def loss(params: Layers) -> Float[Array, ""]:
            (x, a), (y, b) = sums(params, one, problem), sums(params, other, problem)
            squared = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1) - 2.0 * x @ y.T
            kernel = jnp.exp(-0.5 * squared / (config.width**2 * problem.state_dim))
            return a @ kernel @ b

        error, gradient = jax.value_and_grad(loss)(state.params)
        updates, opt_state = optimizer.update(gradient, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        return state._replace(params=params, opt_state=opt_state), {"loss": error} | state.info

    def value(state: MISState, problem: Problem) -> Float[Array, ""]:
        assert problem.trajectory_rows is not None
        rows = jnp.maximum(problem.trajectory_rows, 0).ravel()
        size = min(CHUNK, len(rows))
        chunks = jnp.pad(rows, (0, -len(rows) % size)).reshape(-1, size)
        states = lambda chunk: standardized(problem, problem.states[chunk])  # noqa: E731
        w = jax.lax.map(lambda chunk: w_of(state.params, states(chunk)), chunks).ravel()[: len(rows)]
        e = jnp.ones(len(state.ratios)) if problem.episode_weights is None else problem.episode_weights
        weights = jnp.minimum(w, jnp.exp(LARGEST)) * (e[:, None] * state.ratios).ravel()
        total = jnp.maximum(jnp.sum(weights), 1e-30)
        found = jnp.sum(weights * problem.rewards[rows]) / total
        if problem.counts.terminated == 0:
            return found
        # After an end nothing is visited: w's own mean is the share of the discounted time before.
        there = (e[:, None] * (problem.trajectory_rows >= 0)).ravel()
        return found * jnp.sum(w * there) / jnp.sum(there)

    return Estimator(name, config, init, step, value, default_steps=100_000, uses_density=True)


ENTRIES = (
    EstimatorEntry(
        name="mis",
        label="MIS",
        color="#a6761d",
        dark_color="#e6ab02",
        config=MISConfig(),
        make=make_mis,
        needs_density=True,
        needs_trajectories=True,
        targets="stochastic",  # a kernel's bias would stay in V̂, and no check sees it (docs/estimators/mis.md)
        summary="a learned ratio of states times the ratio of the action: no product over an episode",
        page="docs/estimators/mis.md",
        steps_at=PRESETS.__getitem__,
        sized=FitSize.decay,
        use_when="episodes are long, states have few dimensions, and the density of actions is known",
        avoid_when="states have many dimensions: a kernel over them sees every state as far from every other",
    ),
)
