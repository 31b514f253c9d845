"""Figure 1a: bias² and variance of V̂ against the number of dummy actions, with and without the learned metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kmifqe.estimators import Estimate
from kmifqe.experiments.context import Context
from kmifqe.experiments.presets import Preset
from kmifqe.experiments.trials import Trials, errors_field, keep_trials, mixture_log, run_of

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
    dummies = int(row.removeprefix("dummies-"))
    log = mixture_log(context.preset, dummies)

    def describe(trials: Trials, estimates: Sequence[Estimate]) -> dict[str, Any]:
        return {"dummies": dummies, **errors_field(trials, estimates)}

    for method in METHODS:
        chosen = run_of(method, context.preset)
        keep_trials(context, (EXPERIMENT, row, method), chosen, log, TRIALS[context.preset.name], describe)
