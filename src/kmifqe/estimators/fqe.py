"""Fitted Q evaluation, out of sample: Q is asked at the target's own actions, whether or not the log holds them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from kmifqe.estimators.base import (
    UNITS,
    Estimator,
    Info,
    Network,
    ValueUnits,
    in_unit,
    input_scale,
    input_units,
    learning_rates,
    mean_over_rows,
    network_input,
    over_first,
    over_target,
    require,
    require_choice,
    require_counts,
    require_positive,
    require_soft_target,
    row_weights,
    soft_share,
    value_units,
)
from kmifqe.estimators.registry import PRESETS, EstimatorEntry
from kmifqe.estimators.sizing import FitSize
from kmifqe.maths.mlp import Layers, apply_layers, init_layers
from kmifqe.mdp.problem import Problem


@dataclass(frozen=True)
class FQEConfig:
    """Settings of FQE; the defaults are ours, chosen on the study's problems (docs/estimators/fqe.md)."""

    hidden: int = 256  # units in each of two ReLU layers
    batch: int = 256  # rows a step
    learning_rate: float = 1e-3  # Adam
    decay_steps: int = 0  # steps over which the learning rate falls to a hundredth; 0: constant
    tau: float = 0.02  # share of the network that moves into the target network at each step
    inputs: str = (
        "standardized"  # states in standard deviations, actions in half ranges, cut to the box; or "raw"
    )
    units: str = (
        "returns"  # Q begins at the mean of the log's returns, in their spread; or "rewards", as logged
    )
    bounded: bool = True  # bootstrap values and V̂ are cut to what rewards like those logged can add up to

    def __post_init__(self) -> None:
        require_counts(self, "hidden", "batch")
        require_positive(self, "learning_rate")
        require(self.decay_steps >= 0, "decay_steps", self.decay_steps, "0 or more")
        require_soft_target(self)
        require_choice(self, "units", UNITS)


DEFAULT = FQEConfig()
# The paper's (appendix, hyperparameters): raw inputs, unnormalised values that begin around 0.
PAPER = FQEConfig(learning_rate=3e-4, tau=0.005, inputs="raw", units="rewards", bounded=False)


class FQEState(NamedTuple):
    """Networks and optimiser, and the units they learn in."""

    params: Layers
    target: Layers
    opt_state: optax.OptState
    units: ValueUnits
    input_scale: Float[Array, " q+d"]


@cache  # one set of functions per config, so that jit compiles it once
def make_fqe(config: FQEConfig = DEFAULT) -> Estimator:
    """Return FQE with the settings `config`: Q(s, a) ← r + γ Q̄(s', π̃(s')), the target network moved softly."""
    optimizer = optax.adam(learning_rates(config))
    cut_actions = config.inputs == "standardized"

    def network_inputs(scale: Array, problem: Problem, states: Array, actions: Array) -> Array:
        x = network_input(problem, states, actions, config.inputs, cut_actions=cut_actions)
        return in_unit(x, scale)

    def output(params: Layers, scale: Array, problem: Problem, states: Array, actions: Array) -> Array:
        return apply_layers(params, network_inputs(scale, problem, states, actions))[:, 0]

    def within_bounds(f: Array, units: ValueUnits, problem: Problem) -> Array:
        return units.bounded(f, problem) if config.bounded else f

    def init(key: Array, problem: Problem) -> FQEState:
        inputs = problem.state_dim + problem.action_dim
        params = init_layers(key, (inputs, config.hidden, config.hidden, 1))
        # The paper's FQE learns sums of rewards, not their mean per step.
        units = value_units(problem, config.units, normalized=False)
        return FQEState(params, params, optimizer.init(params), units, input_scale(problem, config.inputs))

    def step(key: Array, t: Array, state: FQEState, problem: Problem) -> tuple[FQEState, Info]:
        rows = jax.random.randint(key, (config.batch,), 0, len(problem))
        next_f = over_target(partial(output, state.target, state.input_scale, problem), problem, rows)
        bounded = within_bounds(next_f, state.units, problem)
        info = {"cut": state.units.scale * jnp.mean(jnp.abs(bounded - next_f))} if config.bounded else {}
        next_f = jnp.where(problem.terminated[rows], state.units.end, bounded)
        goal = state.units.reward(problem.rewards[rows], problem.gamma) + problem.gamma * next_f
        # Weighted terms rather than weighted draws: those would need a table over all rows for every seed.
        weights = row_weights(problem, rows)

        def loss(params: Layers) -> Float[Array, ""]:
            now = output(params, state.input_scale, problem, problem.states[rows], problem.actions[rows])
            return mean_over_rows((now - goal) ** 2, weights)

        error, gradient = jax.value_and_grad(loss)(state.params)
        updates, opt_state = optimizer.update(gradient, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        target = optax.incremental_update(params, state.target, config.tau)
        return state._replace(params=params, target=target, opt_state=opt_state), info | {"loss": error}

    def value(state: FQEState, problem: Problem) -> Float[Array, ""]:
        first = over_first(partial(q, state, problem), problem, slice(None))
        return mean_over_rows(first, problem.episode_weights)

    def q(state: FQEState, problem: Problem, states: Array, actions: Array) -> Float[Array, " n"]:
        f = output(state.params, state.input_scale, problem, states, actions)
        return state.units.value(within_bounds(f, state.units, problem))

    def features(state: FQEState, problem: Problem, states: Array, actions: Array) -> Float[Array, "n width"]:
        x = network_inputs(state.input_scale, problem, states, actions)
        return jax.nn.relu(apply_layers(state.params[:-1], x))

    def network(state: FQEState, problem: Problem) -> Network:
        shift, scale = input_units(problem, config.inputs)
        *before, (w, b) = state.params
        layers = (*before, (w, b + state.units.center / state.units.scale))
        return Network(
            layers, "relu", shift, scale * state.input_scale, state.units.scale, cut_actions=cut_actions
        )

    return Estimator(
        "fqe",
        config,
        init,
        step,
        value,
        default_steps=1_000_000,
        # Compiled for the diagnostics, which ask outside of any program: operation by operation takes far longer.
        q=jax.jit(q),
        network=network,
        features=jax.jit(features),
        arrived=partial(soft_share, config.tau),
    )


def fqe_within(config: FQEConfig) -> tuple[Estimator, dict[str, Any]]:
    """Return FQE with the settings that `config` shares with it, and what an estimator built around it offers of it.

    That estimator keeps FQE's state in the field `fqe` of its own: Q, its network, and V̂ while it trains are FQE's.
    """
    fqe = make_fqe(FQEConfig(**{field.name: getattr(config, field.name) for field in fields(FQEConfig)}))

    def value(state: Any, problem: Problem) -> Float[Array, ""]:
        return fqe.value(state.fqe, problem)

    def q(state: Any, problem: Problem, states: Array, actions: Array) -> Float[Array, " n"]:
        assert fqe.q is not None
        return fqe.q(state.fqe, problem, states, actions)

    def network(state: Any, problem: Problem) -> Network:
        assert fqe.network is not None
        return fqe.network(state.fqe, problem)

    return fqe, {"value": value, "q": q, "network": network, "arrived": fqe.arrived}


@cache  # one object per config, as of `make_fqe`
def make_fqe_paper(config: FQEConfig = PAPER) -> Estimator:
    """Return FQE under the name of the paper's settings, so that both can stand in one table."""
    return make_fqe(config)._replace(name="fqe-paper")


_DEFAULT = EstimatorEntry(
    name="fqe",
    label="FQE",
    color="#00876a",
    dark_color="#33c9a3",
    config=DEFAULT,
    make=make_fqe,
    needs_density=False,
    summary="fitted Q evaluation, which asks Q for actions that the log may not hold",
    page="docs/estimators/fqe.md",
    steps_at=PRESETS.__getitem__,
    sized=FitSize.settings,
    use_when="nothing is known of the density, or as the second opinion beside any other estimator",
    avoid_when="the target's actions lie far from all logged ones: Q there is an extrapolation",
)
ENTRIES = (
    _DEFAULT,
    replace(
        _DEFAULT,
        name="fqe-paper",
        label="FQE, as in the paper",
        color="#6b8e23",
        dark_color="#a5c95c",
        config=PAPER,
        make=make_fqe_paper,
        sized=None,
        summary="fitted Q evaluation with the paper's settings, to the letter",
    ),
)
