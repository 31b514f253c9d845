"""Figure 1b: error against a fixed bandwidth, with and without the learned metric, beside the learned bandwidth."""

from __future__ import annotations

import time
from typing import Any

from kmifqe.experiments.bandwidth_sweep import swept
from kmifqe.experiments.context import Context
from kmifqe.experiments.pendulum_trials import (
    SMALL,
    errors_of,
    fit_trials,
    mixture_log,
    run_of,
    settings_of,
    trial_fields,
)
from kmifqe.experiments.presets import Preset, Run
from kmifqe.experiments.records import experiment_record
from kmifqe.experiments.trial_errors import trial_errors

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
    logs, seeds = TRIALS[preset.name]
    dummies = DUMMIES[preset.name]
    log = mixture_log(preset, dummies)
    bandwidths = BANDWIDTHS[preset.name] if row == "fixed" else ()
    for method in METHODS if preset.name != "smoke" or not bandwidths else METHODS[:1]:
        chosen = run_of(method, preset)
        if bandwidths:
            chosen = Run(swept(chosen.estimator.config, bandwidths), chosen.steps)
        settings = settings_of(chosen, log, logs, seeds) | {"bandwidths": list(bandwidths) or None}
        if not context.wants(EXPERIMENT, row, method, settings):
            continue
        started = time.perf_counter()
        trials, estimates = fit_trials(chosen, log, logs, seeds, context.on_progress)
        errors = errors_of(trials, estimates)
        told: dict[str, Any] = (
            {"errors": {"logged_first_states": trial_errors(errors)}} if not bandwidths else {}
        )
        if bandwidths:
            told["by_bandwidth"] = [
                {"bandwidth": h, **trial_errors(errors[..., i])} for i, h in enumerate(bandwidths)
            ]
        context.keep(
            experiment_record(
                EXPERIMENT,
                row,
                method,
                preset.name,
                settings=settings,
                wall_seconds=time.perf_counter() - started,
                dummies=dummies,
                **trial_fields(trials, estimates),
                **told,
            )
        )
