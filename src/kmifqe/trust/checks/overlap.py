"""Checks of how far the target's actions lie from the logged ones, and whether the density fits those."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.base import Diagnostic, Limit, digits, graded, percent

LOOKED_AT = 20_000  # rows: enough for a share of 1 % to be known to a tenth of itself
FEATURES = 64  # tanh units of random weights: a regression that bends, at the cost of a linear one
ROWS_PER_FEATURE = 20  # fewer rows make fewer features: residuals must not be fitted away
RIDGE = 1e-3  # of the rows
COMMON = 0.99  # share of the logged actions that are called common; the others are rare, or far out
BEYOND = 1.25  # an action this many times as far as 99 % of the logged ones is outside: on the edge is not
QUANTILES = (0.1, 0.5, 0.9, 0.99)
REFERENCE_BANDWIDTH = 0.2  # half action ranges, about what KMIFQE finds on logs of some thousand rows
REFERENCE_BANDWIDTHS = (0.05, 0.1, 0.2)  # half action ranges: about what Prop. 1 finds
EDGES = np.linspace(0.0, 6.0, 25)  # of the distances' histograms, in typical logged distances

REFERENCE_DIMENSIONS = 8  # reference kernels are moved along so many action dimensions at most
NARROW, WIDE, FEW = (
    0.5,
    0.7,
    6,
)  # a reference kernel's width in residual standard deviations, up to FEW dimensions


class Nearby(NamedTuple):
    """Rows that go on, with the logged and the target's action at s', and what the log does there on average."""

    rows: np.ndarray
    episode: np.ndarray
    logged: np.ndarray  # (n, d)
    target: np.ndarray  # (n, d)
    mean: np.ndarray  # (n, d): m(s')


def nearby_actions(problem: Problem, seed: int = 0) -> Nearby | None:
    """Return up to LOOKED_AT rows with m(s'), or None where no row goes on."""
    n = problem.counts.going_on
    if n == 0:
        return None
    rng = np.random.default_rng(seed)
    rows = np.arange(n) if n <= LOOKED_AT else np.sort(rng.choice(n, LOOKED_AT, replace=False))
    states, logged, target = (
        np.asarray(field[rows], np.float64)
        for field in (problem.next_states, problem.next_actions, problem.target_actions)
    )
    x = (states - np.asarray(problem.state_mean)) / np.asarray(problem.state_std)
    features, episode = _bent(x, min(FEATURES, n // ROWS_PER_FEATURE), rng), np.asarray(problem.episode)[rows]
    return Nearby(rows, episode, logged, target, _predicted(features, logged, episode % 2 == 0))


def overlap_facts(problem: Problem, near: Nearby) -> dict[str, Any]:
    """Return how far out the target's actions are among the logged ones, by Mahalanobis distance and by density.

    A distance of 1 is a logged action's typical (root mean square) one.
    """
    logged, target = _distances(near.logged, near), _distances(near.target, near)
    facts: dict[str, Any] = {
        "distance_quantiles": np.quantile(target, QUANTILES).tolist(),
        "distance_outside": float(np.mean(target > BEYOND * np.quantile(logged, COMMON))),
        "distance_edges": EDGES.tolist(),
        "distance_histogram_logged": _shares(logged),
        "distance_histogram_target": _shares(target),
        "nearby_rows": _nearby_rows(problem, near),
    }
    if problem.log_mu is not None and problem.log_mu_target is not None:
        of_logged = np.asarray(problem.log_mu[near.rows], np.float64).sum(axis=1)
        of_target = np.asarray(problem.log_mu_target[near.rows], np.float64)
        rare = np.quantile(of_logged, 1.0 - COMMON)
        floored = np.maximum(of_target, -700.0)  # a density of 0 is an answer; e^-700 is as good, and finite
        facts["density_outside"] = float(np.mean(of_target < rare))
        facts["overlap_rows"] = _overlap_rows(problem, near, of_logged)
        facts["log_density_quantiles"] = np.quantile(floored - np.median(of_logged), QUANTILES).tolist()
    return facts


def density_facts(problem: Problem, near: Nearby) -> dict[str, Any]:
    """Return mean reference weights, each 1 in expectation if the density that was told is the log's.

    E[φ(a'|s')/μ(a'|s')] = 1 for any density φ that vanishes outside μ's support. Here φ is a Gaussian, narrower
    than the log's residuals and cut to the logged range: around m(s'), and one residual standard deviation to
    either side of it along each action dimension. So a shifted mean and a wrong width show alike, whatever the
    target policy and the kernel are.
    """
    assert problem.log_mu is not None
    log_mu = np.asarray(problem.log_mu[near.rows], np.float64).sum(axis=1)
    spread = _residual_std(near)
    d = len(spread)
    width = (NARROW if d <= FEW else WIDE) * spread
    low, high = near.logged.min(axis=0), near.logged.max(axis=0)
    shifts = [np.zeros(d)]
    for j in range(min(d, REFERENCE_DIMENSIONS)):
        shifts += [sign * spread[j] * np.eye(d)[j] for sign in (-1.0, 1.0)]
    tests = []
    for shift in shifts:
        centre = np.clip(near.mean + shift, low, high)
        z = (near.logged - centre) / width
        mass = ndtr((high - centre) / width) - ndtr((low - centre) / width)
        log_phi = np.sum(-0.5 * z**2 - np.log(width * mass) - 0.5 * np.log(2.0 * np.pi), axis=1)
        tests.append(mean_and_error(np.exp(np.minimum(log_phi - log_mu, 80.0)), near.episode))
    return {
        "reference_weights": [mean for mean, _, _ in tests],
        "reference_errors": [error for _, error, _ in tests],
        "reference_rows": [effective for _, _, effective in tests],
    }


def mean_and_error(weights: np.ndarray, episode: np.ndarray) -> tuple[float, float, float]:
    """Return the mean weight, its standard error with whole episodes as units, and Kish's effective rows."""
    mean = float(weights.mean())
    by_episode = np.bincount(episode, weights=weights - mean)
    error = float(np.sqrt(np.sum(by_episode**2)) / len(weights))
    largest = max(float(weights.max()), 1e-300)
    scaled = weights / largest
    return mean, error, float(scaled.sum() ** 2 / max(float(np.sum(scaled**2)), 1e-300))


def _nearby_rows(problem: Problem, near: Nearby) -> float:
    """Return how many rows' worth of logged actions lie near the target's: an effective sample size.

    The weights are those of a kernel of the reference bandwidth over a Gaussian with the residuals' mean and
    covariance: of a density that nobody need tell. A kernel wider than that would weigh its tails, so it is not.
    """
    half = 0.5 * np.asarray(problem.action_high - problem.action_low, np.float64)
    width = np.minimum(REFERENCE_BANDWIDTH * half, WIDE * _residual_std(near))
    kernel = -0.5 * np.sum(((near.logged - near.target) / width) ** 2, axis=1)
    density = -0.5 * np.sum(((near.logged - near.mean) @ whitening(near).T) ** 2, axis=1)
    log_weights = kernel - density
    _, _, rows = mean_and_error(np.exp(log_weights - log_weights.max()), near.episode)
    return rows * problem.counts.going_on / len(near.rows)


def _overlap_rows(problem: Problem, near: Nearby, log_mu: np.ndarray) -> float:
    """Return the effective rows of a kernel around the target's action, by the density that was told.

    At the best of some bandwidths: behaviour narrower than a bandwidth has its best below that.
    """
    half = 0.5 * np.asarray(problem.action_high - problem.action_low, np.float64)
    squared = np.sum(((near.logged - near.target) / half) ** 2, axis=1)

    def effective_rows(h: float) -> float:
        log_weights = -0.5 * squared / h**2 - log_mu
        return mean_and_error(np.exp(log_weights - log_weights.max()), near.episode)[2]

    return max(map(effective_rows, REFERENCE_BANDWIDTHS)) * problem.counts.going_on / len(near.rows)


def _bent(x: np.ndarray, features: int, rng: np.random.Generator) -> np.ndarray:
    """Return [1, x, tanh of random directions]."""
    directions = rng.standard_normal((x.shape[1], features)) / np.sqrt(x.shape[1])
    bent = np.tanh(x @ directions + rng.standard_normal(features))
    return np.concatenate([np.ones((len(x), 1)), x, bent], axis=1)


def _predicted(x: np.ndarray, y: np.ndarray, even: np.ndarray) -> np.ndarray:
    """Return y as a regression on the other half of the episodes predicts it: no row has a part in its own m(s')."""
    if even.all() or not even.any():
        return _regression(x, y)(x)
    predicted = np.empty_like(y)
    for half in (even, ~even):
        predicted[half] = _regression(x[~half], y[~half])(x[half])
    return predicted


def _regression(x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    mean = y.mean(axis=0)
    gram = x.T @ x + RIDGE * len(x) * np.eye(x.shape[1])
    coefficients = np.linalg.solve(gram, x.T @ (y - mean))
    return lambda x: np.asarray(mean + x @ coefficients)


def _distances(actions: np.ndarray, near: Nearby) -> np.ndarray:
    return root_mean_square((actions - near.mean) @ whitening(near).T)


def whitening(near: Nearby) -> np.ndarray:
    """Return W for which W·(a − m(s')) of logged actions has unit covariance, (d, d)."""
    covariance = np.atleast_2d(np.cov(near.logged - near.mean, rowvar=False, bias=True))
    covariance += np.diag(_least_std(near) ** 2)
    return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)))


def root_mean_square(whitened: np.ndarray) -> np.ndarray:
    """Return Mahalanobis distances over √d: a logged action's typical distance from m(s') is 1."""
    return np.asarray(np.sqrt(np.mean(whitened**2, axis=1)))


def _residual_std(near: Nearby) -> np.ndarray:
    return np.asarray(np.maximum(np.std(near.logged - near.mean, axis=0), _least_std(near)))


def _least_std(near: Nearby) -> np.ndarray:
    """Return a thousandth of the logged range: a log without noise still has a distance."""
    span = np.ptp(near.logged, axis=0)
    return 1e-3 * np.where(span > 0, span, 1.0)


def _shares(distances: np.ndarray) -> list[float]:
    """Return shares by bin; what lies beyond the last edge counts in the last bin."""
    counts, _ = np.histogram(np.minimum(distances, EDGES[-1]), EDGES)
    return (counts / len(distances)).tolist()


DISTANCE = Limit(
    0.05,
    0.5,
    "where the target acts as the log never did, any value is an extrapolation; errors of single steps add up "
    "over 1/(1 − γ) steps, so a few per cent of them can be felt and half of them decide the value",
)
RARE = Limit(
    0.1,
    0.6,
    "rows near an action that the log takes less than once in a hundred carry weights of a hundred and more: the "
    "value at those states rests on a few of them",
)
NEARBY = Limit(
    100,
    float("-inf"),
    "where fewer than 100 logged actions are worth anything near the target's, Q there is what a network makes of "
    "other actions: it may be right, but nothing in the log says so",
    below=True,
)
# Two fits of one log, or a mixture fitted to a few thousand rows, differ by some per cent from the truth.
MISFIT = Limit(
    0.1,
    0.25,
    "weights are divided by the density, so an error of the density is an error of the weights: a tenth is what a "
    "good fit leaves, a quarter moves values by more than most intervals are wide",
)
SIGNIFICANT = 4.0  # standard errors: of 17 comparisons, chance exceeds it once in a thousand logs
ENOUGH_ROWS = 50.0  # effective: below, a mean weight is short of its rare large values and proves nothing


def overlap_diagnostics(facts: Mapping[str, Any], *, uses_density: bool) -> list[Diagnostic]:
    """Return the diagnostics of distance and density; the densities' only for an estimator that uses one."""
    found = []
    if "distance_outside" in facts:
        found.append(_distance(facts))
    if "nearby_rows" in facts:
        found.append(_nearby(facts))
    if uses_density and "density_outside" in facts:
        found.append(_rare(facts))
    if uses_density and "reference_weights" in facts:
        found.append(density_misfit(facts))
    return found


def _distance(facts: Mapping[str, Any]) -> Diagnostic:
    outside, (_, median, _, far) = facts["distance_outside"], facts["distance_quantiles"]
    line = (
        f"at {percent(outside)} of the next states the target acts outside what was logged near them (its distance "
        f"from the log's mean action is typically {digits(median)} and at most about {digits(far)} times a logged "
        "action's)"
    )
    return graded("distance", outside, DISTANCE, line)


def _nearby(facts: Mapping[str, Any]) -> Diagnostic:
    rows = min(facts["nearby_rows"], facts.get("overlap_rows", math.inf))
    line = f"logged actions near the target's are worth {digits(rows)} rows (within a fifth of half the action range)"
    return graded("nearby_rows", rows, NEARBY, line, digits)


def _rare(facts: Mapping[str, Any]) -> Diagnostic:
    share = facts["density_outside"]
    line = (
        f"at {percent(share)} of the next states the target's action is rarer, by the behaviour density, than 99 % "
        "of the logged actions"
    )
    return graded("rare_actions", share, RARE, line)


def density_misfit(facts: Mapping[str, Any]) -> Diagnostic:
    """Return how far mean reference weights are from 1, where that is no chance; 0 if all may be 1."""
    tests = zip(facts["reference_weights"], facts["reference_errors"], facts["reference_rows"], strict=True)
    usable = [(mean, error) for mean, error, rows in tests if rows >= ENOUGH_ROWS]
    if not usable:
        line = (
            "the behaviour density cannot be checked: too few logged actions lie where it says that many do"
        )
        return Diagnostic("density_fit", None, "care", line, MISFIT.words(percent), MISFIT.reason)
    wrong = [mean for mean, error in usable if abs(mean - 1.0) > SIGNIFICANT * error]
    worst = max(wrong, key=lambda mean: abs(math.log(max(mean, 1e-30))), default=1.0)
    off = max(worst, 1.0 / max(worst, 1e-30)) - 1.0
    if not wrong:
        line = "the behaviour density fits the logged actions"
    else:
        line = (
            f"the behaviour density does not fit the logged actions: mean weights of reference kernels, 1 if it did, "
            f"are off by factors of up to {digits(1.0 + off)}"
        )
    return graded("density_fit", off, MISFIT, line)
