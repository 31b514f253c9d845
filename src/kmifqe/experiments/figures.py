"""The experiments behind the paper's figures, all on Pendulum with dummy actions: fig1a, fig1b, fig2 and shift."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError
from kmifqe.estimators import Estimator
from kmifqe.experiments.context import Context, Experiment
from kmifqe.experiments.pendulum import (
    GAMMA,
    SMALL,
    ShiftedLog,
    Trials,
    errors_field,
    keep_trials,
    mixture_log,
    run_of,
    swept,
    trial_errors,
)
from kmifqe.experiments.presets import Preset, Run
from kmifqe.trust.checks.training import trained_q
from kmifqe.trust.landscape import metrics_of
from kmifqe.worlds.pendulum import value_of_states
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE, observe, state_of, step
from kmifqe.worlds.pendulum_policies import WithDummies

KERNEL_METHODS = ("kmifqe-paper", "kmifqe-identity")

# Figure 1a: bias² and variance of V̂ against the number of dummy actions, with and without the learned metric.
FIG1A_DUMMIES = {"smoke": (1,), "small": (1, 2, 4), "fast": (1, 2, 3, 4), "paper": (1, 2, 3, 4)}
# Logs, and trainings on each. The paper's trials number ten; its public code trains them all on one log, so that
# its variance leaves out the log's own. Two trainings on a log tell the two parts apart.
FIG1A_TRIALS = {"smoke": (2, 2), "small": (4, 1), "fast": (6, 2), "paper": (10, 1)}


def _dummies_rows(preset: Preset) -> tuple[str, ...]:
    return tuple(f"dummies-{count}" for count in FIG1A_DUMMIES[preset.name])


def _run_dummies(row: str, context: Context) -> None:
    """Fit each method on logs with this many dummies, and keep bias and variance over the trials."""
    dummies = int(row.removeprefix("dummies-"))
    log, counts = mixture_log(context.preset, dummies), FIG1A_TRIALS[context.preset.name]
    for method in KERNEL_METHODS:
        keep_trials(
            context,
            context.place("fig1a", row, method),
            run_of(method, context.preset),
            log,
            counts,
            lambda trials: {"dummies": dummies, **errors_field(trials)},
        )


FIG1A = Experiment("fig1a", _dummies_rows, _run_dummies, KERNEL_METHODS)

# Figure 1b: error against a fixed bandwidth, with and without the learned metric, beside the learned bandwidth. The
# row "fixed" has all bandwidths of the grid at once.
FIG1B_DUMMIES = {"smoke": 1, "small": SMALL.dummies, "fast": 1, "paper": 1}
FIG1B_TRIALS = {"smoke": (2, 2), "small": (3, 1), "fast": (5, 2), "paper": (10, 1)}
_WIDE = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)
BANDWIDTHS = {  # in half action ranges
    "smoke": (0.2, 0.4),
    "small": (0.05, 0.1, 0.2, 0.4, 0.8),
    "fast": _WIDE,
    "paper": _WIDE,
}


def _run_bandwidths(row: str, context: Context) -> None:
    """Fit each method at every bandwidth of the grid, or with its own, and keep the errors."""
    preset = context.preset
    dummies = FIG1B_DUMMIES[preset.name]
    bandwidths = BANDWIDTHS[preset.name] if row == "fixed" else ()

    def describe(trials: Trials) -> dict[str, Any]:
        if not bandwidths:
            return {"dummies": dummies, **errors_field(trials)}
        errors = trials.errors
        by_bandwidth = [{"bandwidth": h} | trial_errors(errors[..., i]) for i, h in enumerate(bandwidths)]
        return {"dummies": dummies, "by_bandwidth": by_bandwidth}

    for method in KERNEL_METHODS if preset.name != "smoke" or not bandwidths else KERNEL_METHODS[:1]:
        run = run_of(method, preset)
        if bandwidths:
            run = Run(swept(run.estimator.config, bandwidths), run.steps)
        place, log = context.place("fig1b", row, method), mixture_log(preset, dummies)
        grid = list(bandwidths) or None
        keep_trials(context, place, run, log, FIG1B_TRIALS[preset.name], describe, bandwidths=grid)


FIG1B = Experiment("fig1b", lambda preset: ("fixed", "learned"), _run_bandwidths, KERNEL_METHODS)

# Shift: error against how far the behaviour is from the target, and against the length of the log, an experiment left
# in the comments of the paper's source. The behaviour is a Gaussian around the target's torque and around half the
# greatest dummy, where the target's dummy is 0; the narrower, the further off it is.
SHIFT_METHODS = ("kmifqe-paper", "kmifqe-identity", "fqe-paper", "sr-dice")
SHIFT_TRIALS = {"smoke": (2, 2), "small": (3, 1), "fast": (3, 2), "paper": (10, 1)}


class Cross(NamedTuple):
    """A cross of behaviours: each width at `usual_rows`, each length at `usual_width`."""

    widths: tuple[float, ...]  # standard deviations, in half action ranges
    lengths: tuple[int, ...]  # rows
    usual_width: float
    usual_rows: int


CROSSES = {
    "smoke": Cross((0.3,), (600,), 0.3, 600),
    "small": Cross((0.1, 0.3, 0.5), (3_000, 10_000, 30_000, 100_000), 0.3, 30_000),
    "fast": Cross((0.1, 0.2, 0.3, 0.5), (10_000, 100_000, 1_000_000), 0.3, 100_000),
    "paper": Cross((0.1, 0.2, 0.3, 0.4, 0.5), (10_000, 100_000, 500_000, 1_000_000), 0.3, 500_000),
}


def _shift_rows(preset: Preset) -> tuple[str, ...]:
    """Return one row per behaviour and log length; the one in the middle of the cross comes once."""
    cross = CROSSES[preset.name]
    pairs = [(width, cross.usual_rows) for width in cross.widths]
    pairs += [(cross.usual_width, rows) for rows in cross.lengths]
    return tuple(dict.fromkeys(f"width-{width:g}-rows-{rows}" for width, rows in pairs))


def _run_shift(row: str, context: Context) -> None:
    """Fit every method on logs of this width and length, and keep the errors."""
    log, cross = shifted_log(row), CROSSES[context.preset.name]
    panels = ["width"] * (log.rows == cross.usual_rows) + ["rows"] * (log.width == cross.usual_width)
    for method in SHIFT_METHODS:
        keep_trials(
            context,
            context.place("shift", row, method),
            run_of(method, context.preset),
            log,
            SHIFT_TRIALS[context.preset.name],
            lambda trials: {"width": log.width, "rows": log.rows, "panels": panels, **errors_field(trials)},
        )


def shifted_log(row: str) -> ShiftedLog:
    """Return the log that the name of a row of `shift` describes."""
    found = re.fullmatch(r"width-([0-9.]+)-rows-([0-9]+)", row)
    if found is None:
        raise InputError(f"row {row!r} is unknown; expected width-WIDTH-rows-ROWS")
    return ShiftedLog(rows=int(found[2]), width=float(found[1]))


SHIFT = Experiment("shift", _shift_rows, _run_shift, SHIFT_METHODS)

# Figure 2: Q over torque and dummy at several pendulum states, KMIFQE with its metric beside FQE and the exact Q.
FIG2_METHODS = ("kmifqe-paper", "fqe-paper")
FIG2_SEEDS = {"smoke": 2, "small": 2, "fast": 3, "paper": 3}  # trainings on one log; the first is drawn
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


def _run_landscapes(row: str, context: Context) -> None:
    """Fit each method on one log and keep its Q on a grid of actions, with the exact Q beside it."""
    preset = context.preset
    points = POINTS[preset.name]
    for method in FIG2_METHODS:
        run = run_of(method, preset)

        def describe(trials: Trials, estimator: Estimator = run.estimator) -> dict[str, Any]:
            return _landscape_fields(estimator, trials, points) | errors_field(trials)

        keep_trials(
            context,
            context.place("fig2", row, method),
            run,
            mixture_log(preset, dummies=1),
            (1, FIG2_SEEDS[preset.name]),
            describe,
            states=STATES,
            points=points,
        )


FIG2 = Experiment("fig2", lambda preset: ("one-dummy",), _run_landscapes, FIG2_METHODS)


def _landscape_fields(estimator: Estimator, trials: Trials, points: int) -> dict[str, Any]:
    """Return Q of the first seed at STATES over points × points actions, the exact Q, and how they differ."""
    (trial,), (estimate,) = trials
    axis = np.linspace(-MAX_TORQUE, MAX_TORQUE, points)
    states = np.asarray(observe(jnp.array([state[1:] for state in STATES])))
    targets = trial.target(states)
    torque, dummy = (side.ravel() for side in np.meshgrid(axis, axis, indexing="ij"))
    no_dummy = np.stack([axis, np.zeros(points)], axis=1)
    exact = _over_actions(lambda s, a: exact_q(s, a, trial.target), states, no_dummy).round(DECIMALS)
    fields: dict[str, Any] = {
        "axis": axis,
        "states": [{"name": name, "angle": angle, "speed": speed} for name, angle, speed in STATES],
        "target_torque": targets[:, 0],
        "exact": exact,
    }
    of_seeds = list(trained_q(estimator, estimate, trial.problem).values())
    if not of_seeds:  # every seed diverged
        return fields
    metrics = metrics_of(estimator, estimate, trial.problem, states, targets)
    every_action = np.stack([torque, dummy], axis=1)
    q = np.stack([_over_actions(of_seed, states, every_action) for of_seed in of_seeds])
    q = q.reshape(-1, len(states), points, points)
    at_target = np.stack([of_seed(states, targets) for of_seed in of_seeds])
    target_error = at_target - exact_q(states, targets, trial.target)
    return fields | {
        "q": np.round(q[0], DECIMALS),
        "metric": None if metrics is None else metrics[0],
        "summary": {
            "target_error": target_error.mean(axis=1),
            "target_error_by_state": target_error,
            "rmse": np.sqrt(((q - exact[None, :, :, None]) ** 2).mean(axis=(1, 2, 3))),
            # How far Q moves along the dummy, which does nothing, and along the torque.
            "along_dummy": np.sqrt(q.var(axis=3).mean(axis=2)).mean(axis=1),
            "along_torque": np.sqrt(q.mean(axis=3).var(axis=2)).mean(axis=1),
            "exact_along_torque": float(np.sqrt(exact.var(axis=1)).mean()),
        },
    }


def exact_q(states: np.ndarray, actions: np.ndarray, target: WithDummies) -> np.ndarray:
    """Return Q of the target policy at rows of observations and actions, normalised: one step, then its value.

    `states` are observations and `actions` torque and dummy, one row each; `target` is the policy that is judged.
    """
    after, reward, _ = step(state_of(jnp.asarray(states)), jnp.asarray(actions, jnp.float32))
    value_after = value_of_states(np.asarray(observe(after)), target, GAMMA)
    return (1.0 - GAMMA) * np.asarray(reward) + GAMMA * value_after


def _over_actions(
    q: Callable[[np.ndarray, np.ndarray], np.ndarray], states: np.ndarray, actions: np.ndarray
) -> np.ndarray:
    """Return q of every state with every action, states × actions."""
    return np.stack([q(np.repeat(state[None], len(actions), axis=0), actions) for state in states])
