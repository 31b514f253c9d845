"""Pendulum with dummy actions: the demo, and the repeated trials behind the figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kmifqe.behavior import GaussianBehavior
from kmifqe.estimators import (
    Estimate,
    Estimator,
    KMIFQEConfig,
    SRDICEConfig,
    make_fqe,
    make_kmifqe,
    make_sr_dice,
)
from kmifqe.estimators.base import Info, State, config_dict
from kmifqe.estimators.fqe import PAPER as PAPER_FQE
from kmifqe.estimators.kmifqe.algorithm import RefreshKind
from kmifqe.experiments.context import Context
from kmifqe.experiments.presets import Preset, Run
from kmifqe.experiments.records import Errors, Place
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.pendulum import TrueValue, collect, true_value, value_of_states
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE
from kmifqe.worlds.pendulum_policies import PendulumBehavior, WithDummies, load_pendulum_actors, with_dummies

GAMMA = 0.95  # the paper's, for Pendulum
DEMO_TRUTH_EPISODES = 4_000
KEPT_TRIALS = 12  # logs held for the next method, which is judged on the same ones
DUMMY_STREAM = 1  # keeps the dummies' random numbers apart from those of other uses of a log's seed


@dataclass(frozen=True)
class SmallSizes:
    """Sizes of the preset `small`, whose figures need dozens of fits on two cores. The paper's need a GPU."""

    dummies: int = 2  # the metric's gain is clear of the noise; more dummies cost more time
    rows: int = 60_000
    uniform_share: float = (
        1.0  # torques drawn uniformly; see docs/evidence/demo.md for the paper's mixture (0.2)
    )
    hidden: int = 64
    steps: int = 5_000
    target_period: int = 50  # 0.95^100 < 1 %: the copies of the target network have converged
    learning_rate: float = 3e-3  # falls to a hundredth: so few steps must fit as well as the paper's many
    clip: float = 10.0  # the paper's 2 costs a third more bias on such a log (docs/evidence/demo.md)
    fqe_steps: int = 20_000
    sr_dice_stages: tuple[int, int, int] = (2_000, 6_000, 12_000)
    sr_dice_learning_rate: float = 1e-3  # three times the paper's, for a twentieth of its steps


SMALL = SmallSizes()
SMALL_METRIC_PERIOD = 4


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


Log = MixtureLog | ShiftedLog
DEMO = MixtureLog(dummies=2, rows=60_000, uniform_share=1.0)  # docs/evidence/demo.md says why


class Trial(NamedTuple):
    """A log as estimators see it, the policies, and what estimators should say."""

    transitions: Transitions
    problem: Problem
    target: WithDummies
    behavior: PendulumBehavior | GaussianBehavior
    truth: float  # of the logged first states: exact, as the dynamics are deterministic


class DemoProblem(NamedTuple):
    """The demo's log, the two policies, and what should be found."""

    trial: Trial
    truth: TrueValue  # of the target policy, over the population of first states
    behavior_value: TrueValue  # of the policy that collected the log


def demo_problem(log: MixtureLog, seed: int) -> DemoProblem:
    """Collect the log with the shipped behaviour, and measure both policies' values by rolling them out."""
    trial = make_trial(log, seed)
    return DemoProblem(
        trial=trial,
        truth=true_value(seed, trial.target, GAMMA, DEMO_TRUTH_EPISODES),
        behavior_value=true_value(seed, trial.behavior, GAMMA, DEMO_TRUTH_EPISODES),  # type: ignore[arg-type]
    )


def small_runs(config: SmallSizes = SMALL) -> dict[str, Run]:
    """Return the paper's four methods in the sizes of the preset `small`."""
    learned = KMIFQEConfig(
        hidden=config.hidden,
        batch=256,
        learning_rate=config.learning_rate,
        decay_steps=config.steps,
        target_period=config.target_period,
        clip=(1e-3, config.clip),
        metric_period=SMALL_METRIC_PERIOD,
    )
    ratio = SRDICEConfig(
        hidden=config.hidden,
        features=config.hidden,
        ratio_batch=1024,
        stages=config.sr_dice_stages,
        learning_rate=config.sr_dice_learning_rate,
        center_rewards=False,
    )
    return {
        "kmifqe-paper": Run(make_kmifqe(learned), config.steps),
        "kmifqe-identity": Run(make_kmifqe(replace(learned, metric="identity")), config.steps),
        "fqe-paper": Run(make_fqe(replace(PAPER_FQE, hidden=config.hidden)), config.fqe_steps),
        "sr-dice": Run(make_sr_dice(ratio), sum(config.sr_dice_stages)),
    }


def mixture_log(preset: Preset, dummies: int) -> MixtureLog:
    """Return the log of a preset: the paper's, or one of uniform torques for `small`."""
    if preset.name == "small":
        return MixtureLog(dummies, SMALL.rows, SMALL.uniform_share)
    return MixtureLog(dummies, preset.rows["pendulum"], uniform_share=0.2)


def run_of(method: str, preset: Preset) -> Run:
    """Return the estimator and steps of a preset: those that were tried at that size for `small`."""
    return small_runs()[method] if preset.name == "small" else preset.run_of(method, "pendulum")


@lru_cache(maxsize=KEPT_TRIALS)
def make_trial(log: Log, seed: int) -> Trial:
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
    problem = Problem.build(transitions, target, behavior, GAMMA)
    return Trial(transitions, problem, target, behavior, logged_value(transitions, target, GAMMA))


def logged_value(transitions: Transitions, target: WithDummies, gamma: float) -> float:
    """Return the exact mean value of the target over a log's first states.

    `transitions` is a log of Pendulum, `target` the policy that is judged, `gamma` the discount.
    """
    return float(np.mean(value_of_states(transitions.states[transitions.first_rows], target, gamma)))


def _off_target(states: np.ndarray) -> np.ndarray:
    """Return the shifted behaviour's mean: the target's torque, the dummy at half its greatest value."""
    torques = _target_actor()(states)
    return np.concatenate([torques, np.full((len(torques), 1), 0.5 * MAX_TORQUE, np.float32)], axis=1)


@cache
def _target_actor() -> Callable[[np.ndarray], np.ndarray]:
    return load_pendulum_actors()[0]


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


class Trials(NamedTuple):
    """Every log with the estimate of its trainings."""

    trials: list[Trial]
    estimates: list[Estimate]

    @property
    def values(self) -> np.ndarray:
        """V̂, logs × seeds (× bandwidths, where they were swept)."""
        return np.stack([estimate.values for estimate in self.estimates])

    @property
    def errors(self) -> np.ndarray:
        """V̂ minus the truth of its own log, shaped as `values`."""
        truths = np.array([trial.truth for trial in self.trials])
        return self.values - truths.reshape(-1, *[1] * (self.values.ndim - 1))

    def last(self, info: str) -> np.ndarray | None:
        """Return what a series such as "h" ended with, shaped as `values`; None where estimates lack it."""
        if info not in self.estimates[0].infos:
            return None
        return np.stack([estimate.infos[info][-1] for estimate in self.estimates])


def errors_field(trials: Trials) -> dict[str, Any]:
    """Return the record's errors against the value of the logged first states."""
    return {"errors": {"logged_first_states": trial_errors(trials.errors)}}


def keep_trials(
    context: Context,
    place: Place,
    run: Run,
    log: Log,
    counts: tuple[int, int],
    describe: Callable[[Trials], dict[str, Any]],
    **more_settings: Any,
) -> None:
    """Fit the trials of a method and keep their record, unless it is there.

    Args:
        context: the options of this call of `reproduce`.
        place: which record it is.
        run: the estimator and its steps.
        log: what the logs are drawn from, log k with the seed k.
        counts: how many logs, and how many trainings on each, with seeds that no other log has.
        describe: returns the fields of the record besides the trials themselves.
        more_settings: what decides the outcome besides `run`, `log` and `counts`.
    """
    logs, seeds = counts
    settings = {
        "log": asdict(log),
        "gamma": GAMMA,
        "logs": logs,
        "seeds_per_log": seeds,
        "steps": run.steps,
        "estimator": config_dict(run.estimator.config),
    } | more_settings
    if not context.wants(place, settings):
        return
    started = time.perf_counter()
    done = Trials([], [])
    for k in range(logs):
        trial = make_trial(log, k)
        estimate, problem = context.fit(trial.problem, run, seeds=range(k * seeds, (k + 1) * seeds))
        if problem is not trial.problem:  # the data moved to host memory: those on the device are gone
            make_trial.cache_clear()
        done.trials.append(trial._replace(problem=problem))
        done.estimates.append(estimate)
    context.keep(
        place,
        settings,
        time.perf_counter() - started,
        values=done.values,
        truths=[trial.truth for trial in done.trials],
        episodes=int(problem.counts.episodes),
        fit_seconds=[round(estimate.seconds, 3) for estimate in done.estimates],
        h=done.last("h"),
        ess=done.last("ess"),
        **describe(done),
    )


def variance(errors: np.ndarray) -> float:
    """Return the variance of one trial, its log and its training drawn anew; unbiased, errors logs × seeds.

    The means over a log's seeds vary by σ²_log + σ²_training/seeds, so (1 − 1/seeds) σ²_training is added.
    """
    seeds = errors.shape[1]
    between = float(np.var(errors.mean(axis=1), ddof=1))
    within = float(np.mean(np.var(errors, axis=1, ddof=1))) if seeds > 1 else 0.0
    return between + (1.0 - 1.0 / seeds) * within


MOMENTS: dict[str, Callable[[np.ndarray], float]] = {
    "rmse": lambda errors: math.sqrt(float(np.mean(errors**2))),
    "bias": lambda errors: float(np.mean(errors)),
    "bias_squared": lambda errors: float(np.mean(errors)) ** 2,
    "variance": variance,
}


def trial_errors(errors: np.ndarray) -> Errors:
    """Return RMSE, bias, bias² and variance of errors (logs × seeds), each with a standard error over logs.

    The standard errors are the jackknife's, leaving out a log at a time; None for fewer than three logs, as is
    the variance for fewer than two. A trial without a finite value leaves nothing but the count of those.
    """
    errors = np.asarray(errors, np.float64)
    logs, seeds = errors.shape
    diverged = int((~np.isfinite(errors)).sum())
    training = float(np.mean(np.var(errors, axis=1, ddof=1))) if diverged == 0 and seeds > 1 else None
    found: Errors = {"diverged": diverged, "training_variance": training}
    for name, moment in MOMENTS.items():
        known = diverged == 0 and (name != "variance" or logs > 1)
        found[name] = moment(errors) if known else None
        found[f"{name}_error"] = jackknife(moment, errors) if known and logs > 2 else None
    return found | {"standard_error": found["rmse_error"]}


def jackknife(moment: Callable[[np.ndarray], float], errors: np.ndarray) -> float:
    """Return the standard error of a moment of errors (logs × seeds): logs are what is independent."""
    logs = len(errors)
    without = np.array([moment(np.delete(errors, k, axis=0)) for k in range(logs)])
    return math.sqrt((logs - 1) / logs * float(np.sum((without - without.mean()) ** 2)))


@cache  # one set of functions per sweep, so that jit compiles it once
def swept(config: KMIFQEConfig, bandwidths: tuple[float, ...]) -> Estimator:
    """Return KMIFQE with one network per bandwidth, all from the same random numbers; V̂ has shape (bandwidths,).

    Only the initial state knows a fixed h, so the estimator of one bandwidth serves them all. It is for a fit
    without checkpoints; of the estimate only `values`, `trajectory` and `infos` make sense.
    """
    one = make_kmifqe(replace(config, bandwidth=bandwidths[0]))
    assert one.refresh is not None
    run = one.refresh.run

    def init(key: Array, problem: Problem) -> State:
        def at(log_h: Array) -> State:
            state = one.init(key, problem)._replace(h=jnp.exp(log_h), log_h=log_h)
            # Brings what depends on h along; the networks have not changed, so the bootstrap values stay.
            return run(RefreshKind(copy=True), state, problem)

        return jax.vmap(at)(jnp.log(jnp.array(bandwidths)))

    def step(key: Array, t: Array, state: State, problem: Problem) -> tuple[State, Info]:
        return jax.vmap(lambda state: one.step(key, t, state, problem))(state)

    def refresh(kind: Any, state: State, problem: Problem) -> State:
        return jax.vmap(partial(run, kind), in_axes=(0, None))(state, problem)

    def value(state: State, problem: Problem) -> Float[Array, " bandwidths"]:
        return jax.vmap(one.value, in_axes=(0, None))(state, problem)

    return one._replace(init=init, step=step, refresh=one.refresh._replace(run=refresh), value=value)
