"""D4RL's recipes with our own policies: stochastic experts, and a training run's exploration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kmifqe.errors import InputError
from kmifqe.policies.actor import Actor
from kmifqe.worlds.gym_collect import Draw

PRE_TANH_STD = 0.3  # of the stochastic policies: near what a trained SAC policy keeps
PRE_TANH_LIMIT = (
    2.0  # of their mean before tanh: a TD3 actor saturates, a stochastic policy of D4RL's does not
)
EXPLORATION = 0.1  # of half the action range: TD3's


def stochastic_mean(actor: Actor) -> Actor:
    """Return the mean policy of the stochastic one around a TD3 actor: tanh of its limited last layer."""
    if actor.output != "tanh":
        raise InputError(f"{actor.name}: output is {actor.output!r}; expected tanh, to put noise before it")
    return replace(actor, mean_clip=PRE_TANH_LIMIT)


def squashed_gaussian(actor: Actor, std: float = PRE_TANH_STD) -> Draw:
    """Return what draws a = tanh(z + std·ε), scaled to the box, z the actor's last layer within its limit."""
    mean = stochastic_mean(actor)
    unbounded = np.full(actor.action_dim, np.inf, np.float32)
    last_layer = replace(actor, output="clip", mean_clip=None, low=-unbounded, high=unbounded)

    def draw(rng: np.random.Generator, states: np.ndarray) -> tuple[np.ndarray, None]:
        z = np.clip(last_layer(states), -PRE_TANH_LIMIT, PRE_TANH_LIMIT)
        z = z + std * rng.standard_normal(z.shape)
        actions = mean.low + 0.5 * (np.tanh(z) + 1.0) * (mean.high - mean.low)
        return actions.astype(np.float32), None

    return draw


def exploring(actor: Actor, std: float = EXPLORATION) -> Draw:
    """Return what draws as TD3 explores: Gaussian noise on the action, clipped to the box, and stored so."""
    half = 0.5 * (actor.high - actor.low)

    def draw(rng: np.random.Generator, states: np.ndarray) -> tuple[np.ndarray, None]:
        actions = actor(states) + std * half * rng.standard_normal((len(states), actor.action_dim))
        return np.clip(actions, actor.low, actor.high).astype(np.float32), None

    return draw
