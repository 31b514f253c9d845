"""An estimator of a few lines that has all a real one has: keys, an optimiser's counter, a refresh over all rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.estimators import Estimator, Refresh
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions

PERIOD = 10
SEEDS = 2
BALLAST = 50_000  # floats a seed: so that writing a snapshot takes as long as the steps between two
STEPS = 200  # 100 records, each of 2 steps: a fit can begin again at every fifth


@dataclass(frozen=True)
class ToyConfig:
    rate: float = 0.1
    clip: tuple[float, float] = (0.0, float("inf"))


class ToyState(NamedTuple):
    x: jax.Array
    momentum: dict[str, jax.Array]
    wide: jax.Array  # (n,): what a copy of x says of every row
    target: jax.Array  # changed by the refresh too, and not rebuilt by it from nothing
    ballast: jax.Array


PLAIN = ToyConfig()


@cache
def toy(config: ToyConfig = PLAIN, name: str = "toy", period: int = PERIOD) -> Estimator:
    def init(key: jax.Array, problem: Problem) -> ToyState:
        x = jax.random.normal(key, (3,))
        momentum = {"m": jnp.zeros(3), "count": jnp.int32(0)}
        return ToyState(x, momentum, problem.rewards * x[0], x, jnp.arange(BALLAST) * x[1])

    def step(key: jax.Array, t: jax.Array, state: ToyState, problem: Problem) -> tuple[ToyState, dict]:
        row = jax.random.randint(key, (), 0, len(problem))
        pull = jnp.tanh(state.wide[row] + state.target) - state.x
        m = 0.9 * state.momentum["m"] + pull
        momentum = {"m": m, "count": state.momentum["count"] + 1}
        return state._replace(x=state.x + config.rate * m, momentum=momentum), {"loss": jnp.sum(pull**2)}

    def refresh(kind: None, state: ToyState, problem: Problem) -> ToyState:
        return state._replace(
            wide=jnp.sin(problem.rewards * state.x[0]), target=0.5 * (state.target + state.x)
        )

    def value(state: ToyState, problem: Problem) -> jax.Array:
        return jnp.mean(state.x) + jnp.mean(state.wide)

    return Estimator(
        name,
        config,
        init,
        step,
        value,
        default_steps=STEPS,
        refresh=Refresh(refresh, every=period, recomputed=("wide",), restart_every=period),
    )


@cache
def toy_problem(rows: int = 1_000, seed: int = 0, gamma: float = 0.9, target: float = 0.0) -> Problem:
    rng = np.random.default_rng(seed)
    log = Transitions.from_arrays(
        rng.normal(size=(rows, 2)),
        rng.normal(size=(rows, 1)),
        rng.normal(size=rows),
        np.zeros(rows, bool),
        np.arange(1, rows + 1) % 10 == 0,
    )
    return Problem.build(log, lambda s: np.full((len(s), 1), target), None, gamma)
