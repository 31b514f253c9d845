"""Figure 2: Q over torque and dummy at several pendulum states, KMIFQE with its metric beside FQE and the exact Q."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from kmifqe.estimators import Estimate, Estimator
from kmifqe.experiments.context import Context
from kmifqe.experiments.demo import GAMMA
from kmifqe.experiments.presets import Preset
from kmifqe.experiments.trials import Trial, Trials, errors_field, keep_trials, mixture_log, run_of
from kmifqe.trust.landscape import Points, surface_of, with_metrics
from kmifqe.worlds.pendulum import value_of_states
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE, observe, state_of, step
from kmifqe.worlds.pendulum_policies import WithDummies

EXPERIMENT = "fig2"
METHODS = ("kmifqe", "fqe")
ROWS = ("one-dummy",)
SEEDS = {"smoke": 2, "small": 2, "fast": 3, "paper": 3}  # trainings on one log; the first is drawn
POINTS = {"smoke": 5, "small": 31, "fast": 31, "paper": 31}  # of each action axis
DECIMALS = 4  # of a stored Q
# Name, angle from upright in radians, speed in radians a second. The torque of one step hardly matters at most states
# (exact Q moves by 0.07 at the median of a grid); after the first, these are some where it does.
STATES = (
    ("upright, at rest", 0.0, 0.0),
    ("at the top, too fast", 0.0, 2.0),
    ("nearly up", 0.8, -2.0),
    ("hanging, swinging", math.pi, 2.0),
)


def rows(preset: Preset) -> tuple[str, ...]:
    """Return the one row: Pendulum with one dummy."""
    return ROWS


def run(row: str, context: Context) -> None:
    """Fit each method on one log and keep its Q on a grid of actions, with the exact Q beside it."""
    preset = context.preset
    seeds, points = SEEDS[preset.name], POINTS[preset.name]
    log = mixture_log(preset, dummies=1)
    for method in METHODS:
        chosen = run_of(method, preset)

        def describe(
            trials: Trials, estimates: Sequence[Estimate], estimator: Estimator = chosen.estimator
        ) -> dict[str, Any]:
            fields = landscape_fields(estimator, estimates[0], trials[0], points)
            return fields | errors_field(trials, estimates)

        place = (EXPERIMENT, row, method)
        keep_trials(context, place, chosen, log, (1, seeds), describe, states=STATES, points=points)


def landscape_fields(estimator: Estimator, estimate: Estimate, trial: Trial, points: int) -> dict[str, Any]:
    """Return Q of the first seed at STATES over points × points actions, the exact Q, and how they differ.

    `q` is state × torque × dummy, `exact` state × torque, as the dummy does nothing; `metric` is A in half action
    ranges. All Q are normalised as V̂ is. The figures under `summary` are per seed.
    """
    axis = np.linspace(-MAX_TORQUE, MAX_TORQUE, points)
    states = np.asarray(observe(jnp.array([state[1:] for state in STATES])))
    targets = trial.target(states)
    surface = surface_of(estimator, estimate, trial.problem)
    fields: dict[str, Any] = {
        "axis": axis,
        "states": [{"name": name, "angle": angle, "speed": speed} for name, angle, speed in STATES],
        "target_torque": targets[:, 0],
        "exact": np.round(_exact_over(axis, states, trial.target), DECIMALS),
    }
    if surface is None:  # every seed diverged
        return fields | {"q": None, "metric": None, "summary": None}
    nowhere = np.full(len(states), np.nan)
    at = Points(states, targets, np.full_like(targets, np.nan), np.zeros(len(states), bool), nowhere)
    surface = with_metrics(surface, estimator, estimate, at)
    q = np.stack(
        [_grid(lambda s, a, k=k: surface.q(k, s, a), states, axis) for k in range(len(surface.seeds))]
    )
    at_target = np.stack([surface.q(k, states, targets) for k in range(len(surface.seeds))])
    exact_at_target = exact_q(states, targets, trial.target)
    return fields | {
        "q": np.round(q[0], DECIMALS),
        "metric": None if surface.metrics is None else surface.metrics[0],
        "summary": {
            "target_error": (at_target - exact_at_target).mean(axis=1),
            "target_error_by_state": at_target - exact_at_target,
            "rmse": np.sqrt(((q - fields["exact"][None, :, :, None]) ** 2).mean(axis=(1, 2, 3))),
            # How far Q moves along the dummy, which does nothing, and along the torque.
            "along_dummy": np.sqrt(q.var(axis=3).mean(axis=2)).mean(axis=1),
            "along_torque": np.sqrt(q.mean(axis=3).var(axis=2)).mean(axis=1),
            "exact_along_torque": float(np.sqrt(fields["exact"].var(axis=1)).mean()),
        },
    }


def exact_q(states: np.ndarray, actions: np.ndarray, target: WithDummies) -> np.ndarray:
    """Return Q of the target policy at rows of observations and actions, normalised: one step, then its value."""
    after, reward, _ = step(state_of(jnp.asarray(states)), jnp.asarray(actions, jnp.float32))
    return (1.0 - GAMMA) * np.asarray(reward) + GAMMA * value_of_states(
        np.asarray(observe(after)), target, GAMMA
    )


def _exact_over(axis: np.ndarray, states: np.ndarray, target: WithDummies) -> np.ndarray:
    """Return the exact Q, states × torques."""
    rows = np.repeat(states, len(axis), axis=0)
    actions = np.stack([np.tile(axis, len(states)), np.zeros(len(rows))], axis=1)
    return exact_q(rows, actions, target).reshape(len(states), len(axis))


def _grid(q: Any, states: np.ndarray, axis: np.ndarray) -> np.ndarray:
    """Return q(states, actions) over the square of actions: states × torques × dummies."""
    torque, dummy = (side.ravel() for side in np.meshgrid(axis, axis, indexing="ij"))
    actions = np.stack([torque, dummy], axis=1)
    told = [q(np.repeat(state[None], len(actions), axis=0), actions) for state in states]
    return np.stack(told).reshape(len(states), len(axis), len(axis))
