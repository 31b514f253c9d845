"""Checks of estimators that weight rows or whole episodes by ratios: how many are left, and what was seen.

A ratio ζ(s, a) that was learned, how often the target visits a row for every visit of the log, obeys for every f

    (1 − γ) E f(s₀, π) + E_log[ζ (γ f(s', π) − f(s, a))] = 0,

because what flows into a state flows out of it. With f = 1 that is ζ's mean. With f the target's own Q the left side
is V − V̂, whatever ζ is: how far it is from 0, for an f that varies as much as Q does, is the error of V̂.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array

from kmifqe.estimators.base import (
    Estimate,
    Estimator,
    bootstrapped,
    over_first,
    over_target,
    scaled,
    standardized,
    state_of_seed,
)
from kmifqe.io.format import digits, percent
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.base import Check, Thresholds
from kmifqe.trust.checks.training import HELD_OUT_EPISODES, KEPT_SEEDS, SIGNIFICANT
from kmifqe.trust.checks.weights import ROWS

FLOW_ROWS = 10_000  # looked at for the flow of visits
CHUNK = 2_048  # rows at which the functions below are asked at a time: bounds the memory
MOST_PRODUCTS = 16  # inputs of which all products are taken; of more only the squares
SAME_ACTION = 1e-6  # of the action range: two actions that are nearer are one
RIDGE = 1e-3  # of the functions' mean variance: directions in which they hardly vary are left alone

EFFECTIVE = Thresholds(
    30,
    10,
    "a mean over 30 episodes has a standard error of a fifth of what single episodes scatter, and its interval is "
    "about right; under 10 the weights that would show how much it varies are not in the log",
    below=True,
)
LARGEST = Thresholds(
    0.1,
    0.3,
    "where one episode holds a tenth of all weight V̂ is in part that episode's return, and at three tenths another "
    "log would give another number",
)
UNSEEN = Thresholds(
    0.1,
    0.5,
    "episodes were cut before the discount faded; what was seen stands for the rest, which is a guess about the "
    "future and no measurement of it",
)
VISITS = Thresholds(
    0.1,
    0.25,
    "visits that are left out or counted twice are missing from V̂ or too much in it, as the same share of what its "
    "rewards differ by from the log's mean reward",
)
FLOW = Thresholds(
    0.1,
    0.25,
    "for a function that varies over the log like Q does, this is the error of V̂ in Q's standard deviations; with a "
    "quarter V̂ was off by half to all of the scatter of single episodes, and ratios that had settled stayed below a "
    "tenth (docs/estimators/dice.md)",
)

EPISODES_WEIGHT = Thresholds(
    0.1,
    0.25,
    "an estimate that is not self-normalised is off by the same share; its interval does not show it, because the "
    "few episodes whose weights would make the mean right are those that the log does not hold",
)
SMOOTHED = Thresholds(
    0.01,
    -math.inf,
    "a deterministic target has a density ratio only where the log takes its very actions; elsewhere a network finds "
    "a smooth stand-in, whose bias all networks share, so that neither the interval nor another check shows it "
    "(docs/estimators/dice.md)",
    below=True,
)


class RatioFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How a learned ratio balances, averaged over networks; errors are standard errors with episodes as units."""

    visits: float  # the target's visits that it accounts for, as a share of all: 1 where it is right
    visits_error: float
    flow: float  # what flows in less what flows out, of the function of variance 1 that it is worst for
    flow_error: float
    # The share of logged next actions that are the target's own; None where it draws them.
    own_actions: float | None = None


def ratio_facts(estimator: Estimator, estimate: Estimate, problem: Problem) -> RatioFacts | None:
    """Return how the ratio of `estimator` balances on episodes that each network hardly saw.

    None without a bootstrap, without a ratio, and where a Q stands beside it, which mends what it has wrong.
    `estimator` made the `estimate` of the `problem`.
    """
    positions = np.flatnonzero(np.isfinite(estimate.values))[:KEPT_SEEDS]
    known = estimate.bootstrap and estimate.final_state is not None and len(positions) > 0
    if estimator.ratio is None or estimator.q is not None or not known:
        return None
    n = len(problem)
    rows = np.arange(n)
    if n > FLOW_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(n, FLOW_ROWS, replace=False))
    flow = _flow(problem, rows)
    keys = jnp.stack([jax.random.key(int(estimate.seeds[position])) for position in positions])
    found = []
    for position, drawn in zip(positions, np.asarray(bootstrapped(problem, keys).episode_weights)):
        state = state_of_seed(estimate.final_state, int(position))
        ratios = np.asarray(estimator.ratio(state, problem, jnp.asarray(rows)), np.float64)
        found.append(_balance(flow, ratios, drawn, float(problem.gamma)))
    visits, visits_error, balance, balance_error = map(float, np.mean(found, axis=0))
    if not np.isfinite([visits, visits_error, balance, balance_error]).all():
        return None
    return RatioFacts(
        visits=visits,
        visits_error=visits_error,
        flow=balance,
        flow_error=balance_error,
        own_actions=_own_actions(problem, rows),
    )


def _own_actions(problem: Problem, rows: np.ndarray) -> float | None:
    """Return the share of these `rows` whose logged next action is the target's own, of those that have one.

    None where the target draws its actions, and where no row has a next action.
    """
    rows = rows[rows < problem.counts.nonterminal]
    if problem.is_stochastic or not len(rows):
        return None
    gap = np.abs(np.asarray(problem.next_actions[rows]) - np.asarray(problem.target_actions[rows]))
    width = np.asarray(problem.action_high) - np.asarray(problem.action_low)
    return float(np.mean((gap <= SAME_ACTION * width).all(axis=1)))


class _Flow(NamedTuple):
    """Functions f of states and actions, the constant 1 first; the others have mean 0 over the rows."""

    now: np.ndarray  # (n, k): f(s, a)
    later: np.ndarray  # (n, k): f(s', π), 0 after an end
    first: np.ndarray  # (m, k): f(s₀, π)
    episode: np.ndarray  # (n,)


def _flow(problem: Problem, rows: np.ndarray) -> _Flow:
    """Return the inputs and their products, as functions at the `rows` and first states of `problem`."""
    width = problem.state_dim + problem.action_dim
    left, right = np.triu_indices(width) if width <= MOST_PRODUCTS else (np.arange(width),) * 2

    def functions(states: Array, actions: Array) -> Array:
        x = jnp.concatenate([standardized(problem, states), scaled(problem, actions)], axis=1)
        return jnp.concatenate([jnp.ones((len(x), 1)), x, x[:, left] * x[:, right]], axis=1)

    chunks = [jnp.asarray(rows[start : start + CHUNK]) for start in range(0, len(rows), CHUNK)]
    now = [functions(problem.states[chunk], problem.actions[chunk]) for chunk in chunks]
    later = [over_target(functions, problem, chunk) for chunk in chunks]
    of_rows, of_next = (np.concatenate(parts).astype(np.float64) for parts in (now, later))
    of_first = np.asarray(over_first(functions, problem, slice(None)), np.float64)
    mean = np.r_[0.0, of_rows[:, 1:].mean(axis=0)]
    goes_on = ~np.asarray(problem.terminated)[rows]
    return _Flow(
        of_rows - mean,
        goes_on[:, None] * (of_next - mean),
        of_first - mean,
        np.asarray(problem.episode)[rows],
    )


def _balance(flow: _Flow, ratios: np.ndarray, drawn: np.ndarray, gamma: float) -> tuple[float, ...]:
    """Return the `RatioFacts` of one network with these `ratios`, which weighted episodes as `drawn`.

    The function for which the flow is worst is looked for on episodes that the network was trained on; what is told
    is its flow on those that it hardly saw.
    """
    held_out = drawn <= np.quantile(drawn, HELD_OUT_EPISODES)
    parts = ratios[:, None] * (gamma * flow.later - flow.now)

    def over(weights: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the flow of all functions by the episodes' weights, and the standard error of that of f."""
        of_rows = weights[flow.episode]
        first, mean = (
            np.average(flow.first, axis=0, weights=weights),
            np.average(parts, axis=0, weights=of_rows),
        )
        scatter = (1.0 - gamma) * weights * ((flow.first - first) @ f) / weights.sum()
        scatter += np.bincount(flow.episode, of_rows * ((parts - mean) @ f), len(weights)) / of_rows.sum()
        return (1.0 - gamma) * first + mean, float(np.sqrt(np.sum(scatter**2)))

    covariance = np.cov(flow.now[:, 1:].T, bias=True).reshape(flow.now.shape[1] - 1, -1)
    covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    trained = np.where(held_out, 0.0, drawn)
    worst = np.linalg.solve(covariance, over(trained, flow.now[0])[0][1:])
    worst = np.r_[0.0, worst / np.sqrt(max(float(worst @ covariance @ worst), 1e-300))]
    visits, visits_error = over(np.ones(len(drawn)), np.eye(len(worst))[0])
    balance, error = over(held_out.astype(float), worst)
    error = float(np.hypot(error, over(trained, worst)[1]))
    return 1.0 - visits[0] / (1.0 - gamma), visits_error / (1.0 - gamma), balance @ worst, error


def balance_checks(facts: RatioFacts | None) -> list[Check]:
    """Return the checks of a learned ratio; none where it was not measured."""
    if facts is None:
        return []
    off = max(0.0, abs(facts.visits - 1.0) - SIGNIFICANT * facts.visits_error)
    flow = max(0.0, abs(facts.flow) - SIGNIFICANT * facts.flow_error)
    visits = (
        f"The learned ratio accounts for {percent(facts.visits)} ± {percent(facts.visits_error)} of the target's "
        "visits."
    )
    balance = (
        "By the learned ratio, as many visits should flow into states as out of them: on episodes that training "
        f"hardly saw, the two differ by {digits(flow)} standard deviations beyond chance where the ratio is worst."
    )
    advice = "Train for more steps, or use an estimator that learns no ratio (fqe, kmifqe)."
    found = [
        VISITS.check("ratio_visits", off, visits, advice),
        FLOW.check("ratio_balance", flow, balance, advice, shown=digits),
    ]
    if facts.own_actions is not None:
        smoothed = (
            f"The target is deterministic and the log takes its very action in {percent(facts.own_actions)} of the "
            "rows; at other actions it has no density ratio."
        )
        other = (
            "Compare V̂ with an estimator that learns no ratio (fqe, kmifqe), or judge the target with the noise it "
            "acts with (--stochastic)."
        )
        found.append(SMOOTHED.check("smoothed_ratio", facts.own_actions, smoothed, other))
    return found


def ratio_checks(estimate: Estimate, rows: int) -> list[Check]:
    """Return the checks of an `estimate` whose infos tell how its weights lie; none of others.

    `rows` is how many rows in-sample learning has.
    """
    last = {name: _mean(series[-1]) for name, series in estimate.infos.items()}
    found = []
    if "effective_rows" in last:
        effective = last["effective_rows"]
        finding = f"The weights leave {digits(effective)} effective rows of {rows:,}."
        advice = "Log more rows with the target policy, or judge a target nearer to the logged one."
        found.append(ROWS.check("effective_rows", effective, finding, advice, shown="{:.0f}".format))
    if "effective_episodes" in last:
        effective = last["effective_episodes"]
        finding = f"The weights leave {digits(effective)} effective episodes of {estimate.episodes:,}."
        advice = (
            "Use an estimator without products of ratios (fqe, kmifqe), or log more episodes near the target."
        )
        found.append(EFFECTIVE.check("effective_episodes", effective, finding, advice, shown=digits))
    if "largest_share" in last:
        finding = f"One episode holds {percent(last['largest_share'])} of all weight."
        advice = (
            "Use an estimator without products of ratios (fqe, kmifqe), or log more episodes near the target."
        )
        found.append(LARGEST.check("largest_weight", last["largest_share"], finding, advice))
    if "mean_episode_weight" in last:
        mean = last["mean_episode_weight"]
        finding = f"The episodes' weights average {digits(mean)} over discounted time, where 1 is right."
        advice = "Use an estimator that divides by the weights' sum (wpdis, wis), or one without products of ratios."
        found.append(EPISODES_WEIGHT.check("mean_weight", abs(mean - 1.0), finding, advice))
    if "unseen" in last:
        finding = f"{percent(last['unseen'])} of the discounted future lies beyond the last logged step."
        advice = "Log longer episodes, or use an estimator that bootstraps (fqe, kmifqe)."
        found.append(UNSEEN.check("unseen_steps", last["unseen"], finding, advice))
    return found


def _mean(series: np.ndarray) -> float:
    finite = series[np.isfinite(series)]
    return float(finite.mean()) if len(finite) else float("nan")
