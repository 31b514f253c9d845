"""What speaks against the log covering the target, and against the density that was told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kmifqe.trust.diagnostics_base import Diagnostic, Limit, digits, graded, percent

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
