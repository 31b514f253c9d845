"""How policies compare that were judged on one log with the same seeds: what is known of their values jointly.

Networks of one seed share their initial weights, their draws and the weights of the log's episodes, and all policies
share the log. So most of what is uncertain about two values is common to both, and their difference is known far
better than either. Covariances say so: of what another log would change (each episode's moves of V̂, from
`trust.influence`), of what training does by chance (the spread over networks), and of what all networks have wrong
alike, which two policies share as far as they act alike. All enter as in `trust.interval`; the statements here are
read off draws from their sum (docs/guides/ranking.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import stdtrit

from kmifqe.estimators.base import Estimate
from kmifqe.trust.interval import LEAST_ERROR, SHARED, variance_of
from kmifqe.trust.verdict import WORDS, Judgement, Verdict, Word

DRAWS = 20_000  # a probability of 0.95 is then known to 0.002
ROUNDING = 1e-10  # of the variances of two values: the least that is left of them in their difference
SEED = 0  # of the draws: the same evidence gives the same words


# --- Several estimators of one policy


@dataclass(frozen=True)
class PolicyValue:
    """What all estimators together say of one policy: the place where another choice between them plugs in."""

    values: np.ndarray  # (networks,): V̂ of every seed, NaN where it diverged or was not trained
    moves: (
        np.ndarray | None
    )  # (episodes looked at,): `ChanceFacts.moves`; None where an estimator cannot tell
    least: float = (
        0.0  # the error that is left where networks agree (`trust.interval`), as a standard deviation
    )
    weights: Mapping[str, float] = field(default_factory=dict)  # of the estimators used; they add up to 1
    deviations: Mapping[str, float] = field(default_factory=dict)  # of each of them from the value
    verdict: Verdict | None = None
    actions: np.ndarray | None = (
        None  # at some states, the same for all policies (`Measurements.actions`); None where unknown
    )

    @property
    def value(self) -> float:
        """V̂, the mean over networks; NaN where none has a value."""
        known = self.values[np.isfinite(self.values)]
        return float(known.mean()) if len(known) else float("nan")

    @property
    def word(self) -> Word:
        """The verdict's word; "do not use" where nothing was judged."""
        return WORDS[-1] if self.verdict is None else self.verdict.word

    @property
    def is_ranked(self) -> bool:
        """Whether the policy has a place among others: its estimate may be used, and has a spread over networks."""
        return self.word != WORDS[-1] and int(np.isfinite(self.values).sum()) > 1


def combined(
    estimates: Sequence[Mapping[str, Estimate]], judgements: Sequence[Judgement]
) -> list[PolicyValue]:
    """Return one value for every policy from the `estimates` of several estimators, by policy and estimator.

    As in `trust.choice`, estimates that nothing forbids to use are averaged, weighted by their precision. Here the
    precision is that of an estimator over all policies and not the policy's own: two policies are then weighted
    alike, and what an estimator gets wrong of both drops out of their difference. `judgements` are those of
    `judge_run`, in the order of the policies.
    """
    precision = {}
    for name in estimates[0]:
        variances = [variance_of(each[name]) for each in estimates]
        known = [variance for variance in variances if variance]
        precision[name] = 1.0 / float(np.median(known)) if known else 0.0
    if not any(precision.values()):
        precision = dict.fromkeys(precision, 1.0)
    return [_of_policy(each, judgement, precision) for each, judgement in zip(estimates, judgements)]


def _of_policy(
    estimates: Mapping[str, Estimate], judgement: Judgement, precision: Mapping[str, float]
) -> PolicyValue:
    words = {name: WORDS.index(judgement.verdicts[name].word) for name in estimates}
    finite = [name for name, each in estimates.items() if np.isfinite(each.value)] or list(estimates)
    sound = [name for name in finite if words[name] < len(WORDS) - 1] or finite
    used = [name for name in sound if precision[name] > 0.0] or sound
    total = sum(precision[name] for name in used) or 1.0
    weights = {name: precision[name] / total or 1.0 / len(used) for name in used}
    values = np.sum([weights[name] * np.asarray(estimates[name].values, float) for name in used], axis=0)
    values = np.where(np.isfinite(values), values, np.nan)
    moves = [moves_of(estimates[name]) for name in used]
    known = [each for each in moves if each is not None]
    together = (
        np.sum([weights[name] * each for name, each in zip(used, known)], axis=0)
        if len(known) == len(used) and len({len(each) for each in known}) == 1
        else None
    )
    best = min(used, key=lambda name: (words[name], -weights[name]))
    middle = sum(weights[name] * estimates[name].value for name in used)
    return PolicyValue(
        values,
        together,
        least=least_error(estimates[best]),
        weights=weights,
        deviations={name: estimates[name].value - middle for name in used},
        verdict=judgement.verdicts[best],
        actions=actions_of(estimates[best]),
    )


def moves_of(estimate: Estimate) -> np.ndarray | None:
    """Return what each episode looked at does to V̂ (`ChanceFacts.moves`); None where that was not measured."""
    chance = None if estimate.measurements is None else estimate.measurements.chance
    return None if chance is None or not chance.moves else np.asarray(chance.moves)


def actions_of(estimate: Estimate) -> np.ndarray | None:
    """Return what the policy does at some logged states (`Measurements.actions`); None where that is not known."""
    found = estimate.measurements
    return None if found is None or not found.actions else np.asarray(found.actions)


def least_error(estimate: Estimate) -> float:
    """Return the error that is left where networks agree, as `trust.interval` has it."""
    found = estimate.measurements
    return 0.0 if found is None else float(LEAST_ERROR * found.log.value_unit)


def alone(estimate: Estimate) -> PolicyValue:
    """Return what one estimate says of its policy."""
    values = np.where(np.isfinite(estimate.values), estimate.values, np.nan)
    return PolicyValue(values, moves_of(estimate), least_error(estimate), actions=actions_of(estimate))


# --- What is known of all values jointly


@dataclass(frozen=True)
class Joint:
    """Values of several policies, and the covariances of what is uncertain about them."""

    values: np.ndarray  # (policies,)
    log: np.ndarray  # (policies, policies): covariance over logs like this one; 0 where networks carry it
    training: np.ndarray  # (policies, policies): covariance by training
    log_freedom: float  # degrees of freedom of the first
    training_freedom: np.ndarray  # (policies, policies): and of the second, by pair

    def variance(self, contrast: np.ndarray) -> tuple[float, float]:
        """Return the variance of contrast·values and its degrees of freedom, by Satterthwaite."""
        involved = np.flatnonzero(contrast)
        freedom = float(self.training_freedom[np.ix_(involved, involved)].min())
        log = float(contrast @ self.log @ contrast)
        training = float(contrast @ self.training @ contrast)
        # Of two policies that act alike only rounding is left, which must not become a certainty.
        least = ROUNDING * float(contrast**2 @ np.diag(self.log + self.training))
        log, training = max(log, 0.0), max(training, least, 0.0)
        spread = log**2 / self.log_freedom + training**2 / freedom
        total = log + training
        return total, total**2 / spread if spread > 0 else freedom

    def difference(self, one: int, other: int, level: float) -> tuple[float, float, float]:
        """Return the difference of the values of two policies, and its interval at this `level`."""
        contrast = np.zeros(len(self.values))
        contrast[one], contrast[other] = 1.0, -1.0
        return self._interval(contrast, level)

    def interval(self, policy: int, level: float) -> tuple[float, float, float]:
        """Return the value of one policy, and its interval at this `level`."""
        contrast = np.zeros(len(self.values))
        contrast[policy] = 1.0
        return self._interval(contrast, level)

    def _interval(self, contrast: np.ndarray, level: float) -> tuple[float, float, float]:
        variance, freedom = self.variance(contrast)
        half = float(stdtrit(freedom, 0.5 + 0.5 * level) * np.sqrt(variance))
        value = float(contrast @ self.values)
        return value, value - half, value + half

    def subset(self, policies: Sequence[int]) -> Joint:
        """Return what is known of some of the policies."""
        pick = np.ix_(policies, policies)
        return Joint(
            self.values[list(policies)],
            self.log[pick],
            self.training[pick],
            self.log_freedom,
            self.training_freedom[pick],
        )


def joint(policies: Sequence[PolicyValue], episodes: int) -> Joint:
    """Return what is known jointly of `policies` that were judged on one log of so many `episodes`.

    A policy with fewer networks has the first of the seeds. Where the moves of one policy are not known, the networks
    must have had episode weights of their own: their spread then tells of the log too, and no other part of it is
    counted. The error that is left where networks agree is as common to two policies as what the log does to them,
    and how far estimators differ about two policies counts as far as they differ about the difference.
    """
    count, most = len(policies), max(len(each.values) for each in policies)
    values = np.stack(
        [np.pad(each.values, (0, most - len(each.values)), constant_values=np.nan) for each in policies]
    )
    known = np.isfinite(values)
    networks = known.sum(axis=1)
    means = np.array([row[mask].mean() if mask.any() else np.nan for row, mask in zip(values, known)])
    covariance, freedom = np.zeros((count, count)), np.ones((count, count))
    for i in range(count):
        for j in range(i, count):
            both = known[i] & known[j]
            if both.sum() > 1:
                a, b = values[i][both], values[j][both]
                covariance[i, j] = covariance[j, i] = np.cov(a, b, ddof=1)[0, 1]
                freedom[i, j] = freedom[j, i] = both.sum() - 1
    # Policies with fewer networks have the first of those that the others have: means share min(Kᵢ, Kⱼ) networks.
    shared = 1.0 / np.maximum(np.maximum.outer(networks, networks), 1)
    covariance = _positive(covariance)
    training = covariance * shared + SHARED * _positive(_wrong_alike(policies, covariance))
    least = np.array([each.least for each in policies])
    moves = [each.moves for each in policies if each.moves is not None]
    more = max(episodes - 1.0, 1.0)
    if len(moves) == count:
        stacked = np.stack(moves)
        log = stacked @ stacked.T
        log += np.outer(least, least) * _correlation(log)
    else:
        # As in `trust.interval`: Bayesian weights spread a mean over m episodes by (m − 1)/(m + 1) of its variance.
        log = np.outer(least, least) * _correlation(training)
        training = training * (episodes + 1) / more
        freedom = 1.0 / (1.0 / freedom + 1.0 / more)
    return Joint(means, log, training + _between(policies), more, freedom)


def _wrong_alike(policies: Sequence[PolicyValue], covariance: np.ndarray) -> np.ndarray:
    """Return the covariance of what all networks have wrong alike, in the unit in which `SHARED` counts it.

    Of one policy it is the variance over networks, as in `trust.interval`. Two policies share it as far as they act
    alike: Q is then asked at the same actions. How networks' deviations correlate does not tell, because it is not
    chance that is wrong alike. So the correlation is exp(−d²), d² the mean square distance of the policies' actions
    in standard deviations of the logged ones. Where actions are not known, as of the logged controller, the
    `covariance` over networks stands in.
    """
    found = covariance.copy()
    std = np.sqrt(np.diag(covariance))
    for i, one in enumerate(policies):
        for j, other in enumerate(policies[:i]):
            if one.actions is not None and other.actions is not None:
                alike = np.exp(-np.mean((one.actions - other.actions) ** 2))
                found[i, j] = found[j, i] = std[i] * std[j] * alike
    return found


def _between(policies: Sequence[PolicyValue]) -> np.ndarray:
    """Return the covariance of what estimators differ by: of a difference, how far they differ about that."""
    names = sorted({name for each in policies for name in each.deviations})
    rows = [
        [np.sqrt(each.weights.get(name, 0.0)) * each.deviations.get(name, 0.0) for name in names]
        for each in policies
    ]
    deviations = np.array(rows).reshape(len(policies), len(names))
    return np.asarray(deviations @ deviations.T)


def _correlation(covariance: np.ndarray) -> np.ndarray:
    """Return the correlations of a covariance; 1 on the diagonal, and 0 beside it where a variance is 0."""
    std = np.sqrt(np.diag(covariance))
    product = np.outer(std, std)
    found = np.divide(covariance, product, out=np.zeros_like(covariance), where=product > 0)
    np.fill_diagonal(found, 1.0)
    return np.clip(found, -1.0, 1.0)


def _positive(covariance: np.ndarray) -> np.ndarray:
    """Return the nearest covariance without negative eigenvalues: entries over unequal networks can make some."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


# --- Statements


def value_draws(known: Joint, draws: int = DRAWS, seed: int = SEED) -> np.ndarray:
    """Return (draws, policies): values as they may be, with the tails that each part's degrees of freedom ask for.

    `known` is what is known jointly, `draws` how many are made (20,000 by default), `seed` their random seed.
    """
    rng = np.random.default_rng(seed)
    total = np.tile(known.values, (draws, 1))
    # One for all: what policies have in common must stay common. It is that of the policies with the most networks.
    freedom_of_all = float(np.diag(known.training_freedom).max())
    parts = ((known.log, known.log_freedom), (known.training, freedom_of_all))
    for covariance, freedom in parts:
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = rng.standard_normal((draws, len(root))) @ root.T
        total += normal * np.sqrt(freedom / rng.chisquare(freedom, (draws, 1)))
    return total


def critical_value(known: Joint, draws: np.ndarray, pairs: Sequence[tuple[int, int]], level: float) -> float:
    """Return by how many standard errors the differences of all `pairs` may at once be wrong, at this `level`.

    The largest of many deviations, in standard errors, is larger than any one: this is its quantile over the `draws`
    of all values, with the pairs as dependent as they are (the max-t method). `known` has the values themselves.
    """
    if not pairs:
        return float("nan")
    largest = np.zeros(len(draws))
    for one, other in pairs:
        contrast = np.zeros(len(known.values))
        contrast[one], contrast[other] = 1.0, -1.0
        variance, _ = known.variance(contrast)
        deviation = np.abs((draws - known.values) @ contrast)
        largest = np.maximum(largest, deviation / max(np.sqrt(variance), 1e-300))
    return float(np.quantile(largest, level))


def p_best(draws: np.ndarray) -> np.ndarray:
    """Return for every policy the share of `draws` in which it has the largest value."""
    return np.bincount(draws.argmax(axis=1), minlength=draws.shape[1]) / len(draws)


def rank_intervals(draws: np.ndarray, level: float) -> np.ndarray:
    """Return (policies, 2): between which ranks, 1 the best, each policy lies in a share `level` of `draws`."""
    ranks = draws.shape[1] - draws.argsort(axis=1).argsort(axis=1)
    tail = 0.5 * (1.0 - level)
    return np.quantile(ranks, (tail, 1.0 - tail), axis=0, method="nearest").T.astype(int)


def groups(order: Sequence[int], apart: Mapping[tuple[int, int], bool]) -> list[list[int]]:
    """Return the longest runs of policies, best first, in which no two can be told apart.

    `order` are policies from the best to the worst, `apart` says of each pair of them whether its interval excludes
    0. A policy can be in two groups: being alike is not transitive.
    """
    alike = lambda a, b: not apart.get((a, b), apart.get((b, a), False))  # noqa: E731
    runs: list[list[int]] = []
    for start in range(len(order)):
        end = start + 1
        while end < len(order) and all(alike(order[k], order[end]) for k in range(start, end)):
            end += 1
        run = list(order[start:end])
        if not runs or not set(run) <= set(runs[-1]):
            runs.append(run)
    return runs
