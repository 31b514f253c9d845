"""Importance sampling over whole episodes: trajectory-wise, per decision, self-normalised, and incremental.

With ρ₀:ₜ the product of an episode's ratios up to step t (`trajectories.py`), G its normalised discounted return:

    is      mean of ρ₀:T G over episodes
    wis     Σ ρ₀:T G / Σ ρ₀:T
    pdis    (1 − γ) Σₜ γᵗ · mean of ρ₀:ₜ rₜ
    wpdis   (1 − γ) Σₜ γᵗ · Σ ρ₀:ₜ rₜ / Σ ρ₀:ₜ
    incris  as pdis, but with only the last k ratios, k chosen for every t by covariance testing (Guo et al., 2017)

They need no training: one step answers, and every seed of a bootstrap is a replicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.estimators.base import Estimator, Info, require, require_choice, require_counts
from kmifqe.estimators.registry import EstimatorEntry
from kmifqe.estimators.trajectories import (
    LARGEST,
    Steps,
    check_trajectories,
    log_ratios,
    steps_of,
    widest_bandwidth,
)
from kmifqe.maths.kernel import effective_sample_size
from kmifqe.maths.slope import slope_choice
from kmifqe.mdp.problem import Problem

# Which ratios weight a reward: those of the whole episode, those up to its step, or the last of those.
RATIOS = ("episode", "so far", "recent")
# Half action ranges that SLOPE chooses from, so that two places on stands the one that is √2 times as wide.
BANDWIDTHS = tuple(0.03 * 2.0 ** (place / 4) for place in range(25))
TO_DOUBLE = 2  # places from h to √2 h, whose square is twice as large
LEAST_EPISODES = 10.0  # effective, from which a standard error is worth comparing


@dataclass(frozen=True)
class ImportanceSamplingConfig:
    """Settings of importance sampling."""

    ratios: str = "so far"  # one of RATIOS
    self_normalized: bool = True  # whether weights are divided by their sum; with recent ratios never
    # Of the kernel, in half action ranges; None: chosen by SLOPE, and its bias removed by extrapolation.
    bandwidth: float | None = None
    largest_ratio: float = float("inf")  # of one step; smaller values trade variance for bias
    window: int = 50  # incris: the most ratios that a reward keeps

    def __post_init__(self) -> None:
        require_choice(self, "ratios", RATIOS)
        require(
            self.bandwidth is None or self.bandwidth > 0, "bandwidth", self.bandwidth, "a positive number"
        )
        require(self.largest_ratio > 0, "largest_ratio", self.largest_ratio, "a positive number")
        require_counts(self, "window")


class Answer(NamedTuple):
    """What one bandwidth gives."""

    value: Float[Array, ""]
    influence: Float[Array, " m"]  # of every episode: how far it moves the value from the others' mean
    effective_episodes: Float[Array, ""]  # Kish's sample size of the weights, averaged over discounted time
    largest_share: Float[Array, ""]  # of all weight, that one episode holds, averaged alike
    unseen: Float[Array, ""]  # share of the discounted future that lies beyond the last logged step
    mean_weight: Float[Array, ""]  # of the episodes, averaged alike; its expectation is 1

    @property
    def standard_error(self) -> Float[Array, "*g"]:
        """Of the value, with episodes as units."""
        return jnp.sqrt(jnp.sum(self.influence**2, axis=-1))


class ImportanceSamplingState(NamedTuple):
    """The answer, which the one step gives."""

    value: Float[Array, ""]


def per_decision(
    config: ImportanceSamplingConfig, steps: Steps, log_ratio: Array, e: Array, gamma: Array
) -> Answer:
    """Return the answer that weights each reward by ratios up to its step.

    `config` says which ratios and whether weights are divided by their sum. `steps` are all episodes' steps,
    `log_ratio` the logarithm of each step's ratio, `e` the episodes' own weights, `gamma` the discount.
    """
    log_product = jnp.cumsum(log_ratio, axis=1)
    known = e[:, None] * steps.standing(e)
    # The product of an episode that was cut before may be far beyond all that are known: e^(…) of it is infinite.
    log_known = jnp.where(known > 0, log_product, -jnp.inf)
    relative = known * jnp.exp(log_known - jnp.max(log_known, axis=0))
    count, total = jnp.sum(known, axis=0), jnp.maximum(jnp.sum(relative, axis=0), 1e-30)
    is_recent = config.ratios == "recent"
    is_normalized = config.self_normalized and not is_recent
    if is_normalized:
        share = relative / total
    else:
        kept = _kept_log_product(steps, log_product, known, config.window) if is_recent else log_product
        share = known * jnp.exp(jnp.minimum(kept, LARGEST)) / count  # adds up to the mean weight
    discounts = (1.0 - gamma) * gamma ** jnp.arange(steps.there.shape[1])
    rewards = jnp.sum(share * steps.rewards, axis=0)
    centre = share if is_normalized else known / count
    influence = jnp.sum(discounts * (share * steps.rewards - centre * rewards), axis=1)
    # What was seen stands for what lies beyond the last step, as far as the target would still go on there.
    unseen = gamma ** steps.there.shape[1] * jnp.sum(relative[:, -1] * steps.goes_on[:, -1]) / total[-1]
    weights = share if is_recent else relative
    effective, largest = jax.vmap(effective_sample_size, 1)(weights), jnp.max(weights, axis=0)
    over_time = discounts / jnp.sum(discounts)
    return Answer(
        value=jnp.sum(discounts * rewards) / (1.0 - unseen),
        influence=influence / (1.0 - unseen),
        effective_episodes=1.0 / jnp.sum(over_time / effective),
        largest_share=jnp.sum(over_time * largest / jnp.maximum(jnp.sum(weights, axis=0), 1e-30)),
        unseen=unseen,
        mean_weight=jnp.sum(over_time * jnp.sum(share, axis=0)),
    )


def _kept_log_product(steps: Steps, log_product: Array, known: Array, window: int) -> Array:
    """Return, for every step, the logarithm of the product of those last ratios that its reward keeps.

    `known` is what each episode counts at each step (`Steps.standing`).

    E[ρ₀:ₜ r] = E[B r] + Cov(A, B r), where B is the product of the last k ratios and A that of those before, whose
    mean is 1. Leaving the covariance out makes a bias and saves variance: of all k up to `window` the one with the
    least estimated Cov² + Var(B r)/n is kept (Guo, Thomas and Brunskill, 2017, Section 5).
    """
    episodes, horizon = log_product.shape
    window = min(window, horizon)
    before = jnp.concatenate(
        [jnp.zeros((episodes, 1)), log_product], axis=1
    )  # column t: of all steps before t

    def at(t: Array) -> Array:
        left_out = jnp.maximum(t + 1 - jnp.arange(window + 1), 0)  # how many of the first ratios are dropped
        log_a = before[:, left_out]
        log_b = log_product[:, t][:, None] - log_a
        counts = known[:, t][:, None]
        shares = counts / jnp.maximum(jnp.sum(counts), 1e-30)
        a, b = jnp.exp(jnp.minimum(log_a, LARGEST)), jnp.exp(jnp.minimum(log_b, LARGEST))
        kept = b * steps.rewards[:, t][:, None]
        centred = kept - jnp.sum(shares * kept, axis=0)
        covariance = jnp.sum(shares * a * centred, axis=0)
        variance = jnp.sum(shares * centred**2, axis=0) * jnp.sum(shares**2)
        return log_b[:, jnp.argmin(covariance**2 + variance)]

    return jax.lax.map(at, jnp.arange(horizon)).T


def trajectory_wise(
    config: ImportanceSamplingConfig, steps: Steps, log_ratio: Array, e: Array, gamma: Array
) -> Answer:
    """Return the answer that weights each episode's return by all of its ratios.

    `config`, `steps`, `log_ratio`, `e` and `gamma` are as for `per_decision`.
    """
    log_product = jnp.sum(log_ratio, axis=1)
    relative = e * jnp.exp(log_product - jnp.max(log_product))
    total = jnp.maximum(jnp.sum(relative), 1e-30)
    weights = (
        relative / total
        if config.self_normalized
        else e * jnp.exp(jnp.minimum(log_product, LARGEST)) / jnp.sum(e)
    )
    horizon = steps.there.shape[1]
    discounts = (1.0 - gamma) * gamma ** jnp.arange(horizon)
    standing = steps.standing(e)
    returns = jnp.sum(discounts * standing * steps.rewards, axis=1)
    seen = jnp.sum(discounts * standing, axis=1) + gamma**horizon * jnp.where(
        steps.ended, standing[:, -1], 0.0
    )
    covered = jnp.sum(relative / total * seen)
    value = jnp.sum(weights * returns) / covered
    centre = weights * seen * value if config.self_normalized else e / jnp.sum(e) * value * covered
    return Answer(
        value=value,
        influence=(weights * returns - centre) / covered,
        effective_episodes=effective_sample_size(relative),
        largest_share=jnp.max(relative) / total,
        unseen=jnp.maximum(1.0 - covered, 0.0),
        mean_weight=jnp.sum(weights),
    )


def chosen_answer(each: Answer, grid: Array, widest: Array) -> tuple[Answer, Array, Array]:
    """Return the answer of the best bandwidth without its leading bias, the bandwidth, and the bias removed.

    Around a smooth target a Gaussian kernel moves the value by c·h² + O(h⁴), at every step and so in all. Twice the
    answer at h less the answer at √2·h is free of c (Richardson's extrapolation). SLOPE chooses h among those of
    which √2·h is at most the `widest` place of the `grid` that the log allows, and which leave enough episodes.
    `each` holds the answers of all bandwidths. Where none leaves enough episodes the one that leaves most
    answers, and the check of effective episodes refuses it. (Wider kernels have more, but judge another policy.)
    """
    narrow = jax.tree.map(lambda column: column[:-TO_DOUBLE], each)
    wide = jax.tree.map(lambda column: column[TO_DOUBLE:], each)
    extrapolated = narrow._replace(
        value=2.0 * narrow.value - wide.value,
        influence=2.0 * narrow.influence - wide.influence,
        mean_weight=2.0 * narrow.mean_weight - wide.mean_weight,
    )
    allowed = jnp.arange(len(narrow.value)) + TO_DOUBLE <= widest
    usable = allowed & (narrow.effective_episodes >= LEAST_EPISODES)
    most = jnp.argmax(jnp.where(allowed, narrow.effective_episodes, -1.0))
    best = slope_choice(extrapolated.value, extrapolated.standard_error, usable)
    chosen = jnp.where(jnp.any(usable), best, most)
    answer = jax.tree.map(lambda column: column[chosen], extrapolated)
    return answer, grid[chosen], narrow.value[chosen] - answer.value


def answered(
    config: ImportanceSamplingConfig, steps: Steps, problem: Problem
) -> tuple[Answer, Array, dict[str, Array]]:
    """Return the answer to `problem`, its bandwidth (0 for a stochastic target), and what a person wants to see.

    `config` are the settings of the estimator. `steps` are the problem's episodes, or others with the same ratios.
    """
    rule = trajectory_wise if config.ratios == "episode" else per_decision
    e = jnp.ones(len(steps.ended)) if problem.episode_weights is None else problem.episode_weights
    answer_to = partial(rule, config, steps, e=e, gamma=problem.gamma)
    ratios = partial(log_ratios, steps, action_dim=problem.action_dim, largest=config.largest_ratio)
    if config.bandwidth is not None or problem.is_stochastic:
        h, removed = jnp.float32(config.bandwidth or 0.0), jnp.float32(0.0)
        answer = answer_to(ratios(h))
    else:
        grid = jnp.asarray(BANDWIDTHS)
        each = jax.lax.map(lambda h: answer_to(ratios(h)), grid)
        answer, h, removed = chosen_answer(each, grid, widest_bandwidth(steps, grid, problem.action_dim))
    info = {
        "standard_error": answer.standard_error,
        "effective_episodes": answer.effective_episodes,
        "largest_share": answer.largest_share,
        "unseen": answer.unseen,
    }
    if not config.self_normalized:
        info["mean_episode_weight"] = answer.mean_weight
    if not problem.is_stochastic:
        info |= {"bandwidth": h, "bias_removed": removed}
    return answer, h, info


@cache  # one set of functions per name and config, so that jit compiles it once
def make_importance_sampling(name: str, config: ImportanceSamplingConfig) -> Estimator:
    """Return the estimator called `name` with the settings `config`."""

    def init(key: Array, problem: Problem) -> ImportanceSamplingState:
        check_trajectories(name, problem)
        return ImportanceSamplingState(jnp.float32(jnp.nan))

    def step(
        key: Array, t: Array, state: ImportanceSamplingState, problem: Problem
    ) -> tuple[ImportanceSamplingState, Info]:
        answer, _, info = answered(config, steps_of(problem), problem)
        return ImportanceSamplingState(answer.value), info

    def value(state: ImportanceSamplingState, problem: Problem) -> Float[Array, ""]:
        return state.value

    return Estimator(name, config, init, step, value, default_steps=1, at_once=True, uses_density=True)


def _entry(name: str, **parts: Any) -> EstimatorEntry:
    return EstimatorEntry(
        name=name,
        make=partial(make_importance_sampling, name),
        needs_density=True,
        needs_trajectories=True,
        page="docs/estimators/importance_sampling.md",
        **parts,
    )


_SHORT = "episodes are short (a few steps) and the target is near the logged policy"
_LONG = "episodes are long: the product of ratios then leaves one or two episodes with all the weight"
ENTRIES = (
    _entry(
        "wpdis",
        label="WPDIS",
        color="#1f78b4",
        dark_color="#7fbfe8",
        config=ImportanceSamplingConfig(),
        summary="per-decision importance sampling, self-normalised at every step",
        use_when=_SHORT + "; of this family the one with the least variance",
        avoid_when=_LONG,
    ),
    _entry(
        "pdis",
        label="PDIS",
        color="#8c510a",
        dark_color="#dfc27d",
        config=ImportanceSamplingConfig(self_normalized=False),
        summary="per-decision importance sampling: a reward is weighted by the ratios up to it",
        use_when=_SHORT + ", and an unbiased estimate is wanted",
        avoid_when=_LONG,
    ),
    _entry(
        "wis",
        label="WIS",
        color="#4d4d4d",
        dark_color="#bdbdbd",
        config=ImportanceSamplingConfig(ratios="episode"),
        summary="trajectory-wise importance sampling, self-normalised",
        use_when=_SHORT,
        avoid_when=_LONG,
    ),
    _entry(
        "is",
        label="IS",
        color="#d6604d",
        dark_color="#f4a582",
        config=ImportanceSamplingConfig(ratios="episode", self_normalized=False),
        summary="trajectory-wise importance sampling",
        use_when="episodes have one step, where it equals PDIS, or as the textbook's reference",
        avoid_when=_LONG,
    ),
    _entry(
        "incris",
        label="Incremental IS",
        color="#5e3c99",
        dark_color="#b2abd2",
        config=ImportanceSamplingConfig(ratios="recent", self_normalized=False),
        summary="per-decision importance sampling that drops early ratios where they do not matter",
        use_when="episodes are long but a reward depends on the last few actions only",
        avoid_when="early actions decide late rewards: what is dropped then is a bias that no interval shows",
    ),
)
