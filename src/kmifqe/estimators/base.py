"""The one shape of an estimator, what comes out of a run, and the units and episode weights all of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kmifqe.errors import InputError
from kmifqe.mdp.host_rows import largest_magnitudes
from kmifqe.mdp.problem import Problem

State = Any  # a pytree: what the next step needs
Info = dict[str, Array]  # scalars a person wants to see: h, mean weight, ESS, loss


class Estimator(NamedTuple):
    """Pure functions for one seed; `fit` scans `step` and runs all seeds under one vmap.

    `refresh` runs after every `refresh_every` steps, outside the scan of steps: what is recomputed for all n
    rows (KMIFQE's Hessians) would, as a branch inside `step`, be carried and selected at every step.
    At a multiple of `restart_every` steps, before its refresh, a state can be rebuilt from what is left when
    the fields named in `refreshed` are taken out: the refresh recomputes those. 0: at any step.
    """

    name: str
    config: Any  # a frozen dataclass
    init: Callable[[Array, Problem], State]
    step: Callable[[Array, Array, State, Problem], tuple[State, Info]]  # key, t, state, problem
    value: Callable[[State, Problem], Float[Array, ""]]
    default_steps: int
    refresh: Callable[[str, State, Problem], State] | None = None  # kind, state, problem
    refresh_every: int = 0
    refresh_kind: Callable[[int], str] = lambda step: "all"  # what is due after so many steps
    refreshed: tuple[str, ...] = ()
    restart_every: int = 0
    settled: Callable[[State, Problem], Float[Array, ""]] | None = None  # V̂ to end with; None: `value` there


@dataclass(frozen=True)
class Estimate:
    """What one estimator said: a value per seed, and how it got there.

    Values are normalised, V = (1 − γ) E Σ γᵗ r; `discounted_return` is V/(1 − γ), as other libraries print.
    """

    estimator: str
    config: dict[str, Any]
    gamma: float
    seeds: tuple[int, ...]
    steps: int
    values: np.ndarray  # (seeds,)
    recorded_steps: np.ndarray  # (records,)
    trajectory: np.ndarray  # (records, seeds): V̂
    infos: dict[str, np.ndarray]  # each (records, seeds), averaged since the record before
    seconds: float
    device: str
    final_state: State = None
    bootstrap: bool = False  # every seed had its own episode weights: the spread is the finite log's too
    episodes: int = 0  # of the log; 0: not known
    measurements: dict[str, Any] = field(default_factory=dict)  # what trust.measure found in the final state

    @property
    def known(self) -> np.ndarray:
        """V̂ of the seeds that ended with a finite one: seeds train apart, so one that diverged spoils no other."""
        return self.values[np.isfinite(self.values)]

    @property
    def diverged(self) -> int:
        """How many seeds ended without a finite V̂; the figures below are about the others."""
        return len(self.values) - len(self.known)

    @property
    def value(self) -> float:
        """V̂: the mean over seeds; NaN if none has a value."""
        return float(np.mean(self.known)) if len(self.known) else float("nan")

    @property
    def spread(self) -> float:
        """Standard deviation of V̂ over seeds; NaN for fewer than two."""
        return float(np.std(self.known, ddof=1)) if len(self.known) > 1 else float("nan")

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over seeds; what the log's finite size does to V̂ is no part of it."""
        return self.spread / float(np.sqrt(max(len(self.known), 1)))

    @property
    def discounted_return(self) -> float:
        """V̂/(1 − γ), the expected discounted return."""
        return self.value / (1.0 - self.gamma)

    @property
    def corrected(self) -> float | None:
        """V̂ less the kernel's bias, where a kernel's was measured and not subtracted already (docs/intervals.md)."""
        asked = self.config.get("bias")
        if asked == "reported":
            return self.value - float(np.mean(self.infos["bias"][-1][np.isfinite(self.values)]))
        if asked == "ignored" and "kernel_bias" in self.measurements:
            return self.value - float(self.measurements["kernel_bias"])
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON; infinities and NaN become None."""
        return {
            "estimator": self.estimator,
            "config": {name: plain(setting) for name, setting in self.config.items()},
            "gamma": self.gamma,
            "seeds": list(self.seeds),
            "bootstrap": self.bootstrap,
            "episodes": self.episodes,
            "measurements": self.measurements,
            "steps": self.steps,
            "value": plain(self.value),
            "spread": plain(self.spread),
            "standard_error": plain(self.standard_error),
            "discounted_return": plain(self.discounted_return),
            "corrected": plain(self.corrected),
            "values": plain(self.values),
            "diverged": self.diverged,
            "trajectory": {
                "step": plain(self.recorded_steps),
                "value": plain(self.trajectory),
                **{name: plain(series) for name, series in self.infos.items()},
            },
            "seconds": round(self.seconds, 3),
            "device": self.device,
        }

    def __repr__(self) -> str:
        seeds = f"{len(self.known)} of {len(self.seeds)}" if self.diverged else f"{len(self.seeds)}"
        return (
            f"Estimate({self.estimator}: V = {self.value:.5g} ± {self.spread:.3g} over {seeds} seeds, "
            f"discounted return {self.discounted_return:.5g}, {self.steps:,} steps, {self.seconds:.1f} s)"
        )


def plain(x: Any) -> Any:
    """Return x as JSON can hold it: arrays as nested lists, non-finite numbers as None."""
    if isinstance(x, np.ndarray):
        return [plain(item) for item in x.tolist()] if x.ndim else plain(x.item())
    if isinstance(x, list):
        return [plain(item) for item in x]
    if isinstance(x, float) and not np.isfinite(x):
        return None
    return x


def config_dict(config: Any) -> dict[str, Any]:
    """Return a config's fields as JSON can hold them."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()}


def check_config(config: Any) -> None:
    """Refuse a config whose counts, rates or input scale make no sense, naming the field and the value."""
    for name, value in asdict(config).items():
        if (
            name
            in (
                "hidden",
                "features",
                "batch",
                "ratio_batch",
                "target_period",
                "value_rows",
                "bandwidth_period",
                "metric_period",
            )
            and value < 1
        ):
            raise InputError(f"{name} is {value}; expected a whole number of at least 1")
        if name == "learning_rate" and not 0 < value < float("inf"):
            raise InputError(f"{name} is {value}; expected a positive number")
        if name == "tau" and not 0 < value <= 1:
            raise InputError(f"{name} is {value}; expected 0 < tau <= 1")
        if name == "inputs" and value not in ("raw", "standardized"):
            raise InputError(f"{name} is {value!r}; expected 'raw' or 'standardized'")
        if name == "stages" and min(value) < 1:
            raise InputError(f"{name} is {value}; expected at least 1 step in each")


def network_input(
    problem: Problem, states: Array, actions: Array, inputs: str, *, cut_actions: bool = False
) -> Array:
    """Return [s, a] as a network takes it: "raw", or "standardized" with actions scaled to [−1, 1]."""
    if inputs == "raw":
        return jnp.concatenate([states, actions], axis=-1)
    return jnp.concatenate(
        [standardized(problem, states), scaled(problem, actions, cut=cut_actions)], axis=-1
    )


def standardized(problem: Problem, states: Float[Array, "... q"]) -> Float[Array, "... q"]:
    """Return states with the log's mean taken off, in its standard deviations."""
    return (states - problem.state_mean) / problem.state_std


def scaled(problem: Problem, actions: Float[Array, "... d"], *, cut: bool = False) -> Float[Array, "... d"]:
    """Return actions with the action box as [−1, 1], cut to it where asked."""
    middle, half = action_scale(problem)
    in_half_ranges = (actions - middle) / half
    return jnp.clip(in_half_ranges, -1.0, 1.0) if cut else in_half_ranges


def action_scale(problem: Problem) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return the middle and half the range of the action box."""
    middle = 0.5 * (problem.action_high + problem.action_low)
    return middle, 0.5 * (problem.action_high - problem.action_low)


# Rewards whose largest magnitude lies between these are learned as they are. On a linear-quadratic world FQE's
# errors are much the same from 0.04 to 700, and several times larger at 0.005 and at 5,600 (docs/numbers.md).
REWARDS = (2.0**-6, 2.0**10)
# The same for each raw input column; wide, so that what the paper ran on raw states stays as it was.
INPUTS = (2.0**-16, 2.0**16)

EXPONENT_BITS = 0x7F80_0000  # of a float32


def reward_scale(problem: Problem) -> Float[Array, ""]:
    """Return the unit in which rewards are learned: 1, or a power of two where |r| is extreme throughout."""
    return _scale(jnp.max(jnp.abs(problem.rewards)), REWARDS)


def input_scale(problem: Problem, inputs: str) -> Float[Array, " q+d"]:
    """Return what to divide [s, a] by, column by column: 1, or a power of two where a raw column is extreme."""
    if inputs != "raw":
        return jnp.ones(problem.state_dim + problem.action_dim)
    largest = [largest_magnitudes(problem.states), largest_magnitudes(problem.actions)]
    return _scale(jnp.concatenate(largest), INPUTS)


def in_unit(x: Float[Array, ...], scale: Float[Array, ...]) -> Float[Array, ...]:
    """Return x/scale, and x itself, to the bit and in any fusion, where the scale is 1."""
    return jnp.where(scale == 1.0, x, x / scale)


def _scale(largest: Float[Array, ...], as_it_is: tuple[float, float]) -> Float[Array, ...]:
    """Return 1 for a magnitude within the bounds, or 0; else the power of two at or just below it."""
    bits = jax.lax.bitcast_convert_type(largest.astype(jnp.float32), jnp.int32)
    power = jax.lax.bitcast_convert_type(bits & EXPONENT_BITS, jnp.float32)
    low, high = as_it_is
    extreme = (power > 0) & ((largest < low) | (largest > high))
    return jnp.where(extreme, power, 1.0)


STREAM = 2**31 - 2  # folded into a seed's key: no step and no initial network shares this randomness


class RowMeans(NamedTuple):
    """Mean episode weight of groups of rows; 1 over all rows only where all episodes are equally long."""

    in_sample: Float[Array, ""]
    terminal: Float[Array, ""]  # of the in-sample rows that terminated; 1 where there are none
    ending: Float[Array, ""]  # share of the in-sample weight that the terminal rows hold


def bootstrapped(problem: Problem, keys: Array) -> Problem:
    """Return the problem with episode weights for the seed of every key, shape (seeds, episodes)."""
    episodes = problem.first_states.shape[0]

    def of_seed(key: Array) -> Array:
        weights = jax.random.exponential(jax.random.fold_in(key, STREAM), (episodes,))
        return weights / jnp.mean(weights)

    return replace(problem, episode_weights=jax.vmap(of_seed)(keys))


def of_seed(problem: Problem, weights: Array | None) -> Problem:
    """Return the problem as one seed sees it: all seeds share the arrays, each has its own weights or none."""
    return replace(problem, episode_weights=weights)


def row_weights(
    problem: Problem, rows: Array | slice, mean: Float[Array, ""] | None = None
) -> Float[Array, " rows"] | None:
    """Return the rows' episode weights, divided by `mean` where it is given; None where there are none."""
    if problem.episode_weights is None:
        return None
    weights = problem.episode_weights[problem.episode[rows]]
    return weights if mean is None else weights / mean


def row_means(problem: Problem) -> RowMeans | None:
    """Return what the weights of single rows are measured against, None where there are no weights."""
    weights = row_weights(problem, slice(problem.counts.in_sample))
    if weights is None:
        return None
    ends = weights[problem.counts.going_on :]
    total = jnp.sum(weights)
    terminal = jnp.mean(ends) if len(ends) else jnp.float32(1.0)
    return RowMeans(total / len(weights), terminal, jnp.sum(ends) / total)


def mean_over_rows(
    terms: Float[Array, " rows *columns"], weights: Float[Array, " rows"] | None
) -> Float[Array, ""]:
    """Return the mean of the terms, each row's times its weight where there are weights, whose mean is 1."""
    if weights is None:
        return jnp.mean(terms)
    return jnp.mean(weights.reshape(-1, *[1] * (terms.ndim - 1)) * terms)
