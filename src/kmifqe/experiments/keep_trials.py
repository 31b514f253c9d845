"""What the figures' experiments share: fit one method's trials, unless they are there, and keep their record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kmifqe.estimators import Estimate
from kmifqe.experiments.context import Context
from kmifqe.experiments.pendulum_trials import (
    MixtureLog,
    ShiftedLog,
    Trial,
    errors_of,
    fit_trials,
    settings_of,
    trial_fields,
)
from kmifqe.experiments.presets import Run
from kmifqe.experiments.trial_errors import trial_errors

Trials = Sequence[Trial]
Describe = Callable[[Trials, Sequence[Estimate]], dict[str, Any]]


def errors_field(trials: Trials, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return the record's errors against the value of the logged first states."""
    return {"errors": {"logged_first_states": trial_errors(errors_of(trials, estimates))}}


def keep_trials(
    context: Context,
    place: tuple[str, str, str],
    chosen: Run,
    log: MixtureLog | ShiftedLog,
    counts: tuple[int, int],
    describe: Describe = errors_field,
    **more_settings: Any,
) -> None:
    """Fit and keep the trials of `place` (experiment, row, method), `counts` of them (logs, seeds on each).

    `describe` returns what the record says of them besides the trials themselves.
    """
    settings = settings_of(chosen, log, *counts) | more_settings
    if not context.wants(*place, settings):
        return
    experiment, row, method = place
    started = time.perf_counter()
    trials, estimates = fit_trials(chosen, log, *counts, context.on_progress)
    context.keep(
        experiment,
        row,
        method,
        settings=settings,
        wall_seconds=time.perf_counter() - started,
        **trial_fields(trials, estimates),
        **describe(trials, estimates),
    )
