"""SR-DICE: a stationary density ratio that is linear in learned successor features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from kmifqe.errors import InputError
from kmifqe.estimators.base import (
    Estimator,
    Info,
    centred_rewards,
    in_unit,
    input_scale,
    mean_over_rows,
    network_input,
    over_first,
    over_target,
    require,
    require_counts,
    require_positive,
    require_soft_target,
    row_weights,
    value_by_ratio,
    value_units,
)
from kmifqe.estimators.registry import EstimatorEntry
from kmifqe.maths.mlp import Layers, apply_layers, init_layers
from kmifqe.mdp.problem import Problem


@dataclass(frozen=True)
class SRDICEConfig:
    """Settings of SR-DICE; defaults are the paper's, which are Fujimoto et al.'s (2021), unless said."""

    hidden: int = 256  # units of every hidden layer
    features: int = 256  # width of φ(s, a)
    batch: int = 256  # rows a step, for encoder and successor features
    ratio_batch: int = 2048  # rows a step, for the density ratio (Pendulum: 1,024)
    learning_rate: float = 3e-4  # Adam, all three stages
    tau: float = 0.005  # soft update of the target successor network
    reward_weight: float = 0.1  # of the reward in the encoder's loss
    value_rows: int = 10_000  # logged rows the value is averaged over
    stages: tuple[int, int, int] = (30_000, 100_000, 250_000)  # steps of encoder, successor features, ratio
    inputs: str = "raw"  # "raw" as the paper; "standardized" states and actions in [-1, 1]
    # Ours: rewards are learned and averaged less their mean, in their standard deviation, so that V̂ is equivariant to
    # a shift and to the scale of the rewards. False: as they were logged, as in the paper.
    center_rewards: bool = True

    def __post_init__(self) -> None:
        require_counts(self, "hidden", "features", "batch", "ratio_batch", "value_rows")
        require_positive(self, "learning_rate")
        require_soft_target(self)
        require(min(self.stages) >= 1, "stages", self.stages, "at least 1 step in each")


class Autoencoder(NamedTuple):
    """φ(s, a) = relu of the encoder, and the three decoders it is trained with; the reward's is linear, no bias."""

    encoder: Layers
    next_state: Layers
    action: Layers
    reward: Float[Array, " features"]


class SRDICEState(NamedTuple):
    """The three trained parts with an optimiser each, their units, and the rows the value is read from."""

    autoencoder: Autoencoder
    successor: Layers
    ratio: Float[Array, " features"]
    opt_states: tuple[optax.OptState, optax.OptState, optax.OptState]
    target_successor: Layers
    value_rows: Int[Array, " rows"]
    stage: Int[Array, ""]
    reward_center: Float[Array, ""]
    reward_scale: Float[Array, ""]
    input_scale: Float[Array, " q+d"]
    mean_weight: Float[Array, ""] | None  # of the rows' episode weights; None without a bootstrap


PAPER = SRDICEConfig()


@cache  # one set of functions per config, so that jit compiles it once
def make_sr_dice(config: SRDICEConfig = PAPER) -> Estimator:
    """Return SR-DICE with the settings `config`: three stages, one after the other in one run.

    The encoder is trained first, then the successor features, then the density ratio.
    """
    optimizer = optax.adam(config.learning_rate)
    ends = np.cumsum(config.stages[:2])

    def phi(autoencoder: Autoencoder, x: Array) -> Array:
        return jax.nn.relu(apply_layers(autoencoder.encoder, x))

    def reward_units(problem: Problem) -> tuple[Array, Array]:
        if not config.center_rewards:
            return value_units(problem, "rewards")
        return centred_rewards(problem)

    def rewards_of(state: SRDICEState, problem: Problem, rows: Array) -> Array:
        return (problem.rewards[rows] - state.reward_center) / state.reward_scale

    def inputs(state: SRDICEState, problem: Problem, states: Array, actions: Array) -> Array:
        return in_unit(network_input(problem, states, actions, config.inputs), state.input_scale)

    def init(key: Array, problem: Problem) -> SRDICEState:
        encoder, next_state, action, reward, successor, rows = jax.random.split(key, 6)
        q, d = problem.state_dim, problem.action_dim
        parts = (
            Autoencoder(
                init_layers(encoder, (q + d, config.hidden, config.features)),
                init_layers(next_state, (config.features, config.hidden, q)),
                init_layers(action, (config.features, config.hidden, d)),
                init_layers(reward, (config.features, 1))[0][0][:, 0],
            ),
            init_layers(successor, (q + d, config.hidden, config.hidden, config.features)),
            jnp.ones(config.features),
        )
        value_rows = jax.random.choice(
            rows, len(problem), (min(config.value_rows, len(problem)),), replace=False
        )
        opt_states = tuple(optimizer.init(part) for part in parts)
        scales = *reward_units(problem), input_scale(problem, config.inputs)
        all_weights = row_weights(problem, slice(None))
        mean_weight = None if all_weights is None else jnp.mean(all_weights)
        return SRDICEState(*parts, opt_states, parts[1], value_rows, jnp.int32(0), *scales, mean_weight)  # type: ignore[arg-type]

    def encoder_loss(autoencoder: Autoencoder, state: SRDICEState, problem: Problem, key: Array) -> Array:
        rows = jax.random.randint(key, (config.batch,), 0, len(problem))
        features = phi(autoencoder, inputs(state, problem, problem.states[rows], problem.actions[rows]))
        decoded = inputs(state, problem, problem.next_states[rows], problem.actions[rows])
        next_states, actions = decoded[:, : problem.state_dim], decoded[:, problem.state_dim :]
        # A terminal row whose next state was not logged has nothing to decode.
        known = problem.has_next_state[rows][:, None]
        next_state_error = known * (apply_layers(autoencoder.next_state, features) - next_states) ** 2
        reward_error = (features @ autoencoder.reward - rewards_of(state, problem, rows)) ** 2
        action_error = (apply_layers(autoencoder.action, features) - actions) ** 2
        mean = partial(mean_over_rows, weights=row_weights(problem, rows, state.mean_weight))
        return mean(next_state_error) + config.reward_weight * mean(reward_error) + mean(action_error)

    def ahead(layers: Layers, state: SRDICEState, problem: Problem, states: Array, actions: Array) -> Array:
        return apply_layers(layers, inputs(state, problem, states, actions))

    def successor_loss(successor: Layers, state: SRDICEState, problem: Problem, key: Array) -> Array:
        rows = jax.random.randint(key, (config.batch,), 0, len(problem))
        x = inputs(state, problem, problem.states[rows], problem.actions[rows])
        later = over_target(partial(ahead, state.target_successor, state, problem), problem, rows)
        bootstrap = (problem.gamma * ~problem.terminated[rows])[:, None]
        goal = phi(state.autoencoder, x) + bootstrap * later
        return mean_over_rows(
            (apply_layers(successor, x) - goal) ** 2, row_weights(problem, rows, state.mean_weight)
        )

    def ratio_loss(ratio: Array, state: SRDICEState, problem: Problem, key: Array) -> Array:
        row_key, first_key = jax.random.split(key)
        rows = jax.random.randint(row_key, (config.ratio_batch,), 0, len(problem))
        first = jax.random.randint(first_key, (config.ratio_batch,), 0, problem.first_states.shape[0])
        features = phi(state.autoencoder, inputs(state, problem, problem.states[rows], problem.actions[rows]))
        first_successor = over_first(partial(ahead, state.successor, state, problem), problem, first)
        first_weights = None if problem.episode_weights is None else problem.episode_weights[first]
        expected = mean_over_rows(first_successor @ ratio / config.features, first_weights)
        squares = (features @ ratio / config.features) ** 2
        square = mean_over_rows(squares, row_weights(problem, rows, state.mean_weight))
        return 0.5 * square - (1.0 - problem.gamma) * expected

    losses = (encoder_loss, successor_loss, ratio_loss)

    def train(stage: int, state: SRDICEState, problem: Problem, key: Array) -> tuple[SRDICEState, Array]:
        part = state[stage]
        loss, gradient = jax.value_and_grad(losses[stage])(part, state, problem, key)
        updates, opt_state = optimizer.update(gradient, state.opt_states[stage])
        part = optax.apply_updates(part, updates)
        opt_states = (*state.opt_states[:stage], opt_state, *state.opt_states[stage + 1 :])
        state = state._replace(**{state._fields[stage]: part}, opt_states=opt_states, stage=jnp.int32(stage))
        target = optax.incremental_update(state.successor, state.target_successor, config.tau)
        return state._replace(target_successor=target), loss

    def step(key: Array, t: Array, state: SRDICEState, problem: Problem) -> tuple[SRDICEState, Info]:
        stage = jnp.sum(t >= ends)
        state, loss = jax.lax.switch(stage, [partial(train, i) for i in range(3)], state, problem, key)
        return state, {"loss": loss}

    def ratio_of(state: SRDICEState, problem: Problem, rows: Array) -> Float[Array, " rows"]:
        features = phi(state.autoencoder, inputs(state, problem, problem.states[rows], problem.actions[rows]))
        return features @ state.ratio / config.features

    def value(state: SRDICEState, problem: Problem) -> Float[Array, ""]:
        estimate = value_by_ratio(ratio_of(state, problem, state.value_rows), state, problem)
        return jnp.where(state.stage == 2, estimate, jnp.nan)  # no ratio yet, no value

    def arrived(steps: int, gamma: float) -> float | None:
        return None if steps > ends[1] else 0.0  # there is no value before the last stage

    return Estimator(
        "sr-dice",
        config,
        init,
        step,
        value,
        default_steps=sum(config.stages),
        ratio=ratio_of,
        arrived=arrived,
    )


def _at_preset(preset: str, steps: int | None) -> dict[str, Any]:
    """Return Pendulum's smaller batch of the last stage, and the stages' shares of `steps` where they are given."""
    changes: dict[str, Any] = {}
    if preset in ("pendulum", "pendulum-fast", "fast"):
        changes["ratio_batch"] = 1024
    if steps is not None:
        changes["stages"] = _share_out(steps, PAPER.stages)
    return changes


def _share_out(steps: int, stages: tuple[int, ...]) -> tuple[int, ...]:
    """Return whole numbers in the proportion of `stages` that add up to `steps`, each at least 1."""
    if steps < len(stages):
        raise InputError(f"steps is {steps}; SR-DICE needs at least {len(stages)}, one for each stage")
    shares = [max(1, steps * stage // sum(stages)) for stage in stages[:-1]]
    return (*shares, steps - sum(shares))


ENTRIES = (
    EstimatorEntry(
        name="sr-dice",
        label="SR-DICE",
        color="#b85c92",
        dark_color="#e59cc6",
        config=PAPER,
        make=make_sr_dice,
        needs_density=False,
        summary="a density ratio that is linear in learned successor features",
        page="docs/estimators/sr_dice.md",
        at_preset=_at_preset,
        use_when="a density ratio is wanted that does not depend on the reward, without a known behaviour density",
        avoid_when="time is short, or the log is small: its features are learned first",
    ),
)
