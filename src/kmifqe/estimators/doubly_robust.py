"""Doubly robust estimates: what a fitted Q says, plus its weighted TD errors along what was logged.

With Q and V normalised as V̂ is and δ = (1 − γ) r + γ V(s') − Q(s, a):

    dr, wdr   mean of V(s₀) + Σₜ γᵗ · Σᵢ wᵢₜ δᵢₜ,    w per-decision weights, for wdr self-normalised
    mdr       mean of V(s₀) + E_log[ζ(s, a) δ]/(1 − γ),    ζ how often the target visits a row, by the log's visits

(Jiang and Li, 2016; Thomas and Brunskill, 2016; Kallus and Uehara, 2020.) Where Q is right every δ is 0 on average,
and where the weights are right the sum mends whatever Q has wrong: one of the two is enough. Q is FQE's. The
weights of a deterministic target are those of a kernel, whose bias is then only that of δ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.errors import InputError
from kmifqe.estimators.base import (
    Estimator,
    Info,
    State,
    mean_over_rows,
    over_target,
    require,
    row_weights,
)
from kmifqe.estimators.fqe import FQEConfig, fqe_within
from kmifqe.estimators.importance_sampling import ImportanceSamplingConfig, answered, per_decision
from kmifqe.estimators.registry import PRESETS, EstimatorEntry, entry_named
from kmifqe.estimators.sizing import FitSize
from kmifqe.estimators.trajectories import check_trajectories, log_ratios, steps_of
from kmifqe.mdp.problem import Problem

TOLD = ("effective_episodes", "largest_share", "bandwidth")  # of the weights, before any Q is known
CHUNK = 8_192  # rows at which Q is asked at a time: bounds the memory


@dataclass(frozen=True)
class DRConfig(FQEConfig):
    """Settings of per-decision doubly robust estimates: FQE's, and those of the weights."""

    self_normalized: bool = True  # whether the weights of every step add up to 1
    bandwidth: float | None = None  # of the kernel, in half action ranges; None: chosen as wpdis chooses it
    largest_ratio: float = float("inf")  # of one step

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights.__post_init__()

    @property
    def weights(self) -> ImportanceSamplingConfig:
        """The settings of the weights."""
        return ImportanceSamplingConfig(
            self_normalized=self.self_normalized, bandwidth=self.bandwidth, largest_ratio=self.largest_ratio
        )


class DRState(NamedTuple):
    """FQE's state, and what is known of the weights before any Q is."""

    fqe: State
    bandwidth: Float[Array, ""]
    info: dict[str, Array]


def td_errors(fqe: Estimator, state: State, problem: Problem) -> Float[Array, " n"]:
    """Return δ of every row of `problem`, by the Q that `fqe` has learned in `state`, in chunks of rows."""
    assert fqe.q is not None
    q = partial(fqe.q, state, problem)

    def of_rows(rows: Array) -> Array:
        later = jnp.where(problem.terminated[rows], 0.0, over_target(q, problem, rows))
        now = q(problem.states[rows], problem.actions[rows])
        return (1.0 - problem.gamma) * problem.rewards[rows] + problem.gamma * later - now

    return _by_chunks(of_rows, len(problem))


def mended_along_episodes(
    weights: ImportanceSamplingConfig, h: Array, q: Estimator, state: State, problem: Problem
) -> Float[Array, ""]:
    """Return what the Q of `q` in its `state` says, mended by its TD errors along the episodes of `problem`.

    The per-decision weights are those of `weights`, with the bandwidth `h` where the target is deterministic.
    """
    steps, errors = steps_of(problem), td_errors(q, state, problem)
    of_steps = jnp.where(steps.there, errors[steps.rows], 0.0) / (1.0 - problem.gamma)
    log_ratio = log_ratios(steps, h, problem.action_dim, weights.largest_ratio)
    e = jnp.ones(len(steps.ended)) if problem.episode_weights is None else problem.episode_weights
    sums = per_decision(weights, steps._replace(rewards=of_steps), log_ratio, e, problem.gamma)
    # Beyond the last step there is nothing to mend: Q itself stands for what was not seen.
    return q.value(state, problem) + sums.value * (1.0 - sums.unseen)


def mended_over_rows(
    ratio: Callable[[Array], Float[Array, " rows"]], q: Estimator, state: State, problem: Problem
) -> Float[Array, ""]:
    """Return what the Q of `q` in its `state` says, mended by its TD errors over all rows of `problem`.

    `ratio` tells, of row numbers, how often the target visits them for every visit of the log.
    """
    errors, weights = td_errors(q, state, problem), row_weights(problem, slice(None))
    weights = None if weights is None else weights / jnp.mean(weights)
    ratios = _by_chunks(ratio, len(problem))
    return q.value(state, problem) + mean_over_rows(ratios * errors, weights) / (1.0 - problem.gamma)


def _by_chunks(of_rows: Callable[[Array], Float[Array, " rows"]], n: int) -> Float[Array, " n"]:
    size = min(CHUNK, n)
    chunks = jnp.minimum(jnp.arange(-(-n // size) * size), n - 1).reshape(-1, size)
    return jax.lax.map(of_rows, chunks).reshape(-1)[:n]


@cache  # one set of functions per name and config, so that jit compiles it once
def make_dr(name: str, config: DRConfig) -> Estimator:
    """Return the per-decision doubly robust estimator called `name` with the settings `config`."""
    fqe, offered = fqe_within(config)

    def init(key: Array, problem: Problem) -> DRState:
        check_trajectories(name, problem)
        _, h, info = answered(config.weights, steps_of(problem), problem)
        # What the standard error and the extrapolation say of rewards does not hold for TD errors.
        told = {name: told for name, told in info.items() if name in TOLD}
        return DRState(fqe.init(key, problem), h, told)

    def step(key: Array, t: Array, state: DRState, problem: Problem) -> tuple[DRState, Info]:
        inner, info = fqe.step(key, t, state.fqe, problem)
        return state._replace(fqe=inner), info | state.info

    def final_value(state: DRState, problem: Problem) -> Float[Array, ""]:
        return mended_along_episodes(config.weights, state.bandwidth, fqe, state.fqe, problem)

    return Estimator(
        name,
        config,
        init,
        step,
        default_steps=fqe.default_steps,
        final_value=final_value,
        uses_density=True,
        **offered,
    )


@dataclass(frozen=True)
class MDRConfig(FQEConfig):
    """Settings of marginalised doubly robust estimates: FQE's, and which estimator learns the ratio."""

    ratio: str = (
        "sr-dice"  # an estimator of the registry that offers a ratio; it takes the settings it shares
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.ratio), "ratio", repr(self.ratio), "the name of an estimator with a ratio")


class MDRState(NamedTuple):
    """The states of the two estimators that are trained side by side."""

    fqe: State
    ratio: State


def _ratio_estimator(config: MDRConfig) -> Estimator:
    """Return the estimator that learns the ratio, with what settings it shares with FQE and its own steps' shares."""
    entry = entry_named(config.ratio)
    known = {field.name for field in fields(entry.config)}
    changes = entry.at_preset("fast", config.decay_steps or None)
    shared = ("hidden", "batch", "learning_rate", "inputs", "decay_steps")
    changes |= {name: getattr(config, name) for name in shared if name in known}
    made = entry.make(replace(entry.config, **changes))
    if made.ratio is None:
        raise InputError(
            f"ratio is {config.ratio!r}, which learns no density ratio; expected one like sr-dice"
        )
    return made


@cache  # one set of functions per config, so that jit compiles it once
def make_mdr(config: MDRConfig) -> Estimator:
    """Return the marginalised doubly robust estimator with the settings `config`."""
    (fqe, offered), other = fqe_within(config), _ratio_estimator(config)
    assert other.ratio is not None
    ratio = other.ratio

    def init(key: Array, problem: Problem) -> MDRState:
        for_q, for_ratio = jax.random.split(key)
        return MDRState(fqe.init(for_q, problem), other.init(for_ratio, problem))

    def step(key: Array, t: Array, state: MDRState, problem: Problem) -> tuple[MDRState, Info]:
        for_q, for_ratio = jax.random.split(key)
        of_q, info = fqe.step(for_q, t, state.fqe, problem)
        of_ratio, ratio_info = other.step(for_ratio, t, state.ratio, problem)
        return MDRState(of_q, of_ratio), info | {"ratio_loss": ratio_info["loss"]}

    def final_value(state: MDRState, problem: Problem) -> Float[Array, ""]:
        return mended_over_rows(partial(ratio, state.ratio, problem), fqe, state.fqe, problem)

    return Estimator(
        "mdr",
        config,
        init,
        step,
        default_steps=other.default_steps,
        final_value=final_value,
        ratio=lambda state, problem, rows: ratio(state.ratio, problem, rows),
        **offered,
    )


def _mdr_at_preset(preset: str, steps: int | None) -> dict[str, Any]:
    """Return the steps over which the learning rate falls, which the stages of the ratio share out among them."""
    return {"decay_steps": steps or PRESETS[preset]}


_DR: dict[str, Any] = {
    "needs_density": True,
    "needs_trajectories": True,
    "page": "docs/estimators/doubly_robust.md",
    "steps_at": PRESETS.__getitem__,
    "sized": FitSize.settings,
    "avoid_when": "episodes are long: the weights degenerate, and their noise spoils what Q says",
}
ENTRIES = (
    EstimatorEntry(
        name="wdr",
        label="Weighted DR",
        color="#276419",
        dark_color="#8fce6a",
        config=DRConfig(),
        make=partial(make_dr, "wdr"),
        summary="FQE mended by its TD errors, with self-normalised per-decision weights",
        use_when="episodes are short and neither Q nor the weights are to be trusted alone",
        **_DR,
    ),
    EstimatorEntry(
        name="dr",
        label="DR",
        color="#7b3294",
        dark_color="#c9a0dc",
        config=DRConfig(self_normalized=False),
        make=partial(make_dr, "dr"),
        summary="FQE mended by its TD errors, with per-decision weights",
        use_when="as wdr, and an estimate without the bias of self-normalisation is wanted",
        **_DR,
    ),
    EstimatorEntry(
        name="mdr",
        label="Marginalised DR",
        color="#01665e",
        dark_color="#5ab4ac",
        config=MDRConfig(),
        make=make_mdr,
        needs_density=False,
        summary="FQE mended by its TD errors where the target goes, by a learned density ratio",
        page="docs/estimators/doubly_robust.md",
        at_preset=_mdr_at_preset,
        steps_at=PRESETS.__getitem__,
        sized=FitSize.settings,
        use_when="episodes are long or endless, and FQE alone is not to be trusted",
        avoid_when="the ratio cannot be learned either: a wrong ratio times a wrong Q mends nothing",
    ),
)
