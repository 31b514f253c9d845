"""Checks of estimators that weight rows or whole episodes by ratios: how many are left, and what was seen."""

from __future__ import annotations

import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.io.format import digits, percent
from kmifqe.trust.checks.base import Check, Thresholds
from kmifqe.trust.checks.weights import ROWS

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
    if "unseen" in last:
        finding = f"{percent(last['unseen'])} of the discounted future lies beyond the last logged step."
        advice = "Log longer episodes, or use an estimator that bootstraps (fqe, kmifqe)."
        found.append(UNSEEN.check("unseen_steps", last["unseen"], finding, advice))
    return found


def _mean(series: np.ndarray) -> float:
    finite = series[np.isfinite(series)]
    return float(finite.mean()) if len(finite) else float("nan")
