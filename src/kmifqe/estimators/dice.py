"""DICE: a density ratio ζ from one regularised Lagrangian, of which DualDICE, GenDICE and others are settings.

    max over ζ, min over ν and λ of
        (1 − γ) E_{s₀}[ν(s₀, π)] + λ + E_log[ζ(s, a) (α_R r + γ ν(s', π) − ν(s, a) − λ)]
        + α_ν E_log[f(ν(s, a))] − α_ζ E_log[f(ζ(s, a))],    f(x) = |x|^p/p

(Yang et al., 2020, Eq. 12.) Where ν is free, ζ is how often the target visits (s, a) for every visit of the log, and
V̂ = E_log[ζ r]. `λ` asks for E_log[ζ] = 1, and a softplus makes ζ positive.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from kmifqe.estimators.base import (
    INPUTS_CHOICES,
    Estimator,
    Info,
    centred_rewards,
    in_unit,
    input_scale,
    learning_rates,
    mean_over_rows,
    network_input,
    over_first,
    over_target,
    require,
    require_choice,
    require_counts,
    require_positive,
    row_weights,
    value_by_ratio,
)
from kmifqe.estimators.registry import PRESETS, EstimatorEntry
from kmifqe.estimators.sizing import FitSize
from kmifqe.maths.mlp import Layers, apply_layers, init_layers
from kmifqe.mdp.problem import Problem

# Adam's decay rates. With its usual momentum of 0.9 the two players circle around the solution: on the tests' tabular
# world values then scatter from −3 to 1 where 0.117 is right, and without momentum from 0.118 to 0.122.
MOMENTUM, MEMORY = 0.0, 0.99
SOFTPLUS_ONE = 0.5413  # softplus of it is 1: both kinds of ζ begin around 1


@dataclass(frozen=True)
class DICEConfig:
    """Settings of the Lagrangian; where not said otherwise the defaults are those of Yang et al.'s public code."""

    nu_weight: float = 0.0  # α_ν, of the primal regulariser
    zeta_weight: float = 1.0  # α_ζ, of the dual regulariser
    reward_weight: float = 1.0  # α_R, of the rewards, which are centred and scaled
    positive: bool = True  # whether ζ is a softplus; theirs is a square, which can die at 0
    normalized: bool = True  # whether λ asks for a mean of 1; never in a log with ends, where it is less
    exponent: float = 1.5  # p of the regularisers
    hidden: int = 64  # units in each of two ReLU layers, of ν and of ζ
    batch: int = 1024  # rows a step; theirs: 2,048
    learning_rate: float = 1e-3  # Adam, both networks; theirs: 1e-4, for longer
    decay_steps: int = 0  # steps over which the learning rate falls to a hundredth; 0: constant
    average: float = 0.005  # ours: share of ζ's network that moves into the average that V̂ is read from
    value_rows: int = 10_000  # logged rows the value is averaged over
    inputs: str = "standardized"  # states in standard deviations and actions in half ranges; or "raw"

    def __post_init__(self) -> None:
        require_counts(self, "hidden", "batch", "value_rows")
        require_positive(self, "learning_rate")
        require(self.nu_weight >= 0, "nu_weight", self.nu_weight, "0 or more")
        require(self.zeta_weight >= 0, "zeta_weight", self.zeta_weight, "0 or more")
        require(self.exponent > 1, "exponent", self.exponent, "a number above 1")
        require(self.decay_steps >= 0, "decay_steps", self.decay_steps, "0 or more")
        require(0 < self.average <= 1, "average", self.average, "0 < average <= 1")
        require_choice(self, "inputs", INPUTS_CHOICES)


class Players(NamedTuple):
    """Who minimises (ν, λ) and who maximises (ζ)."""

    nu: Layers
    multiplier: Float[Array, ""]
    zeta: Layers


class DICEState(NamedTuple):
    """The players and their optimiser, the average of ζ's network, and the units."""

    players: Players
    opt_state: optax.OptState
    averaged: Layers
    value_rows: Int[Array, " rows"]
    reward_center: Float[Array, ""]
    reward_scale: Float[Array, ""]
    input_scale: Float[Array, " q+d"]
    mean_weight: Float[Array, ""] | None  # of the rows' episode weights; None without a bootstrap


@cache  # one set of functions per name and config, so that jit compiles it once
def make_dice(name: str, config: DICEConfig) -> Estimator:
    """Return the estimator called `name` with the settings `config`."""
    optimizer = optax.adam(learning_rates(config), b1=MOMENTUM, b2=MEMORY)

    def regularizer(x: Array) -> Array:
        # |x|^p, whose derivative at 0 is 0 in exact arithmetic and not a number in floating point.
        return (x**2 + 1e-12) ** (0.5 * config.exponent) / config.exponent

    def output(layers: Layers, state: DICEState, problem: Problem, states: Array, actions: Array) -> Array:
        x = in_unit(network_input(problem, states, actions, config.inputs), state.input_scale)
        return apply_layers(layers, x)[:, 0]

    def zeta(layers: Layers, state: DICEState, problem: Problem, rows: Array) -> Float[Array, " rows"]:
        f = output(layers, state, problem, problem.states[rows], problem.actions[rows])
        return jax.nn.softplus(f + SOFTPLUS_ONE) if config.positive else 1.0 + f

    def init(key: Array, problem: Problem) -> DICEState:
        for_nu, for_zeta, for_rows = jax.random.split(key, 3)
        sizes = (problem.state_dim + problem.action_dim, config.hidden, config.hidden, 1)
        players = Players(init_layers(for_nu, sizes), jnp.float32(0.0), init_layers(for_zeta, sizes))
        rows = jax.random.choice(
            for_rows, len(problem), (min(config.value_rows, len(problem)),), replace=False
        )
        all_weights = row_weights(problem, slice(None))
        mean_weight = None if all_weights is None else jnp.mean(all_weights)
        units = *centred_rewards(problem), input_scale(problem, config.inputs)
        return DICEState(players, optimizer.init(players), players.zeta, rows, *units, mean_weight)

    def rewards_of(state: DICEState, problem: Problem, rows: Array) -> Array:
        return (problem.rewards[rows] - state.reward_center) / state.reward_scale

    def lagrangian(players: Players, state: DICEState, problem: Problem, key: Array) -> Array:
        row_key, first_key = jax.random.split(key)
        rows = jax.random.randint(row_key, (config.batch,), 0, len(problem))
        first = jax.random.randint(first_key, (config.batch,), 0, problem.first_states.shape[0])
        mean = partial(mean_over_rows, weights=row_weights(problem, rows, state.mean_weight))
        first_weights = None if problem.episode_weights is None else problem.episode_weights[first]
        nu = partial(output, players.nu, state, problem)
        now, at_first = nu(problem.states[rows], problem.actions[rows]), over_first(nu, problem, first)
        later = jnp.where(problem.terminated[rows], 0.0, over_target(nu, problem, rows))
        ratio = zeta(players.zeta, state, problem, rows)
        has_multiplier = config.normalized and problem.counts.terminated == 0
        multiplier = players.multiplier if has_multiplier else 0.0
        residual = problem.gamma * later - now - multiplier
        residual += config.reward_weight * (1.0 - problem.gamma) * rewards_of(state, problem, rows)
        total = (1.0 - problem.gamma) * mean_over_rows(at_first, first_weights) + multiplier
        total += mean(ratio * residual)
        return (
            total + config.nu_weight * mean(regularizer(now)) - config.zeta_weight * mean(regularizer(ratio))
        )

    def step(key: Array, t: Array, state: DICEState, problem: Problem) -> tuple[DICEState, Info]:
        loss, gradient = jax.value_and_grad(lagrangian)(state.players, state, problem, key)
        gradient = gradient._replace(zeta=jax.tree.map(jnp.negative, gradient.zeta))  # ζ maximises
        updates, opt_state = optimizer.update(gradient, state.opt_state)
        players = optax.apply_updates(state.players, updates)
        averaged = optax.incremental_update(players.zeta, state.averaged, config.average)
        return state._replace(players=players, opt_state=opt_state, averaged=averaged), {"loss": loss}

    def ratio(state: DICEState, problem: Problem, rows: Array) -> Float[Array, " rows"]:
        return zeta(state.averaged, state, problem, rows)

    def value(state: DICEState, problem: Problem) -> Float[Array, ""]:
        return value_by_ratio(ratio(state, problem, state.value_rows), state, problem)

    return Estimator(name, config, init, step, value, default_steps=100_000, ratio=ratio)


def _entry(name: str, label: str, colors: tuple[str, str], summary: str, **settings: Any) -> EstimatorEntry:
    return EstimatorEntry(
        name=name,
        label=label,
        color=colors[0],
        dark_color=colors[1],
        config=DICEConfig(**settings),
        make=partial(make_dice, name),
        needs_density=False,
        summary=summary,
        page="docs/estimators/dice.md",
        steps_at=PRESETS.__getitem__,
        sized=FitSize.decay,
        use_when="nothing is known of the behaviour density, and a ratio is wanted, for instance for mdr",
        avoid_when="a single number is wanted that need not be compared: two networks play against each other",
    )


ENTRIES = (
    _entry(
        "best-dice",
        "BestDICE",
        ("#b2182b", "#f4796b"),
        "a density ratio from the regularised Lagrangian, with the settings that its authors found best",
    ),
    _entry(
        "dual-dice",
        "DualDICE",
        ("#e08214", "#fdb863"),
        "a density ratio from the Lagrangian with a dual regulariser alone",
        reward_weight=0.0,
        positive=False,
        normalized=False,
    ),
    _entry(
        "gen-dice",
        "GenDICE",
        ("#35978f", "#80cdc1"),
        "a density ratio from the Lagrangian with a primal regulariser, positive and normalised",
        nu_weight=1.0,
        zeta_weight=0.0,
        reward_weight=0.0,
        exponent=2.0,
    ),
    _entry(
        "gradient-dice",
        "GradientDICE",
        ("#542788", "#9e87c9"),
        "a density ratio from the Lagrangian with a primal regulariser, normalised",
        nu_weight=1.0,
        zeta_weight=0.0,
        reward_weight=0.0,
        positive=False,
        exponent=2.0,
    ),
)
