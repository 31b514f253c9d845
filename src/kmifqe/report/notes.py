"""Sentences a person should read beside an estimate."""

from __future__ import annotations

import numpy as np

from kmifqe.estimators.base import Estimate

ARRIVED = 0.98  # share of the value that the target copies must let through before silence is fair
LAST = 0.75  # where the last quarter of a run begins


def convergence_notes(estimate: Estimate) -> list[str]:
    """Return what speaks against V̂ having converged; empty if nothing does.

    A copy of the target network contracts by γ, so after c copies at most 1 − γᶜ of the value has arrived. A
    value that moved over the last quarter by more than the seeds differ has not settled.
    """
    notes = []
    missing = int((~np.isfinite(estimate.values)).sum())
    if missing:
        notes.append(f"{missing} of {len(estimate.values)} seeds ended without a finite value: diverged")
        return notes
    period = estimate.config.get("target_period")
    if period:
        copies = estimate.steps // period
        arrived = 1.0 - estimate.gamma**copies
        if arrived < ARRIVED:
            notes.append(
                f"{copies} target copies let at most {arrived:.0%} of the value arrive at gamma {estimate.gamma:g}; "
                "take more steps, or a smaller target_period"
            )
    late = int(np.searchsorted(estimate.recorded_steps, LAST * estimate.steps))
    earlier = estimate.trajectory[min(late, len(estimate.trajectory) - 1)]
    moved = float(np.mean(estimate.values - earlier))
    noise = float(np.std(estimate.values, ddof=1)) if len(estimate.values) > 1 else 0.0
    if np.isfinite(earlier).all() and abs(moved) > max(noise, 0.01 * abs(estimate.value)):
        notes.append(
            f"V̂ moved by {moved:+.3f} over the last quarter of the steps, more than the seeds differ ({noise:.3f})"
        )
    return notes
