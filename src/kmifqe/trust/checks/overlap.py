"""Checks of how far the target's actions lie from the logged ones, and whether the density fits those."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.special import ndtr

from kmifqe.io.format import digits, percent
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.base import Check, Thresholds

COMPARED = (
    64  # next states at which a target's actions are kept: distances of two policies are then known to 20 %
)
LOOKED_AT = 20_000  # rows: enough for a share of 1 % to be known to a tenth of itself
FEATURES = 64  # tanh units of random weights: a nonlinear regression at the cost of a linear one
ROWS_PER_FEATURE = 20  # fewer rows make fewer features: residuals must not be fitted away
RIDGE = 1e-3  # of the rows
COMMON = 0.99  # share of the logged actions that are called common; the others are rare, or far out
BEYOND = 1.25  # an action this many times as far as 99 % of the logged ones is outside: on the edge is not
QUANTILES = (0.1, 0.5, 0.9, 0.99)
REFERENCE_BANDWIDTH = 0.2  # half action ranges, about what KMIFQE finds on logs of some thousand rows
REFERENCE_BANDWIDTHS = (0.05, 0.1, 0.2)  # half action ranges: about what Prop. 1 finds
EDGES = np.linspace(0.0, 6.0, 25)  # of the distances' histograms, in typical logged distances
REFERENCE_DIMENSIONS = 8  # reference kernels are moved along so many action dimensions at most
# A reference kernel's width in residual standard deviations: NARROW up to FEW action dimensions, WIDE beyond.
NARROW, WIDE, FEW = 0.5, 0.7, 6
SIGNIFICANT = 4.0  # standard errors: of 17 comparisons, chance exceeds it once in a thousand logs
ENOUGH_ROWS = 50.0  # effective: below, a mean weight proves nothing
# A mean of few weights is mostly short of the rare large ones, also where the density is right: that it is too small
# proves something only over so many effective rows.
ENOUGH_ROWS_BELOW = 500.0

DISTANCE = Thresholds(
    0.05,
    0.5,
    "where the target acts as the log never did, any value is an extrapolation; errors of single steps add up "
    "over 1/(1 − γ) steps, so a few per cent of them can be felt and half of them decide the value",
)
RARE = Thresholds(
    0.1, 0.6, "rows near so rare an action weigh a hundred and more: the value there rests on a few of them"
)
NEARBY = Thresholds(
    100,
    float("-inf"),
    "where fewer than 100 logged actions are worth anything near the target's, Q there is what a network makes of "
    "other actions: it may be right, but nothing in the log says so",
    below=True,
)
# Two fits of one log, or a mixture fitted to a few thousand rows, differ by some per cent from the truth.
MISFIT = Thresholds(
    0.1,
    0.25,
    "weights are divided by the density, so an error of the density is an error of the weights: a tenth is what a "
    "good fit leaves, a quarter moves values by more than most intervals are wide",
)


class OverlapFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How far out the target's actions are among the logged ones; 1 is a logged action's typical distance."""

    distance_quantiles: list[float]  # of the target's actions, at QUANTILES
    distance_outside: float  # share of the next states at which the target acts outside the logged actions
    distance_edges: list[float]  # of both histograms
    distance_histogram_logged: list[float]  # shares
    distance_histogram_target: list[float]  # shares
    nearby_rows: float  # effective rows near the target's actions, without any density
    density_outside: float | None = None  # share at which the target's action is rare by the density
    overlap_rows: float | None = None  # effective rows near the target's actions, by the density


def compared_actions(problem: Problem) -> tuple[float, ...]:
    """Return the target's actions at some next states of the log, in standard deviations of the logged actions.

    The states are the same for every policy that is judged on a log, so that two policies can be compared by them.
    """
    rows = np.unique(np.linspace(0, problem.counts.used - 1, COMPARED).astype(int))
    std = np.asarray(problem.actions).std(axis=0)
    actions = np.asarray(problem.target_actions[rows], np.float64) / np.where(std > 0.0, std, 1.0)
    return tuple(float(f"{each:.4g}") for each in actions.ravel())


class DensityFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Mean reference weights, each 1 in expectation if the given density is the log's."""

    reference_weights: list[float]
    reference_errors: list[float]  # standard errors, with whole episodes as units
    reference_rows: list[float]  # effective rows behind each mean
    # Mean, standard error and effective rows of a stochastic target's ratios π(a'|s')/μ(a'|s'); None without one.
    target_ratio: tuple[float, float, float] | None = None


class NextActions(NamedTuple):
    """Nonterminal rows with the logged and the target's action at s', and the log's mean action there."""

    rows: np.ndarray
    episode: np.ndarray
    logged: np.ndarray  # (n, d)
    target: np.ndarray  # (n, d)
    mean: np.ndarray  # (n, d): m(s')


def next_actions(problem: Problem, seed: int = 0) -> NextActions | None:
    """Return up to LOOKED_AT rows with m(s'), or None where every row terminates."""
    n = problem.counts.nonterminal
    if n == 0:
        return None
    rng = np.random.default_rng(seed)
    rows = np.arange(n) if n <= LOOKED_AT else np.sort(rng.choice(n, LOOKED_AT, replace=False))
    states, logged, target = (
        np.asarray(field[rows], np.float64)
        for field in (problem.next_states, problem.next_actions, problem.target_actions)
    )
    x = (states - np.asarray(problem.state_mean)) / np.asarray(problem.state_std)
    features = _with_tanh_units(x, min(FEATURES, n // ROWS_PER_FEATURE), rng)
    episode = np.asarray(problem.episode)[rows]
    return NextActions(rows, episode, logged, target, _predicted(features, logged, episode % 2 == 0))


def overlap_facts(problem: Problem, near: NextActions) -> OverlapFacts:
    """Return how far out the target's actions are, by Mahalanobis distance and, where there is one, by density."""
    logged, target = _distances(near.logged, near), _distances(near.target, near)
    density_outside = near_rows = None
    if problem.log_mu is not None and problem.log_mu_target is not None:
        of_logged = np.asarray(problem.log_mu[near.rows], np.float64).sum(axis=1)
        of_target = np.asarray(problem.log_mu_target[near.rows], np.float64)
        density_outside = float(np.mean(of_target < np.quantile(of_logged, 1.0 - COMMON)))
        near_rows = overlap_rows(problem)
    return OverlapFacts(
        distance_quantiles=np.quantile(target, QUANTILES).tolist(),
        distance_outside=float(np.mean(target > BEYOND * np.quantile(logged, COMMON))),
        distance_edges=EDGES.tolist(),
        distance_histogram_logged=_shares(logged),
        distance_histogram_target=_shares(target),
        nearby_rows=_nearby_rows(problem, near),
        density_outside=density_outside,
        overlap_rows=near_rows,
    )


def density_facts(problem: Problem, near: NextActions) -> DensityFacts:
    """Return mean reference weights; the problem must have a density.

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
    means, errors, rows = (list(column) for column in zip(*tests))
    target_ratio = None
    if problem.log_pi is not None:
        log_ratio = np.asarray(problem.log_pi[near.rows], np.float64) - log_mu
        target_ratio = mean_and_error(np.exp(np.minimum(log_ratio, 80.0)), near.episode)
    return DensityFacts(
        reference_weights=means, reference_errors=errors, reference_rows=rows, target_ratio=target_ratio
    )


def mean_and_error(weights: np.ndarray, episode: np.ndarray) -> tuple[float, float, float]:
    """Return the mean weight, its standard error with whole episodes as units, and Kish's effective rows."""
    mean = float(weights.mean())
    by_episode = np.bincount(episode, weights=weights - mean)
    error = float(np.sqrt(np.sum(by_episode**2)) / len(weights))
    largest = max(float(weights.max()), 1e-300)
    scaled = weights / largest
    return mean, error, float(scaled.sum() ** 2 / max(float(np.sum(scaled**2)), 1e-300))


def whitening(near: NextActions) -> np.ndarray:
    """Return W for which W·(a − m(s')) of logged actions has unit covariance, (d, d)."""
    covariance = np.atleast_2d(np.cov(near.logged - near.mean, rowvar=False, bias=True))
    covariance += np.diag(_least_std(near) ** 2)
    return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)))


def root_mean_square(whitened: np.ndarray) -> np.ndarray:
    """Return Mahalanobis distances over √d: a logged action's typical distance from m(s') is 1."""
    return np.asarray(np.sqrt(np.mean(whitened**2, axis=1)))


def _nearby_rows(problem: Problem, near: NextActions) -> float:
    """Return the nearby rows: effective rows of a kernel around the target's actions.

    The weights are those of a kernel of the reference bandwidth over a Gaussian with the residuals' mean and
    covariance, so no density need be given. The kernel is narrower than that Gaussian, or it would weigh its tails.
    """
    width = np.minimum(REFERENCE_BANDWIDTH * _half_range(problem), WIDE * _residual_std(near))
    kernel = -0.5 * np.sum(((near.logged - near.target) / width) ** 2, axis=1)
    density = -0.5 * np.sum(((near.logged - near.mean) @ whitening(near).T) ** 2, axis=1)
    return _effective_rows(kernel - density) * problem.counts.nonterminal / len(near.rows)


def overlap_rows(problem: Problem, bandwidths: Sequence[float] = REFERENCE_BANDWIDTHS) -> float:
    """Return the effective rows of a kernel around the target's action by the density, at the best bandwidth.

    The problem must have a density. Every row is looked at: a few rows can hold nearly all weight, and a sample that
    lacks them would say that many do.
    """
    assert problem.log_mu is not None
    half, chunks = _half_range(problem), []
    for start in range(0, problem.counts.nonterminal, LOOKED_AT):
        rows = np.arange(start, min(start + LOOKED_AT, problem.counts.nonterminal))
        logged, target = (
            np.asarray(each[rows], np.float64) for each in (problem.next_actions, problem.target_actions)
        )
        squared = np.sum(((logged - target) / half) ** 2, axis=1)
        chunks.append((squared, np.asarray(problem.log_mu[rows], np.float64).sum(axis=1)))
    squared, log_mu = (np.concatenate(column) for column in zip(*chunks))
    return max(_effective_rows(-0.5 * squared / h**2 - log_mu) for h in bandwidths)


def _effective_rows(log_weights: np.ndarray) -> float:
    """Return Kish's effective rows of weights with these logarithms."""
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / np.sum(weights**2))


def _half_range(problem: Problem) -> np.ndarray:
    return 0.5 * np.asarray(problem.action_high - problem.action_low, np.float64)


def _with_tanh_units(x: np.ndarray, units: int, rng: np.random.Generator) -> np.ndarray:
    """Return [1, x, tanh of random directions]."""
    directions = rng.standard_normal((x.shape[1], units)) / np.sqrt(x.shape[1])
    activations = np.tanh(x @ directions + rng.standard_normal(units))
    return np.concatenate([np.ones((len(x), 1)), x, activations], axis=1)


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


def _distances(actions: np.ndarray, near: NextActions) -> np.ndarray:
    return root_mean_square((actions - near.mean) @ whitening(near).T)


def _residual_std(near: NextActions) -> np.ndarray:
    return np.asarray(np.maximum(np.std(near.logged - near.mean, axis=0), _least_std(near)))


def _least_std(near: NextActions) -> np.ndarray:
    """Return a thousandth of the logged range: a log without noise still has a distance."""
    span = np.ptp(near.logged, axis=0)
    return 1e-3 * np.where(span > 0, span, 1.0)


def _shares(distances: np.ndarray) -> list[float]:
    """Return shares by bin; what lies beyond the last edge counts in the last bin."""
    counts, _ = np.histogram(np.minimum(distances, EDGES[-1]), EDGES)
    return (counts / len(distances)).tolist()


def overlap_checks(
    overlap: OverlapFacts | None, density: DensityFacts | None, uses_density: bool
) -> list[Check]:
    """Return the checks of `overlap` and `density`, each None where it could not be measured.

    `uses_density` says whether the estimator uses the behaviour density; only then is the density judged.
    """
    found = []
    if overlap is not None:
        found += [_distance(overlap), _nearby(overlap)]
        if uses_density and overlap.density_outside is not None:
            found.append(_rare(overlap.density_outside))
    if uses_density and density is not None:
        found.append(density_fit(density))
        if density.target_ratio is not None:
            found.append(target_density(*density.target_ratio))
    return found


def _distance(facts: OverlapFacts) -> Check:
    outside, (_, median, _, far) = facts.distance_outside, facts.distance_quantiles
    finding = (
        f"At {percent(outside)} of the next states the target acts outside what was logged at like states: its "
        f"actions lie typically {digits(median)} and at most about {digits(far)} times as far from the mean action "
        "there as logged ones."
    )
    advice = "Log episodes with the target policy plus noise, or evaluate a policy nearer to the logged one."
    return DISTANCE.check("distance", outside, finding, advice)


def _nearby(facts: OverlapFacts) -> Check:
    # A density knows better than a Gaussian around a regression, which is all that there is without one.
    rows = facts.nearby_rows if facts.overlap_rows is None else facts.overlap_rows
    finding = (
        f"The log holds {digits(rows)} nearby rows: logged actions near enough to the target's to tell what those "
        "are worth, counted as effective rows."
    )
    advice = "Log more rows near the target's actions, or compare V̂ with a few trials of the target policy."
    return NEARBY.check("nearby_rows", rows, finding, advice, shown=digits)


def _rare(share: float) -> Check:
    finding = (
        f"At {percent(share)} of the next states the behaviour density makes the target's action rarer than 99 % of "
        "the logged ones."
    )
    advice = "Log more rows near the target's actions, or let the logged controller act with more noise."
    return RARE.check("rare_actions", share, finding, advice)


def density_fit(facts: DensityFacts) -> Check:
    """Return the check of how far mean reference weights are from 1, where that is not chance; 0 if all may be 1."""
    tests = zip(facts.reference_weights, facts.reference_errors, facts.reference_rows, strict=True)
    usable = [
        (mean, error)
        for mean, error, rows in tests
        if rows >= (ENOUGH_ROWS if mean > 1.0 else ENOUGH_ROWS_BELOW)
    ]
    if not usable:
        finding = (
            "The behaviour density cannot be checked: too few logged actions lie where it says that many do."
        )
        advice = (
            "Log more rows, or fit a density to the log (--behavior fit) and see whether V̂ stays the same."
        )
        return MISFIT.check("density_fit", None, finding, advice, level="care")
    wrong = [mean for mean, error in usable if abs(mean - 1.0) > SIGNIFICANT * error]
    worst = max(wrong, key=lambda mean: abs(math.log(max(mean, 1e-30))), default=1.0)
    off = max(worst, 1.0 / max(worst, 1e-30)) - 1.0
    finding = "The behaviour density fits the logged actions."
    if wrong:
        finding = (
            f"The behaviour density does not fit the logged actions: some were up to {digits(1.0 + off)} times as "
            f"{'frequent' if worst > 1.0 else 'rare'} as it says."
        )
    advice = "Use a better density: the probabilities logged with the actions, or one fitted to the log."
    return MISFIT.check("density_fit", off, finding, advice)


def target_density(mean: float, error: float, rows: float) -> Check:
    """Return the check of the `mean` of a stochastic target's ratios, with its standard error and effective rows."""
    enough = rows >= (ENOUGH_ROWS if mean > 1.0 else ENOUGH_ROWS_BELOW)
    is_off = enough and abs(mean - 1.0) > SIGNIFICANT * error
    off = max(mean, 1.0 / max(mean, 1e-30)) - 1.0 if is_off else 0.0
    judged = ": no sign of a wrong density" if enough else "; over so few effective rows that proves nothing"
    finding = (
        f"The target's ratios π/μ average {digits(mean)} over the logged actions, where 1 is right"
        f"{'' if is_off else judged}."
    )
    advice = (
        "See whether the policy's log_prob is the density of the actions that are logged, in their units and "
        "before or after they were cut to the box as they were logged, and whether the behaviour density is theirs."
    )
    return MISFIT.check("target_density", off, finding, advice)
