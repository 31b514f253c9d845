"""Worlds of known value and estimators small enough to run them on in seconds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.estimators import Estimate, Estimator, entries, entry_named, fit
from kmifqe.estimators.fit import _init
from kmifqe.estimators.kmifqe.algorithm import KMIFQEState
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.lqr import LQR

UNCLIPPED = (0.0, float("inf"))
PAPER_CLIP = (1e-3, 2.0)


def estimator_with(name: str, **settings: Any) -> Estimator:
    """Return the estimator of that name in the registry with these settings changed."""
    entry = entry_named(name)
    return entry.make(replace(entry.config, **settings))


# --- A linear-quadratic world; its actions are in half action ranges already, so that h means the same in both


def make_world(gamma: float = 0.8, dummies: int = 0) -> LQR:
    world = LQR(
        F=np.array([[0.8]]),
        B=np.array([[0.5]]),
        noise_cov=np.array([[0.05]]),
        cost=np.diag([0.5, 1.0]),
        gain=np.array([[0.4]]),
        behavior_gain=np.array([[0.2]]),
        behavior_std=np.array([0.6]),
        initial_mean=np.array([0.5]),
        initial_cov=np.array([[0.3]]),
        gamma=gamma,
        action_bound=1.0,
    )
    return world.with_dummies(dummies) if dummies else world


@cache
def logged(
    gamma: float = 0.8, dummies: int = 0, episodes: int = 200, length: int = 25
) -> tuple[LQR, Transitions]:
    world = make_world(gamma, dummies)
    return world, world.collect(0, episodes, length)


@cache
def lqr_problem(gamma: float = 0.8, dummies: int = 0) -> tuple[Problem, LQR, float]:
    """Return the problem with its exact density, its world, and V of its own logged first states."""
    world, log = logged(gamma, dummies)
    problem = Problem.build(log, world.policy, world.behavior, gamma, trajectories=True)
    return problem, world, world.value_from(log.states[log.first_rows])


# --- A three-state, two-action world: whatever it is worth is one linear solve

NEXT = np.array([[1, 2], [2, 0], [0, 1]])  # state × action -> next state
REWARD = np.array([[1.0, -1.0], [0.5, 2.0], [-2.0, 0.0]])
TARGET = np.array([1, 0, 1])  # the action that π̃ takes in each state
START = np.array([0.5, 0.3, 0.2])


def tabular_value(gamma: float, other: float = 0.0) -> float:
    """V of the target, by a linear solve; with `other`, where after the first step it errs so often."""
    rows = np.arange(3)
    taken = (1 - other) * np.eye(2)[TARGET] + other * np.eye(2)[1 - TARGET]
    P = np.einsum("sa,san->sn", taken, np.eye(3)[NEXT])
    later = np.linalg.solve(np.eye(3) - gamma * P, np.sum(taken * REWARD, axis=1))
    return float((1 - gamma) * START @ (REWARD[rows, TARGET] + gamma * later[NEXT[rows, TARGET]]))


@cache
def tabular_problem(gamma: float, *, has_density: bool = False) -> Problem:
    """Return 100 episodes of 10 steps, every action tried equally often; actions are −1 and +1, states one-hot."""
    rng = np.random.default_rng(0)
    states = np.zeros((100, 11), int)
    states[:, 0] = np.repeat(np.arange(3), np.round(100 * START).astype(int))
    actions = rng.integers(0, 2, (100, 10))
    for t in range(10):
        states[:, t + 1] = NEXT[states[:, t], actions[:, t]]
    now, taken = states[:, :-1].ravel(), actions.ravel()
    log = Transitions.from_arrays(
        np.eye(3)[now],
        2.0 * taken[:, None] - 1.0,
        REWARD[now, taken],
        np.zeros(1000, bool),
        np.arange(1, 1001) % 10 == 0,
        np.eye(3)[states[:, 1:].ravel()],
    )
    target = lambda s: (2.0 * TARGET - 1.0)[s.argmax(axis=1)][:, None]  # noqa: E731
    return Problem.build(log, target, UniformDensity() if has_density else None, gamma)


# --- A chain 0 -> 1 -> 1, reward 1 a step whatever is done, whose episodes end after three steps


class UniformDensity:
    """μ = ½ on [−1, 1]."""

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.full(len(actions), np.log(0.5))


def centre(states: np.ndarray) -> np.ndarray:
    return np.zeros((len(states), 1), np.float32)


@cache
def chain_problem(*, terminated: bool, gamma: float = 0.8) -> Problem:
    """Return the chain's problem; only the flag of every third row tells the two logs apart.

    In state 1 every action is logged twice, once in a row that goes on and once in one that ends.
    """
    rng = np.random.default_rng(0)
    n = 3000
    in_state_1 = rng.uniform(-1, 1, n // 3)
    actions = np.stack([rng.uniform(-1, 1, n // 3), in_state_1, rng.permutation(in_state_1)], axis=1)
    ends = np.arange(1, n + 1) % 3 == 0
    never = np.zeros(n, bool)
    log = Transitions.from_arrays(
        (np.arange(n)[:, None] % 3 > 0).astype(np.float32),
        actions.reshape(n, 1),
        np.ones(n),
        ends if terminated else never,
        never if terminated else ends,
        np.ones((n, 1)),
    )
    return Problem.build(log, centre, UniformDensity(), gamma)


def chain_value(*, terminated: bool, gamma: float = 0.8) -> float:
    """V: 1 where the cut is no end; else state 1 ends half of the time and is worth (1−γ)/(1−γ/2)."""
    return (1 - gamma) + gamma * (1 - gamma) / (1 - gamma / 2) if terminated else 1.0


# --- Settings that converge on the above within seconds

STEPS = 2_000
SEEDS = 3
RECORD_EVERY = 50
_QUICK_KMIFQE = {
    "hidden": 32,
    "batch": 64,
    "learning_rate": 5e-3,
    "decay_steps": STEPS,
    "target_period": 50,  # 40 copies: at γ = 0.8 what is left of the start is 0.8⁴⁰ ≈ 1e-4
    "clip": UNCLIPPED,
}
_QUICK_FQE = {"hidden": 32, "batch": 64, "learning_rate": 3e-3, "tau": 0.02}
_QUICK_DICE = {"hidden": 32, "batch": 64, "learning_rate": 3e-3, "decay_steps": 1_000, "average": 0.01}
QUICK: dict[str, dict[str, Any]] = {
    "kmifqe": _QUICK_KMIFQE | {"tau": 0.05, "clip": (1e-3, 10.0)},
    "kmifqe-paper": _QUICK_KMIFQE,
    "kmifqe-identity": _QUICK_KMIFQE,
    "fqe": _QUICK_FQE,
    "fqe-paper": _QUICK_FQE,
    "in-sample": _QUICK_FQE,
    "dr": _QUICK_FQE,
    "wdr": _QUICK_FQE,
    "mdr": _QUICK_FQE | {"decay_steps": STEPS, "ratio": "best-dice"},
    "mis": {"hidden": 32, "batch": 64},
    **dict.fromkeys(("best-dice", "dual-dice", "gen-dice", "gradient-dice"), _QUICK_DICE),
    "sr-dice": {
        "hidden": 32,
        "features": 32,
        "batch": 64,
        "ratio_batch": 128,
        "learning_rate": 1e-2,
        "tau": 0.02,
        "inputs": "standardized",
        "stages": (1_000, 2_000, 7_000),
    },
}


SAME_CODE = ("wdr", "dual-dice", "gen-dice", "gradient-dice")  # as of dr and best-dice, with other settings
BANDITS = ("kernel-dr", "kernel-ipw")  # for episodes of one step
# Estimators that train on a deterministic target; the others have tests of their own.
TRAINED = [
    entry.name
    for entry in entries()
    if entry.targets != "stochastic"
    and entry.name not in (*SAME_CODE, *BANDITS)
    and not entry.make(entry.config).at_once
]


def quick(name: str, **settings: Any) -> Estimator:
    """Return a small, fast-learning version of the estimator."""
    return estimator_with(name, **{**QUICK[name], **settings})


def run(estimator: Estimator, problem: Problem, **options: Any) -> Estimate:
    """Return three seeds' estimate; one record length everywhere, so that each program is compiled once."""
    steps = estimator.default_steps if estimator.name == "sr-dice" else STEPS
    return fit(
        estimator, problem, **{"seeds": SEEDS, "steps": steps, "record_every": RECORD_EVERY, **options}
    )


def forget_target_density(problem: Problem) -> Problem:
    """Return the problem as if only the log knew its densities."""
    return replace(problem, log_mu_target=None)


def chain_kmifqe() -> Estimator:
    return quick("kmifqe-paper", clip=PAPER_CLIP, bandwidth=0.1)


def first_state(estimator: Estimator, problem: Problem) -> KMIFQEState:
    """Return the first seed's state as `fit` makes it, by a program that other tests have compiled."""
    keys = jnp.stack([jax.random.key(seed) for seed in range(SEEDS)])
    return jax.tree.map(lambda leaf: leaf[0], _init(estimator, keys, problem))
