"""Table 1: the error of every method on every row, known and fitted behaviour densities alike."""

from __future__ import annotations

from functools import partial
from typing import Any

from kmifqe.estimators import fit
from kmifqe.estimators.base import config_dict
from kmifqe.estimators.forecast import with_fallback
from kmifqe.experiments import rows as table
from kmifqe.experiments.context import Context
from kmifqe.experiments.data import Log, data_settings, read_log
from kmifqe.experiments.data import prepare as collect_row
from kmifqe.experiments.density import fit_settings, fitted_density
from kmifqe.experiments.presets import Preset, Run
from kmifqe.experiments.records import estimate_fields
from kmifqe.experiments.rows import Row, row_named
from kmifqe.mdp.problem import Problem

EXPERIMENT = "table1"


def rows(preset: Preset) -> tuple[str, ...]:
    """Return the rows of the table."""
    return table.table_rows(preset)


file_rows = table.file_rows


def prepare(row: str, context: Context) -> None:
    """Collect and play what the row needs, unless all its records are there."""
    if _wanted(row_named(row), context):
        collect_row(row, context)


def run(row: str, context: Context) -> None:
    """Build the row's data once, run every wanted method on it, and keep a record of each."""
    what = row_named(row)
    wanted = _wanted(what, context)
    if not wanted:
        return
    log = read_log(row, context)
    problem, report = _problem(what, log, list(wanted), context)
    context.say(f"{row}: {problem!r}")
    for method, settings in wanted.items():
        plan = context.preset.run_of(method, what.kind)
        checkpoints = context.checkpoints(row, method, settings)
        fit_it = partial(
            fit,
            plan.estimator,
            seeds=context.preset.seeds,
            steps=plan.steps,
            on_progress=context.on_progress,
            checkpoints=checkpoints,
        )
        estimate, problem = with_fallback(fit_it, problem, context.say)
        context.keep(
            EXPERIMENT,
            row,
            method,
            settings=settings,
            wall_seconds=estimate.seconds,
            packages=("gymnasium", "mujoco"),
            truth=log.truths,
            policies=log.policies,
            counts={"rows": len(log.transitions), "episodes": log.transitions.n_episodes}
            | {"in_sample": problem.counts.in_sample, "terminated": problem.counts.terminated},
            **({} if report is None else {"density": _density_words(report)}),
            **estimate_fields(estimate, log.truths),
        )
        checkpoints.clear()


def method_settings(row: Row, method: str, context: Context) -> dict[str, Any]:
    """Return everything that decides a record: estimator, steps, seeds, data, and the density where fitted."""
    plan: Run = context.preset.run_of(method, row.kind)
    of_data = data_settings(row, context)
    fitted = row.kind == "d4rl" and _needs_density(method)
    return {
        "estimator": plan.estimator.name.removesuffix("-best"),  # which KMIFQE it is, its config says
        "config": config_dict(plan.estimator.config),
        "steps": plan.steps,
        "seeds": context.preset.seeds,
        "gamma": row.gamma,
        **(fit_settings(context, of_data) if fitted else {"data": of_data}),
    }


def _wanted(row: Row, context: Context) -> dict[str, dict[str, Any]]:
    """Return method -> settings of the records that are asked for and not there."""
    methods = context.preset.methods_of(row.recipe) if context.method is None else (context.method,)
    settings = {m: method_settings(row, m, context) for m in methods}
    return {m: given for m, given in settings.items() if context.wants(EXPERIMENT, row.name, m, given)}


def _problem(
    row: Row, log: Log, methods: list[str], context: Context
) -> tuple[Problem, dict[str, Any] | None]:
    """Return the problem, with a density if a method needs one, and the report where it was fitted."""
    density, report = log.behavior, None
    if density is None and any(map(_needs_density, methods)):
        density, report = fitted_density(row.name, log, context, data_settings(row, context))
    return Problem.build(log.transitions, log.target, density, row.gamma), report


def _needs_density(method: str) -> bool:
    return method.startswith("kmifqe")


def _density_words(report: dict[str, Any]) -> dict[str, Any]:
    best = max(report["table"], key=lambda entry: entry["log_likelihood"])
    return {
        "components": report["chosen"],
        "log_likelihood": best["log_likelihood"],
        "standard_error": best["standard_error"],
        "warnings": report["warnings"],
    }
