"""Error against how far the behaviour is from the target, and against the length of the log.

After the experiment left in the comments of the paper's source: the behaviour is a Gaussian around the target's
torque and around half the greatest dummy, where the target's dummy is 0; the narrower, the further off it is.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from kmifqe.errors import InputError
from kmifqe.experiments.context import Context
from kmifqe.experiments.pendulum_trials import (
    ShiftedLog,
    errors_of,
    fit_trials,
    run_of,
    settings_of,
    trial_fields,
)
from kmifqe.experiments.presets import Preset
from kmifqe.experiments.records import experiment_record
from kmifqe.experiments.trial_errors import trial_errors

EXPERIMENT = "shift"
METHODS = ("kmifqe", "kmifqe-identity", "fqe", "sr-dice")
TRIALS = {"smoke": (2, 2), "small": (3, 1), "fast": (3, 2), "paper": (10, 1)}  # logs, trainings on each


class Sizes(NamedTuple):
    """The cross of behaviours: each width at `usual_rows`, each length at `usual_width`."""

    widths: tuple[float, ...]  # standard deviations, in half action ranges
    lengths: tuple[int, ...]  # rows
    usual_width: float
    usual_rows: int


SIZES = {
    "smoke": Sizes((0.3,), (600,), 0.3, 600),
    "small": Sizes((0.1, 0.3, 0.5), (10_000, 30_000), 0.3, 30_000),
    "fast": Sizes((0.1, 0.2, 0.3, 0.5), (10_000, 100_000, 1_000_000), 0.3, 100_000),
    "paper": Sizes((0.1, 0.2, 0.3, 0.4, 0.5), (10_000, 100_000, 500_000, 1_000_000), 0.3, 500_000),
}


def rows(preset: Preset) -> tuple[str, ...]:
    """Return one row per behaviour and log length; the one in the middle of the cross comes once."""
    s = SIZES[preset.name]
    pairs = [(width, s.usual_rows) for width in s.widths] + [(s.usual_width, n) for n in s.lengths]
    return tuple(dict.fromkeys(f"width-{width:g}-rows-{n}" for width, n in pairs))


def run(row: str, context: Context) -> None:
    """Fit every method on logs of this width and length, and keep the errors."""
    logs, seeds = TRIALS[context.preset.name]
    log = log_of(row)
    for method in METHODS:
        chosen = run_of(method, context.preset)
        settings = settings_of(chosen, log, logs, seeds)
        if not context.wants(EXPERIMENT, row, method, settings):
            continue
        started = time.perf_counter()
        trials, estimates = fit_trials(chosen, log, logs, seeds, context.on_progress)
        usual = SIZES[context.preset.name]
        context.keep(
            experiment_record(
                EXPERIMENT,
                row,
                method,
                context.preset.name,
                settings=settings,
                wall_seconds=time.perf_counter() - started,
                width=log.width,
                rows=log.rows,
                panels=[
                    *(["width"] if log.rows == usual.usual_rows else []),
                    *(["rows"] if log.width == usual.usual_width else []),
                ],
                **trial_fields(trials, estimates),
                errors={"logged_first_states": trial_errors(errors_of(trials, estimates))},
            )
        )


def log_of(row: str) -> ShiftedLog:
    """Return the log that a row's name describes."""
    found = re.fullmatch(r"width-([0-9.]+)-rows-([0-9]+)", row)
    if found is None:
        raise InputError(f"row {row!r} is unknown; expected width-WIDTH-rows-ROWS")
    return ShiftedLog(rows=int(found[2]), width=float(found[1]))
