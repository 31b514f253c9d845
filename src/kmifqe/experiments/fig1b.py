"""Figure 1b: error against a fixed bandwidth, with and without the learned metric, beside the learned bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kmifqe.estimators import Estimate
from kmifqe.experiments.context import Context
from kmifqe.experiments.presets import Preset, Run
from kmifqe.experiments.trials import (
    SMALL,
    Trials,
    errors_field,
    errors_of,
    keep_trials,
    mixture_log,
    run_of,
    swept,
    trial_errors,
)

EXPERIMENT = "fig1b"
METHODS = ("kmifqe", "kmifqe-identity")
ROWS = ("fixed", "learned")
DUMMIES = {"smoke": 1, "small": SMALL.dummies, "fast": 1, "paper": 1}
TRIALS = {"smoke": (2, 2), "small": (3, 1), "fast": (5, 2), "paper": (10, 1)}  # logs, trainings on each
_WIDE = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)
BANDWIDTHS = {  # in half action ranges
    "smoke": (0.2, 0.4),
    "small": (0.05, 0.1, 0.2, 0.4, 0.8),
    "fast": _WIDE,
    "paper": _WIDE,
}


def rows(preset: Preset) -> tuple[str, ...]:
    """Return "fixed" (all bandwidths of the grid at once) and "learned"."""
    return ROWS


def run(row: str, context: Context) -> None:
    """Fit each method at every bandwidth of the grid, or with its own, and keep the errors."""
    preset = context.preset
    dummies = DUMMIES[preset.name]
    log = mixture_log(preset, dummies)
    bandwidths = BANDWIDTHS[preset.name] if row == "fixed" else ()

    def describe(trials: Trials, estimates: Sequence[Estimate]) -> dict[str, Any]:
        if not bandwidths:
            return {"dummies": dummies, **errors_field(trials, estimates)}
        errors = errors_of(trials, estimates)
        by_bandwidth = [{"bandwidth": h, **trial_errors(errors[..., i])} for i, h in enumerate(bandwidths)]
        return {"dummies": dummies, "by_bandwidth": by_bandwidth}

    for method in METHODS if preset.name != "smoke" or not bandwidths else METHODS[:1]:
        chosen = run_of(method, preset)
        if bandwidths:
            chosen = Run(swept(chosen.estimator.config, bandwidths), chosen.steps)
        place, grid = (EXPERIMENT, row, method), list(bandwidths) or None
        keep_trials(context, place, chosen, log, TRIALS[preset.name], describe, bandwidths=grid)
