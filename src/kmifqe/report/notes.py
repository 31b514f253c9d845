"""Sentences a person should read beside an estimate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.report.numbers import number, plus_minus

ARRIVED = 0.98  # share of the value that the target copies must let through before silence is fair
LAST = 0.75  # where the last quarter of a run begins
FAR = 100.0  # a seed this many typical distances from the median has run away


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


def convergence_notes(estimate: Estimate) -> list[str]:
    """Return what speaks against V̂ having converged; empty if nothing does.

    Seeds that diverged are named; the rest of the notes, like V̂ in the tables, is about the others.
    """
    notes = _diverged(estimate)
    if np.isfinite(estimate.values).any():
        healthy = without_diverged(estimate)
        notes += _weights(healthy) + _ran_away(healthy) + _copies(healthy) + _moving(healthy)
    return notes


def _diverged(estimate: Estimate) -> list[str]:
    lost = ~np.isfinite(estimate.values)
    if not lost.any():
        return []
    stages = estimate.config.get("stages")
    if stages and estimate.steps <= sum(stages[:2]):
        return [f"{estimate.steps:,} steps end before the density ratio is trained: there is no value yet"]
    if lost.all():
        return [f"{_seeds(estimate, lost)} diverged: there is no value"]
    return [
        f"{estimate.diverged} of {len(lost)} seeds diverged ({_seeds(estimate, lost)}); "
        f"V̂ of the remaining {len(estimate.known)} is {plus_minus(estimate.value, estimate.spread)}"
    ]


def _weights(estimate: Estimate) -> list[str]:
    """Say when no row's importance weight tells it from another: the log holds nothing near the target's actions."""
    clip, means = estimate.config.get("clip"), estimate.infos.get("mean_weight")
    if means is None or clip is None or estimate.config.get("clip_per_dimension"):
        return []
    mean = float(np.max(means[-1]))
    if mean <= clip[0] * (1.0 + 1e-3):
        return [
            f"every importance weight is at its least, {clip[0]:g}: no logged action is near the target's, "
            "and V̂ rests on nothing the target would do"
        ]
    return []


def _ran_away(estimate: Estimate) -> list[str]:
    """Name seeds far from all others: finite still, but on their way out."""
    if len(estimate.values) < 3:
        return []
    distance = np.abs(estimate.values - np.median(estimate.values))
    typical = max(float(np.median(distance)), 1e-3 * abs(float(np.median(estimate.values))))
    far = distance > FAR * typical
    if typical == 0 or not far.any():
        return []
    return [
        f"{_seeds(estimate, far)} ended at {', '.join(number(v) for v in estimate.values[far])}, far from the "
        f"other seeds' median {number(float(np.median(estimate.values[~far])))}: diverging"
    ]


def _copies(estimate: Estimate) -> list[str]:
    """Say when too few target copies were made: each contracts by γ, so c of them let 1 − γᶜ arrive."""
    period = estimate.config.get("target_period")
    if not period:
        return []
    copies = estimate.steps // period
    arrived = 1.0 - estimate.gamma**copies
    if arrived >= ARRIVED:
        return []
    return [
        f"{copies} target copies let at most {arrived:.0%} of the value arrive at gamma {estimate.gamma:g}; "
        "take more steps, or a smaller target_period"
    ]


def _moving(estimate: Estimate) -> list[str]:
    """Say when V̂ moved over the last quarter by more than the seeds differ."""
    late = int(np.searchsorted(estimate.recorded_steps, LAST * estimate.steps))
    earlier = estimate.trajectory[min(late, len(estimate.trajectory) - 1)]
    moved = float(np.mean(estimate.values - earlier))
    noise = estimate.spread if len(estimate.values) > 1 else 0.0
    if not np.isfinite(earlier).all() or abs(moved) <= max(noise, 0.01 * abs(estimate.value)):
        return []
    compared = f"more than the seeds differ ({number(noise, moved)})" if noise else "more than 1 % of it"
    return [f"V̂ moved by {number(moved, sign=True)} over the last quarter of the steps, {compared}"]


def _seeds(estimate: Estimate, which: np.ndarray) -> str:
    names = [str(seed) for seed, chosen in zip(estimate.seeds, which) if chosen]
    return f"seed{'s' if len(names) > 1 else ''} {', '.join(names)}"
