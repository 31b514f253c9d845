"""Repeated trials on Pendulum with dummies: logs, fits, and bias, variance and RMSE with standard errors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kmifqe.behavior.gaussian import GaussianBehavior
from kmifqe.estimators import Estimate, Estimator, KMIFQEConfig, Progress, fit, kmifqe
from kmifqe.estimators.base import Info, State, config_dict
from kmifqe.experiments.context import Context
from kmifqe.experiments.demo import GAMMA, DemoConfig, demo_estimators
from kmifqe.experiments.presets import Preset, Run
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.pendulum import collect, value_of_states
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE
from kmifqe.worlds.pendulum_policies import PendulumBehavior, WithDummies, load_pendulum_actors, with_dummies

MOMENTS: dict[str, Callable[[np.ndarray], float]] = {
    "rmse": lambda errors: math.sqrt(float(np.mean(errors**2))),
    "bias": lambda errors: float(np.mean(errors)),
    "bias_squared": lambda errors: float(np.mean(errors)) ** 2,
    "variance": lambda errors: variance(errors),
}


def trial_errors(errors: np.ndarray) -> dict[str, Any]:
    """Return RMSE, bias, bias² and variance of errors (logs × seeds), each with a standard error over logs.

    The standard errors are the jackknife's, leaving out a log at a time; None for fewer than three logs, as is
    the variance for fewer than two. A trial without a finite value leaves nothing but the count of those.
    """
    errors = np.asarray(errors, np.float64)
    diverged = int((~np.isfinite(errors)).sum())
    told: dict[str, Any] = {"diverged": diverged, "training_variance": None}
    logs, seeds = errors.shape
    if diverged == 0 and seeds > 1:
        told["training_variance"] = float(np.mean(np.var(errors, axis=1, ddof=1)))
    for name, moment in MOMENTS.items():
        known = diverged == 0 and (name != "variance" or logs > 1)
        told[name] = moment(errors) if known else None
        told[f"{name}_error"] = jackknife(moment, errors) if known and logs > 2 else None
    told["standard_error"] = told["rmse_error"]
    return told


def variance(errors: np.ndarray) -> float:
    """Return the variance of one trial, its log and its training drawn anew; unbiased, errors logs × seeds.

    The means over a log's seeds vary by σ²_log + σ²_training/seeds, so (1 − 1/seeds) σ²_training is added.
    """
    seeds = errors.shape[1]
    between = float(np.var(errors.mean(axis=1), ddof=1))
    within = float(np.mean(np.var(errors, axis=1, ddof=1))) if seeds > 1 else 0.0
    return between + (1.0 - 1.0 / seeds) * within


def jackknife(moment: Callable[[np.ndarray], float], errors: np.ndarray) -> float:
    """Return the standard error of a moment of errors (logs × seeds): logs are what is independent."""
    logs = len(errors)
    without = np.array([moment(np.delete(errors, k, axis=0)) for k in range(logs)])
    return math.sqrt((logs - 1) / logs * float(np.sum((without - without.mean()) ** 2)))


KEPT_TRIALS = 12  # logs held for the next method: it is judged on the same ones
# The demo's sizes, with fewer steps and metrics: a figure takes dozens of fits. 100 copies of the target network
# leave 0.95^100 < 1 % of the start.
SMALL = DemoConfig(steps=5_000, target_period=50, fqe_steps=20_000)
SMALL_METRIC_PERIOD = 4
DUMMY_STREAM = 1  # keeps the dummies' random numbers apart from those of other uses of a log's seed


@dataclass(frozen=True)
class MixtureLog:
    """A log of the paper's behaviour: torques from N(μ̃(s), (0.5 a_max)²) and a share of U, dummies U."""

    dummies: int
    rows: int
    uniform_share: float


@dataclass(frozen=True)
class ShiftedLog:
    """A log of N([π̃₁(s), 0.5 a_max], (width·a_max)² I): the dummy's mean is a quarter of its range off the target.

    The narrower it is, the fewer logged actions lie near the target's.
    """

    rows: int
    width: float  # standard deviation, in half action ranges


class Trial(NamedTuple):
    """A log as estimators see it, the policy they judge, and what they should say."""

    problem: Problem
    target: WithDummies
    truth: float  # of the logged first states: exact, as the dynamics are deterministic


def mixture_log(preset: Preset, dummies: int) -> MixtureLog:
    """Return the log of a preset: the paper's, or the demo's (uniform torques) for `small`."""
    if preset.name == "small":
        return MixtureLog(dummies, SMALL.rows, SMALL.uniform_share)
    return MixtureLog(dummies, preset.pendulum_rows, uniform_share=0.2)


def run_of(method: str, preset: Preset) -> Run:
    """Return the estimator and steps of a preset: for `small` nearly the demo's, which were tried at that size."""
    if preset.name != "small":
        return preset.run_of(method, "pendulum")
    runs = {estimator.name: Run(estimator, steps) for estimator, steps in demo_estimators(SMALL)}
    estimator, steps = runs[method]
    if isinstance(estimator.config, KMIFQEConfig):
        estimator = kmifqe(replace(estimator.config, metric_period=SMALL_METRIC_PERIOD))
    return Run(estimator, steps)


@lru_cache(maxsize=KEPT_TRIALS)
def make_trial(log: MixtureLog | ShiftedLog, seed: int) -> Trial:
    """Return the log that `seed` draws, as a problem, with its truth."""
    target_actor, behavior_mean = load_pendulum_actors()
    behavior: PendulumBehavior | GaussianBehavior
    if isinstance(log, MixtureLog):
        target = with_dummies(target_actor, log.dummies)
        behavior = PendulumBehavior(behavior_mean, log.dummies, uniform_share=log.uniform_share)
        transitions = collect(seed, behavior, log.rows)
    else:
        target = with_dummies(target_actor, 1)
        behavior = GaussianBehavior(_off_target, log.width, target.low, target.high)
        alone = PendulumBehavior(target_actor, 0, std=log.width, uniform_share=0.0)
        transitions = _with_gaussian_dummy(collect(seed, alone, log.rows), log.width, seed)
    first_states = transitions.states[transitions.first_rows]
    return Trial(
        problem=Problem.build(transitions, target, behavior, GAMMA),
        target=target,
        truth=float(np.mean(value_of_states(first_states, target, GAMMA))),
    )


@cache
def _target_actor() -> Callable[[np.ndarray], np.ndarray]:
    return load_pendulum_actors()[0]


def _off_target(states: np.ndarray) -> np.ndarray:
    """Return the shifted behaviour's mean: the target's torque, the dummy at half its greatest value."""
    torques = _target_actor()(states)
    return np.concatenate([torques, np.full((len(torques), 1), 0.5 * MAX_TORQUE, np.float32)], axis=1)


def _with_gaussian_dummy(log: Transitions, width: float, seed: int) -> Transitions:
    """Return the log with a dummy drawn beside every torque: it does nothing, so it may be drawn afterwards."""
    draws = np.random.default_rng([seed, DUMMY_STREAM]).standard_normal((len(log), 1))
    dummy = (MAX_TORQUE * (0.5 + width * draws)).astype(np.float32)
    return Transitions.from_arrays(
        observations=log.states,
        actions=np.concatenate([log.actions, dummy], axis=1),
        rewards=log.rewards,
        terminals=log.terminated,
        timeouts=log.truncated,
        next_observations=log.next_states,
        name=f"{log.name}, Gaussian dummy",
    )


def fit_trials(
    run: Run,
    log: MixtureLog | ShiftedLog,
    logs: int,
    seeds: int,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[list[Trial], list[Estimate]]:
    """Return every trial with its estimate: `logs` logs, and on each `seeds` trainings that no other log has."""
    trials, estimates = [], []
    for k in range(logs):
        trial = make_trial(log, k)
        own = range(k * seeds, (k + 1) * seeds)
        trials.append(trial)
        estimates.append(
            fit(run.estimator, trial.problem, seeds=own, steps=run.steps, on_progress=on_progress)
        )
    return trials, estimates


def settings_of(run: Run, log: MixtureLog | ShiftedLog, logs: int, seeds: int) -> dict[str, Any]:
    """Return everything that decides the outcome of `fit_trials`, for a record."""
    return {
        "log": asdict(log),
        "gamma": GAMMA,
        "logs": logs,
        "seeds_per_log": seeds,
        "steps": run.steps,
        "estimator": config_dict(run.estimator.config),
    }


def trial_fields(trials: Sequence[Trial], estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return V̂ (logs × seeds), each log's truth, the learned bandwidths where there are any, and the seconds."""
    fields = {
        "values": np.stack([estimate.values for estimate in estimates]),
        "truths": [trial.truth for trial in trials],
        "episodes": int(trials[0].problem.counts.episodes),
        "fit_seconds": [round(estimate.seconds, 3) for estimate in estimates],
    }
    if "h" in estimates[0].infos:
        fields["h"] = np.stack([estimate.infos["h"][-1] for estimate in estimates])
        fields["ess"] = np.stack([estimate.infos["ess"][-1] for estimate in estimates])
    return fields


def errors_of(trials: Sequence[Trial], estimates: Sequence[Estimate]) -> np.ndarray:
    """Return V̂ minus the truth of its own log, logs × seeds (× bandwidths, where they were swept)."""
    values = np.stack([estimate.values for estimate in estimates])
    truths = np.array([trial.truth for trial in trials])
    return values - truths.reshape(-1, *[1] * (values.ndim - 1))


Trials = Sequence[Trial]
Describe = Callable[[Trials, Sequence[Estimate]], dict[str, Any]]


def errors_field(trials: Trials, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return the record's errors against the value of the logged first states."""
    return {"errors": {"logged_first_states": trial_errors(errors_of(trials, estimates))}}


def keep_trials(
    context: Context,
    place: tuple[str, str, str],
    chosen: Run,
    log: MixtureLog | ShiftedLog,
    counts: tuple[int, int],
    describe: Describe = errors_field,
    **more_settings: Any,
) -> None:
    """Fit and keep the trials of `place` (experiment, row, method), `counts` of them (logs, seeds on each).

    `describe` returns what the record says of them besides the trials themselves.
    """
    settings = settings_of(chosen, log, *counts) | more_settings
    if not context.wants(*place, settings):
        return
    experiment, row, method = place
    started = time.perf_counter()
    trials, estimates = fit_trials(chosen, log, *counts, context.on_progress)
    context.keep(
        experiment,
        row,
        method,
        settings=settings,
        wall_seconds=time.perf_counter() - started,
        **trial_fields(trials, estimates),
        **describe(trials, estimates),
    )


@cache  # one set of functions per sweep, so that jit compiles it once
def swept(config: KMIFQEConfig, bandwidths: tuple[float, ...]) -> Estimator:
    """Return KMIFQE with one network per bandwidth, all from the same random numbers; V̂ has shape (bandwidths,).

    Only the initial state knows a fixed h, so the estimator of one bandwidth serves them all. It is for `fit`
    without checkpoints; of the estimate only `values`, `trajectory` and `infos` make sense.
    """
    one = kmifqe(replace(config, bandwidth=bandwidths[0]))

    def init(key: Array, problem: Problem) -> State:
        def at(log_h: Array) -> State:
            state = one.init(key, problem)._replace(h=jnp.exp(log_h), log_h=log_h)
            # Brings what depends on h along; the networks have not changed, so the bootstrap values stay.
            assert one.refresh is not None
            return one.refresh("values", state, problem)

        return jax.vmap(at)(jnp.log(jnp.array(bandwidths)))

    def step(key: Array, t: Array, state: State, problem: Problem) -> tuple[State, Info]:
        return jax.vmap(lambda state: one.step(key, t, state, problem))(state)

    def refresh(kind: str, state: State, problem: Problem) -> State:
        assert one.refresh is not None
        return jax.vmap(partial(one.refresh, kind), in_axes=(0, None))(state, problem)

    def value(state: State, problem: Problem) -> Float[Array, " bandwidths"]:
        return jax.vmap(one.value, in_axes=(0, None))(state, problem)

    return one._replace(init=init, step=step, refresh=refresh, value=value)
