"""How well estimates rank policies whose true values are known, as DOPE scores them.

Per task, truths and estimates are scaled such that the worst true value is 0 and the best is 1, and estimates are
capped at 2. The scores are the mean absolute error, Spearman's rank correlation, and regret@k, the best true value
less the best among the k policies with the highest estimates. Intervals are of a bootstrap over policies.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from scipy.stats import spearmanr

CAP = 2.0
BOOTSTRAPS = 1_000
TOP = (1, 3, 5)


class Score(msgspec.Struct, frozen=True):
    """One score, and its interval over policies; the ends are None where too few bootstraps have a value."""

    value: float
    low: float | None = None
    high: float | None = None


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimates of one estimator are worth for choosing among policies."""

    policies: int
    rank_correlation: Score | None  # None where the estimates or the truths do not differ
    regret_1: Score
    regret_3: Score
    regret_5: Score
    absolute_error: Score  # in units of the range of the true values


def dope_scores(
    estimates: np.ndarray,
    truths: np.ndarray,
    *,
    ranked: np.ndarray | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Scores:
    """Return the scores of `estimates` (policies,) against `truths` (policies,).

    An estimate that is not finite counts as the worst. `ranked` says which policies have a place: those without come
    after all others, because nobody would choose them; by default all have one. `level` is that of the intervals,
    0.95 by default, `seed` the random seed of their bootstrap.
    """
    worst, best = float(truths.min()), float(truths.max())
    unit = max(best - worst, 1e-300)
    true = (truths - worst) / unit
    scaled = (estimates - worst) / unit
    finite = np.where(np.isfinite(scaled), scaled, -CAP)
    guessed = np.clip(finite, -CAP, CAP)
    order = guessed if ranked is None else np.where(ranked, guessed, guessed - 3.0 * CAP)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(true), (BOOTSTRAPS, len(true)))

    def score(of: Callable[[np.ndarray, np.ndarray], float], guess: np.ndarray = order) -> Score:
        value = of(guess, true)
        again = np.array([of(guess[pick], true[pick]) for pick in picks])
        again = again[np.isfinite(again)]
        if len(again) < BOOTSTRAPS // 2:
            return Score(value)
        tail = 0.5 * (1.0 - level)
        low, high = np.quantile(again, (tail, 1.0 - tail))
        return Score(value, float(low), float(high))

    correlation = score(rank_correlation)
    return Scores(
        policies=len(true),
        rank_correlation=correlation if np.isfinite(correlation.value) else None,
        **{f"regret_{k}": score(lambda e, t, k=k: regret(e, t, k)) for k in TOP},  # type: ignore[misc]
        absolute_error=score(lambda e, t: float(np.mean(np.abs(e - t))), guessed),
    )


def rank_correlation(estimates: np.ndarray, truths: np.ndarray) -> float:
    """Return Spearman's rank correlation; NaN where all estimates, or all truths, are the same."""
    if np.ptp(estimates) == 0 or np.ptp(truths) == 0:
        return float("nan")
    return float(spearmanr(estimates, truths).statistic)


def regret(estimates: np.ndarray, truths: np.ndarray, k: int) -> float:
    """Return the best of `truths` less the best among the `k` policies with the highest `estimates`."""
    top = np.argsort(-estimates, kind="stable")[:k]
    return float(truths.max() - truths[top].max())
