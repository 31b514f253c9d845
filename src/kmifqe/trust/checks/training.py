"""What speaks against V̂ having converged, read off its trajectory: it needs no final state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.trust.checks.base import Diagnostic, Limit, digits, graded, percent

LAST = 0.75  # where the last quarter of a run begins
FAR = 100.0  # a seed this many typical distances from the median has run away

ARRIVED = Limit(
    0.98,
    0.8,
    "each copy of the target network lets one more step of the future in: c copies 1 − γᶜ of the value, t soft steps "
    "1 − (1 − τ(1 − γ))ᵗ; 2 % missing is within most intervals, 20 % is not",
    below=True,
)
MOVED = Limit(
    1.0,
    5.0,
    "a value that moves by more than the seeds differ, or by more than 1 % of itself, within a quarter of the run "
    "will go on doing so",
)
REWARDS = Limit(
    0.0,
    0.1,
    "V̂ per step is a weighted mean of rewards: outside their range, and 0 after an end, it is the network's "
    "invention; a tenth of the range is left for rewards that the log did not happen to see",
)
WIDTH = Limit(
    0.5,
    1.6,
    "an interval half as wide, to either side, as single episodes scatter is what ten episodes of the target itself "
    "would give, and 1.6 what one would: then try the policy once instead",
)
START = Limit(
    0.33,
    1.5,
    "along logged episodes a right Q's TD errors cancel; what is left over is missing from V̂, or too much in it. A "
    "bias of a third of the half-width lowers a 90 % interval's coverage to 85 %, 1.5 of it puts the truth outside",
)
START_SIGNIFICANT = 2.0  # standard errors that are left to chance
HELD_OUT = Limit(
    1.5,
    3.0,
    "on episodes that training saw, TD errors are the environment's chance; half as large again on others means that "
    "Q has learned the log by heart",
)


def without_diverged(estimate: Estimate) -> Estimate:
    """Return the estimate of the seeds that ended with a finite value; all of them if none did.

    Seeds train apart, so one that diverged says nothing of the others' values, only of the estimator.
    """
    finite = np.isfinite(estimate.values)
    if finite.all() or not finite.any():
        return estimate
    return replace(
        estimate,
        seeds=tuple(seed for seed, kept in zip(estimate.seeds, finite) if kept),
        values=estimate.values[finite],
        trajectory=estimate.trajectory[:, finite],
        infos={name: series[:, finite] for name, series in estimate.infos.items()},
        final_state=None,
    )


def training_diagnostics(estimate: Estimate) -> list[Diagnostic]:
    """Return the diagnostics of convergence; seeds that diverged are named, the rest is about the others."""
    found: list[Diagnostic | None] = [_diverged(estimate)]
    if np.isfinite(estimate.values).any():
        healthy = without_diverged(estimate)
        found += [_flat_weights(healthy), _ran_away(healthy), _copies(healthy), _moving(healthy)]
    return [diagnostic for diagnostic in found if diagnostic is not None]


def value_diagnostics(
    estimate: Estimate, facts: Mapping[str, Any], half_width: float | None
) -> list[Diagnostic]:
    """Return the diagnostics that hold V̂, its interval and its TD errors against the log's rewards."""
    if not np.isfinite(estimate.values).any():
        return []
    found = [_reward_range(estimate, facts)]
    if half_width is not None:
        found.append(_width(facts, half_width))
        if facts.get("start_td_error") is not None:
            found.append(_start(facts, half_width))
    if "td_rms_held_out" in facts:
        found.append(_held_out(facts))
    return found


def _diverged(estimate: Estimate) -> Diagnostic:
    lost = ~np.isfinite(estimate.values)
    reason = (
        "a seed without a finite value is an estimator that does not converge on this log; others may follow"
    )

    def told(level: Any, line: str) -> Diagnostic:
        return Diagnostic(
            "diverged", float(lost.sum()), level, line, "care from 1 seed, bad from half", reason
        )

    stages = estimate.config.get("stages")
    if not lost.any():
        return told("ok", "every seed ended with a finite value")
    if stages and estimate.steps <= sum(stages[:2]):
        return told(
            "bad", f"{estimate.steps:,} steps end before the density ratio is trained: there is no value yet"
        )
    if lost.all():
        return told("bad", f"{_seeds(estimate, lost)} diverged: there is no value")
    line = (
        f"{estimate.diverged} of {len(lost)} seeds diverged ({_seeds(estimate, lost)}); V̂ of the remaining "
        f"{len(estimate.known)} is {_value(estimate.value)}"
    )
    if len(estimate.known) > 1:
        line += f" ± {_value(estimate.spread)}"
    return told("bad" if lost.mean() >= 0.5 else "care", line)


def _flat_weights(estimate: Estimate) -> Diagnostic | None:
    """Say when no row's importance weight tells it from another: the log holds nothing near the target's actions."""
    clip, means = estimate.config.get("clip"), estimate.infos.get("mean_weight")
    if means is None or clip is None or estimate.config.get("clip_per_dimension"):
        return None
    mean = float(np.max(means[-1]))
    if mean > clip[0] * (1.0 + 1e-3):
        return None
    line = (
        f"every importance weight is at its least, {clip[0]:g}: no logged action is near the target's, and V̂ rests "
        "on nothing the target would do"
    )
    reason = "weights that tell no row from another make V̂ the behaviour's value"
    return Diagnostic("flat_weights", mean, "bad", line, f"bad at {clip[0]:g}", reason)


def _ran_away(estimate: Estimate) -> Diagnostic | None:
    """Name seeds far from all others: finite still, but on their way out."""
    if len(estimate.values) < 3:
        return None
    distance = np.abs(estimate.values - np.median(estimate.values))
    typical = max(float(np.median(distance)), 1e-3 * abs(float(np.median(estimate.values))))
    far = distance > FAR * typical
    if typical == 0 or not far.any():
        return None
    line = (
        f"{_seeds(estimate, far)} ended at {', '.join(digits(v) for v in estimate.values[far])}, far from the other "
        f"seeds' median {_value(float(np.median(estimate.values[~far])))}: diverging"
    )
    reason = "seeds differ by chance only; a hundred times their usual distance is no chance"
    level = "bad" if far.mean() >= 0.2 else "care"
    threshold = f"care from one seed {FAR:g} times as far as the others, bad from a fifth of them"
    return Diagnostic("ran_away", float(far.sum()), level, line, threshold, reason)  # type: ignore[arg-type]


def _copies(estimate: Estimate) -> Diagnostic | None:
    """Say when the target network was renewed too seldom: a copy contracts by γ, a soft step by 1 − τ(1 − γ)."""
    period, tau = estimate.config.get("target_period"), estimate.config.get("tau")
    if period:
        copies = estimate.steps // period
        arrived, remedy = 1.0 - estimate.gamma**copies, "a smaller target_period"
        line = f"{copies} target copies let"
    elif tau and "stages" not in estimate.config:
        arrived, remedy = 1.0 - (1.0 - tau * (1.0 - estimate.gamma)) ** estimate.steps, "a larger tau"
        line = f"{estimate.steps:,} steps of a target network that follows by {tau:g} a step let"
    else:
        return None
    line += f" at most {arrived:.0%} of the value arrive at gamma {estimate.gamma:g}"
    if arrived < ARRIVED.care:
        line += f"; take more steps, or {remedy}"
    return graded("target_copies", arrived, ARRIVED, line)


def _moving(estimate: Estimate) -> Diagnostic | None:
    """Say when V̂ moved over the last quarter by more than the seeds differ."""
    late = int(np.searchsorted(estimate.recorded_steps, LAST * estimate.steps))
    earlier = estimate.trajectory[min(late, len(estimate.trajectory) - 1)]
    if not np.isfinite(earlier).all():
        return None
    moved = float(np.mean(estimate.trajectory[-1] - earlier))  # a mean over the last steps would hide it
    noise = estimate.spread if len(estimate.values) > 1 else 0.0
    allowed = max(noise, 0.01 * abs(estimate.value))
    ratio = abs(moved) / allowed if allowed > 0 else float(moved != 0)
    line = f"V̂ moved by {moved:+.3g} over the last quarter of the steps"
    if MOVED.level(ratio) != "ok":
        line += f", more than the seeds differ ({digits(noise)})" if noise else ", more than 1 % of it"
    return graded("drift", ratio, MOVED, line, digits)


def _reward_range(estimate: Estimate, facts: Mapping[str, Any]) -> Diagnostic:
    low, high = facts["reward_low"], facts["reward_high"]
    if facts["episodes_terminated"]:
        low, high = min(low, 0.0), max(high, 0.0)
    beyond = np.maximum(estimate.known - high, low - estimate.known)
    out = max(0.0, float(beyond.max())) / max(high - low, 1e-12 * max(abs(low), abs(high)), 1e-300)
    where = f"the logged rewards, {digits(low)} to {digits(high)}"
    if out == 0.0:
        line = f"V̂ lies within {where}, as a mean of rewards must"
    else:
        count = int((beyond > 0).sum())
        furthest = digits(float(estimate.known[np.argmax(beyond)]))
        line = (
            f"V̂ of {count} of {len(estimate.values)} seeds lies outside {where} (as far as {furthest}): a mean of "
            "rewards cannot, so Q is diverging"
        )
    return graded("reward_range", out, REWARDS, line, lambda x: f"{percent(x)} of the range")


def _width(facts: Mapping[str, Any], half_width: float) -> Diagnostic:
    ratio = half_width / max(facts["return_std"], 1e-300)
    worth = (1.645 / max(ratio, 1e-30)) ** 2  # a mean of so many has a 90 % interval as wide
    line = (
        f"the interval reaches {digits(half_width)} to either side: about what "
        f"{f'{worth:,.0f} episodes' if worth >= 1.5 else 'one episode or less'} of the target itself would give"
    )
    return graded("interval_width", ratio, WIDTH, line, digits)


def _start(facts: Mapping[str, Any], half_width: float) -> Diagnostic:
    missed, error = facts["start_td"], facts["start_td_error"]
    beyond = max(0.0, abs(missed) - START_SIGNIFICANT * error) / max(half_width, 1e-300)
    line = f"followed along logged episodes, Q misses {missed:+.2g} ± {digits(error)} of what it promises"
    if START.level(beyond) != "ok":
        line += f", where the interval allows {digits(half_width)}: Q is not yet right where episodes begin"
    return graded("start_td", beyond, START, line, lambda x: f"{digits(x)} half-widths beyond chance")


def _held_out(facts: Mapping[str, Any]) -> Diagnostic:
    trained, held_out = facts["td_rms_trained"], facts["td_rms_held_out"]
    ratio = held_out / max(trained, 1e-300)
    line = (
        f"TD errors are {digits(ratio)} times as large on episodes that training hardly saw as on the others"
    )
    return graded("held_out_td", ratio, HELD_OUT, line, digits)


def _value(x: float) -> str:
    """Return a value as the tables print it."""
    return f"{x:.3f}" if 0.01 <= abs(x) < 1e5 else f"{x:.3g}"


def _seeds(estimate: Estimate, which: np.ndarray) -> str:
    names = [str(seed) for seed, chosen in zip(estimate.seeds, which) if chosen]
    return f"seed{'s' if len(names) > 1 else ''} {', '.join(names)}"
