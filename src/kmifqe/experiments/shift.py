"""Error against how far the behaviour is from the target, and against the length of the log.

After the experiment left in the comments of the paper's source: the behaviour is a Gaussian around the target's
torque and around half the greatest dummy, where the target's dummy is 0; the narrower, the further off it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kmifqe.errors import InputError
from kmifqe.estimators import Estimate
from kmifqe.experiments.context import Context
from kmifqe.experiments.presets import Preset
from kmifqe.experiments.trials import ShiftedLog, Trials, errors_field, keep_trials, run_of

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
    "small": Sizes((0.1, 0.3, 0.5), (3_000, 10_000, 30_000, 100_000), 0.3, 30_000),
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
    log, usual = log_of(row), SIZES[context.preset.name]

    def describe(trials: Trials, estimates: Sequence[Estimate]) -> dict[str, Any]:
        panels = [
            *(["width"] if log.rows == usual.usual_rows else []),
            *(["rows"] if log.width == usual.usual_width else []),
        ]
        told = {"width": log.width, "rows": log.rows, "panels": panels}
        return told | errors_field(trials, estimates)

    for method in METHODS:
        chosen = run_of(method, context.preset)
        keep_trials(context, (EXPERIMENT, row, method), chosen, log, TRIALS[context.preset.name], describe)


def log_of(row: str) -> ShiftedLog:
    """Return the log that a row's name describes."""
    found = re.fullmatch(r"width-([0-9.]+)-rows-([0-9]+)", row)
    if found is None:
        raise InputError(f"row {row!r} is unknown; expected width-WIDTH-rows-ROWS")
    return ShiftedLog(rows=int(found[2]), width=float(found[1]))
