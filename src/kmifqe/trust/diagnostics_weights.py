"""What speaks against KMIFQE's weights and kernel: too few rows, too much clipped, an unsteady bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.trust.diagnostics_base import Diagnostic, Limit, digits, graded, percent
from kmifqe.trust.diagnostics_overlap import ENOUGH_ROWS, MISFIT, SIGNIFICANT

LAST = 0.75  # where the last quarter of a run begins

ROWS = Limit(
    100,
    30,
    "an average over 100 rows is off by a tenth of what it averages, over 30 by a fifth, and such averages are "
    "chained over 1/(1 − γ) steps",
    below=True,
)
CUT_OFF = Limit(
    0.3,
    0.9,
    "the clip takes weight from the rows that are most like the target; what it takes is bias, and no interval "
    "shows it",
)
FLOOR = Limit(
    0.1,
    0.5,
    "the least weight is given to rows that are nothing like the target; once they hold a tenth of the weight they "
    "pull V̂ towards the behaviour's value",
)
OUTSIDE = Limit(
    0.6,
    0.9,
    "beyond the bound there is nothing to average: the kernel becomes one-sided and its bias grows from h² to h; a "
    "target on one bound of one dimension makes a half",
)
SETTLED = Limit(
    0.2,
    float("inf"),
    "V̂'s kernel bias goes with h²: h must be steady to a fifth before that is steady to half",
)
KERNEL_BIAS = Limit(
    1.0,
    5.0,
    "an interval shows chance, not bias: a bias beyond its half-width puts the truth outside of it",
)
TAKEN_OFF = Limit(
    1.0,
    5.0,
    "what is taken off is what Q says of actions that few rows show, added up over 1/(1 − γ) steps: it can be wrong "
    "by as much as it moves V̂, and no interval shows it",
)


def weight_diagnostics(
    estimate: Estimate, facts: Mapping[str, Any], half_width: float | None
) -> list[Diagnostic]:
    """Return the diagnostics of a kernel estimator; `half_width` is that of V̂'s interval, where there is one."""
    found = [_bandwidth(estimate)] if "h" in estimate.infos else []
    if "raw_effective_rows" in facts:
        found += [_rows(facts), _mean_weight(facts), _cut_off(estimate, facts), _floor(estimate, facts)]
    if "kernel_outside" in facts:
        found += [_outside(facts), _metric(facts)]
        if half_width is not None:
            moved = _moved_by_bias(estimate)
            found.append(_kernel_bias(facts, half_width) if moved is None else _taken_off(moved, half_width))
    return found


def _rows(facts: Mapping[str, Any]) -> Diagnostic:
    rows, of = facts["raw_effective_rows"], facts["rows_in_sample"]
    line = f"the weights leave as much as {digits(rows)} of {of:,} rows (effective sample size, unclipped)"
    return graded("effective_rows", rows, ROWS, line, "{:.0f}".format)


def _mean_weight(facts: Mapping[str, Any]) -> Diagnostic:
    """Hold the unclipped mean weight against the kernel's mass where actions can be: equal if μ is right."""
    mean, error = facts["raw_mean_weight"], facts["raw_mean_weight_error"]
    expected = 1.0 - facts.get("kernel_outside", 0.0)
    ratio = mean / max(expected, 1e-30)
    off = max(ratio, 1.0 / max(ratio, 1e-30)) - 1.0
    told = f"unclipped weights average {digits(mean)}, where a right density and enough rows give {digits(expected)}"
    level = MISFIT.level(off)
    if facts["raw_effective_rows"] < ENOUGH_ROWS:
        level, line = "ok", f"{told}; over so few effective rows that proves nothing"
    elif abs(mean - expected) <= SIGNIFICANT * error:
        level, line = "ok", f"{told}: no sign of a wrong density"
    elif mean > expected:
        line = f"{told}: the behaviour density is too low where the target acts"
    else:
        line = f"{told}: the log lacks rows that the kernel asks for, or the density is too high there"
    return Diagnostic("mean_weight", mean, level, line, f"off by: {MISFIT.words(percent)}", MISFIT.reason)


def _cut_off(estimate: Estimate, facts: Mapping[str, Any]) -> Diagnostic:
    cut, share, top = facts["weight_cut_off"], facts["clipped_high"], estimate.config["clip"][1]
    line = f"the clip at {digits(top)} holds {percent(share)} of the rows down and takes {percent(cut)} of all weight"
    return graded("clipped_high", cut, CUT_OFF, line)


def _floor(estimate: Estimate, facts: Mapping[str, Any]) -> Diagnostic:
    held, share, least = facts["floor_weight_share"], facts["clipped_low"], estimate.config["clip"][0]
    line = (
        f"{percent(share)} of the rows are unlike anything the target does and sit at the least weight, "
        f"{least:g}; they hold {percent(held)} of all weight"
    )
    return graded("clipped_low", held, FLOOR, line)


def _outside(facts: Mapping[str, Any]) -> Diagnostic:
    share = facts["kernel_outside"]
    line = f"{percent(share)} of the kernel lies beyond the action bounds and every logged action"
    return graded("kernel_outside", share, OUTSIDE, line)


def _metric(facts: Mapping[str, Any]) -> Diagnostic:
    low, median, high = facts["metric_condition_quantiles"]
    line = (
        f"the kernel is typically {digits(median**0.5)} times as long as wide (metric condition number "
        f"{digits(median)}; {digits(low)} to {digits(high)} at most states)"
    )
    reason = (
        "any shape is a right answer: actions that do not matter are averaged over; shown to be looked at"
    )
    return Diagnostic("metric", median, "ok", line, "none", reason)


def _kernel_bias(facts: Mapping[str, Any], half_width: float) -> Diagnostic:
    bias = facts["kernel_bias"]
    ratio = abs(bias) / max(half_width, 1e-30)
    line = (
        f"smoothing over nearby actions moves V̂ by about {bias:+.2g}, {digits(ratio)} times the interval's "
        "half-width"
    )
    return graded("kernel_bias", ratio, KERNEL_BIAS, line, digits)


def _moved_by_bias(estimate: Estimate) -> float | None:
    """Return how far V̂ moved by taking the kernel's bias off; None where it was not, or not yet."""
    finite = np.isfinite(estimate.values)
    bias, begins = estimate.config.get("bias"), estimate.config.get("bias_step", 0)
    if bias == "subtracted":
        return -estimate.config.get("bias_share", 1.0) * float(np.mean(estimate.infos["bias"][-1][finite]))
    before = int(np.searchsorted(estimate.recorded_steps, begins, side="right")) - 1
    if bias != "held" or not 0 <= before < len(estimate.recorded_steps) - 1:
        return None
    return float(np.mean(estimate.values[finite] - estimate.trajectory[before][finite]))


def _taken_off(moved: float, half_width: float) -> Diagnostic:
    ratio = abs(moved) / max(half_width, 1e-30)
    line = f"taking the kernel's bias off moved V̂ by {moved:+.2g}, {digits(ratio)} times the interval's half-width"
    return graded("bias_taken_off", ratio, TAKEN_OFF, line, digits)


def _bandwidth(estimate: Estimate) -> Diagnostic:
    """Compare the mean log h of the last quarter's two halves; a bandwidth at one of its bounds is told too."""
    h = np.asarray(estimate.infos["h"], np.float64)
    log_h = np.log(np.maximum(np.nanmean(np.where(np.isfinite(h), h, np.nan), axis=1), 1e-30))
    late = log_h[min(int(np.searchsorted(estimate.recorded_steps, LAST * estimate.steps)), len(log_h) - 1) :]
    first, second = late[: (len(late) + 1) // 2], late[len(late) // 2 :]
    moved = abs(float(second.mean() - first.mean()))
    end = float(np.exp(late[-1]))
    low, high = estimate.config.get("bandwidth_bounds", (0.0, np.inf))
    if estimate.config.get("bandwidth") is None and not low * 1.01 < end < high / 1.01:
        line = (
            f"the bandwidth ended at its bound, {digits(end)} half action ranges: the rule found no optimum"
        )
        return Diagnostic("bandwidth", end, "care", line, f"care at {low:g} or {high:g}", SETTLED.reason)
    line = f"the bandwidth is {digits(end)} half action ranges and moved by {percent(moved)} over the last quarter"
    return graded("bandwidth", moved, SETTLED, line)
