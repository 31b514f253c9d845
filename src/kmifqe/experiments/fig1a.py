"""Figure 1a: bias² and variance of V̂ against the number of dummy actions, with and without the learned metric."""

from __future__ import annotations

import time

from kmifqe.experiments.context import Context
from kmifqe.experiments.pendulum_trials import (
    errors_of,
    fit_trials,
    mixture_log,
    run_of,
    settings_of,
    trial_fields,
)
from kmifqe.experiments.presets import Preset
from kmifqe.experiments.records import experiment_record
from kmifqe.experiments.trial_errors import trial_errors

EXPERIMENT = "fig1a"
METHODS = ("kmifqe", "kmifqe-identity")
DUMMIES = {"smoke": (1,), "small": (1, 2, 4), "fast": (1, 2, 3, 4), "paper": (1, 2, 3, 4)}
# Logs, and trainings on each. The paper's trials number ten; its public code trains them all on one log, so that
# its variance leaves out the log's own. Two trainings on a log tell the two parts apart.
TRIALS = {"smoke": (2, 2), "small": (4, 1), "fast": (6, 2), "paper": (10, 1)}


def rows(preset: Preset) -> tuple[str, ...]:
    """Return one row per number of dummies."""
    return tuple(f"dummies-{count}" for count in DUMMIES[preset.name])


def run(row: str, context: Context) -> None:
    """Fit each method on logs with this many dummies, and keep bias and variance over the trials."""
    logs, seeds = TRIALS[context.preset.name]
    dummies = int(row.removeprefix("dummies-"))
    log = mixture_log(context.preset, dummies)
    for method in METHODS:
        chosen = run_of(method, context.preset)
        settings = settings_of(chosen, log, logs, seeds)
        if not context.wants(EXPERIMENT, row, method, settings):
            continue
        started = time.perf_counter()
        trials, estimates = fit_trials(chosen, log, logs, seeds, context.on_progress)
        context.keep(
            experiment_record(
                EXPERIMENT,
                row,
                method,
                context.preset.name,
                settings=settings,
                wall_seconds=time.perf_counter() - started,
                dummies=dummies,
                **trial_fields(trials, estimates),
                errors={"logged_first_states": trial_errors(errors_of(trials, estimates))},
            )
        )
