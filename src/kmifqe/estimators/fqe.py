"""Fitted Q evaluation: the out-of-sample baseline, as the paper ran it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import jax
import optax
from jaxtyping import Array, Float

from kmifqe.estimators.base import (
    Estimator,
    Info,
    Network,
    in_unit,
    input_scale,
    input_units,
    mean_over_rows,
    network_input,
    require_counts,
    require_positive,
    require_soft_target,
    reward_scale,
    row_weights,
)
from kmifqe.estimators.registry import PRESETS, EstimatorEntry
from kmifqe.maths.mlp import Layers, apply_layers, init_layers
from kmifqe.mdp.problem import Problem


@dataclass(frozen=True)
class FQEConfig:
    """Settings of FQE; defaults are the paper's (appendix, hyperparameters)."""

    hidden: int = 256  # units in each of two ReLU layers
    batch: int = 256  # rows a step
    learning_rate: float = 3e-4  # Adam
    tau: float = 0.005  # share of the network that moves into the target network at each step
    inputs: str = "raw"  # "raw" as the paper; "standardized" states and actions in [-1, 1]

    def __post_init__(self) -> None:
        require_counts(self, "hidden", "batch")
        require_positive(self, "learning_rate")
        require_soft_target(self)


class FQEState(NamedTuple):
    """Networks and optimiser, and the units they learn in."""

    params: Layers
    target: Layers
    opt_state: optax.OptState
    reward_scale: Float[Array, ""]
    input_scale: Float[Array, " q+d"]


PAPER = FQEConfig()


@cache  # one set of functions per config, so that jit compiles it once
def make_fqe(config: FQEConfig = PAPER) -> Estimator:
    """Return FQE with the settings `config`: Q(s, a) ← r + γ Q̄(s', π̃(s')), the target network moved softly.

    Inside, rewards and Q are unnormalised; V̂ and `Estimator.q` are normalised by 1 − γ.
    """
    optimizer = optax.adam(config.learning_rate)

    def network_value(params: Layers, scale: Array, problem: Problem, states: Array, actions: Array) -> Array:
        x = in_unit(network_input(problem, states, actions, config.inputs), scale)
        return apply_layers(params, x)[:, 0]

    def init(key: Array, problem: Problem) -> FQEState:
        inputs = problem.state_dim + problem.action_dim
        params = init_layers(key, (inputs, config.hidden, config.hidden, 1))
        scales = reward_scale(problem), input_scale(problem, config.inputs)
        return FQEState(params, params, optimizer.init(params), *scales)

    def step(key: Array, t: Array, state: FQEState, problem: Problem) -> tuple[FQEState, Info]:
        rows = jax.random.randint(key, (config.batch,), 0, len(problem))
        bootstrap = problem.gamma * ~problem.terminated[rows]
        next_states, target_actions = problem.next_states[rows], problem.target_actions[rows]
        next_q = network_value(state.target, state.input_scale, problem, next_states, target_actions)
        goal = in_unit(problem.rewards[rows], state.reward_scale) + bootstrap * next_q
        # Weighted terms rather than weighted draws: those would need a table over all rows for every seed.
        weights = row_weights(problem, rows)

        def loss(params: Layers) -> Float[Array, ""]:
            now = network_value(
                params, state.input_scale, problem, problem.states[rows], problem.actions[rows]
            )
            return mean_over_rows((now - goal) ** 2, weights)

        error, gradient = jax.value_and_grad(loss)(state.params)
        updates, opt_state = optimizer.update(gradient, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        target = optax.incremental_update(params, state.target, config.tau)
        return state._replace(params=params, target=target, opt_state=opt_state), {"loss": error}

    def value(state: FQEState, problem: Problem) -> Float[Array, ""]:
        first = problem.first_states, problem.first_actions
        first_values = network_value(state.params, state.input_scale, problem, *first)
        mean = mean_over_rows(first_values, problem.episode_weights)
        return (1.0 - problem.gamma) * mean * state.reward_scale

    def q(state: FQEState, problem: Problem, states: Array, actions: Array) -> Float[Array, " n"]:
        unnormalised = network_value(state.params, state.input_scale, problem, states, actions)
        return (1.0 - problem.gamma) * unnormalised * state.reward_scale

    def network(state: FQEState, problem: Problem) -> Network:
        shift, scale = input_units(problem, config.inputs)
        unit = (1.0 - problem.gamma) * state.reward_scale
        return Network(tuple(state.params), "relu", shift, scale * state.input_scale, unit, cut_actions=False)

    def arrived(steps: int, gamma: float) -> float:
        # The target network moves by τ of the way to Q in a step, and each γ it passes on: a contraction.
        return 1.0 - (1.0 - config.tau * (1.0 - gamma)) ** steps

    return Estimator(
        "fqe", config, init, step, value, default_steps=1_000_000, q=q, network=network, arrived=arrived
    )


ENTRIES = (
    EstimatorEntry(
        name="fqe",
        label="FQE",
        color="#00876a",
        dark_color="#33c9a3",
        config=PAPER,
        make=make_fqe,
        needs_density=False,
        summary="fitted Q evaluation, which asks Q for actions that the log may not hold",
        page="docs/estimators/fqe.md",
        steps_at=PRESETS.__getitem__,  # no preset changes its settings: the paper's are the same in every column
    ),
)
