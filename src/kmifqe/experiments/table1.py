"""Table 1, the error of every method on every row, and the appendix's table of the fitted densities' likelihoods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kmifqe.behavior import FitConfig, FitReport, Fitted, fit_or_load
from kmifqe.estimators import Estimate
from kmifqe.estimators.base import config_dict
from kmifqe.estimators.sizing import ProblemSize
from kmifqe.experiments.context import MUJOCO, Context, Experiment
from kmifqe.experiments.data import Log, data_settings, prepare_log, read_log
from kmifqe.experiments.presets import METHODS, Row, file_rows, fitted_rows, row_named, table_rows
from kmifqe.experiments.records import error_of, settings_hash
from kmifqe.mdp.problem import Problem
from kmifqe.store.checkpoints import CheckpointFolder
from kmifqe.trust.checks import Shared, measure
from kmifqe.trust.choice import average
from kmifqe.trust.interval import interval_of
from kmifqe.trust.verdict import judge_run

DENSITY = "tanh-mixture"
MOST_POINTS = 50  # of a stored trajectory


def _prepare(row: str, context: Context) -> None:
    """Collect and play what the row needs, unless all its records are there."""
    if _wanted(row_named(row), context):
        prepare_log(row, context)


def run_row(name: str, context: Context) -> None:
    """Build the row's data once, run every wanted method on it, and keep a record of each."""
    row = row_named(name)
    wanted = _wanted(row, context)
    if not wanted:
        return
    log = read_log(name, context)
    density, report = log.behavior, None
    if density is None and any(METHODS[method].needs_density for method in wanted):
        density, report, _ = fitted_density(row, log, context)
    problem = Problem.build(log.transitions, log.target, density, row.gamma)
    context.say(f"{name}: {problem!r}")
    counts = {"rows": len(log.transitions), "episodes": log.transitions.n_episodes}
    counts |= {"in_sample": problem.counts.in_sample, "terminated": problem.counts.terminated}
    estimates: dict[str, Estimate] = {}
    shared = Shared()
    for method, settings in wanted.items():
        members = METHODS[method].members
        for each in members or (method,):
            if each not in estimates:
                estimates[each], problem = _fit(row, each, problem, shared, context)
        if members:
            estimates[method] = average(method, [estimates[each] for each in members])
        estimate = estimates[method]
        context.keep(
            context.place("table1", name, method),
            settings,
            estimate.seconds,
            packages=MUJOCO,
            truth=log.truths,
            policies=log.policies,
            counts=counts,
            density=None if report is None else _density_summary(report),
            **estimate_fields(estimate, log.truths),
            **(
                _judged([estimates[each] for each in members], estimate) if METHODS[method].is_default else {}
            ),
        )
        if not METHODS[method].is_default:
            _checkpoints(row, method, context).clear()
    for method in estimates:  # those of members are of use until their average is kept
        _checkpoints(row, method, context).clear()


def _fit(
    row: Row, method: str, problem: Problem, shared: Shared, context: Context
) -> tuple[Estimate, Problem]:
    """Return the estimate of a method that is fitted, and the problem to go on with.

    `row` names the log that `problem` was built from. What users get is fitted as they get it: every network weights
    the episodes in its own way, and what checks look at is measured; `shared` keeps what the fits of a row have in
    common.
    """
    run, is_default = context.preset.run_of(method, row.kind, _size(row, context)), METHODS[method].is_default
    estimate, problem = context.fit(
        problem,
        run,
        seeds=context.preset.seeds,
        bootstrap=is_default,
        checkpoints=_checkpoints(row, method, context),
    )
    if is_default:
        estimate = replace(estimate, measurements=measure(run.estimator, estimate, problem, shared))
    return estimate.without_state(), problem


def _checkpoints(row: Row, method: str, context: Context) -> CheckpointFolder:
    """Return where the fit of a `method` to the log of a `row` keeps how far it is."""
    return context.checkpoints(
        context.place("table1", row.name, method), _method_settings(row, method, context)
    )


def _judged(members: Sequence[Estimate], estimate: Estimate) -> dict[str, Any]:
    """Return the interval and the verdict of an estimate, and the weights of its `members` if it is an average."""
    interval, verdicts = interval_of(estimate), judge_run([estimate, *members]).verdicts
    return {
        "interval": None if interval is None else (interval.low, interval.high),
        "verdict": verdicts[estimate.estimator].word,
        "members": dict(estimate.members),
    }


TABLE1 = Experiment("table1", table_rows, run_row, tuple(METHODS), _prepare, file_rows)


def _run_likelihoods(name: str, context: Context) -> None:
    """Fit the row's density, or read the fit that Table 1 made, and keep its report as a record."""
    row, place = row_named(name), context.place("loglik", name, DENSITY)
    settings = _fit_settings(row, context)
    if context.wants(place, settings):
        report = fitted_density(row, read_log(name, context), context).report
        context.keep(place, settings, report.seconds, packages=MUJOCO, **report.as_record())


LOGLIK = Experiment("loglik", fitted_rows, _run_likelihoods, (DENSITY,), prepare_log, file_rows)


def method_settings(row: Row, context: Context) -> dict[str, dict[str, Any]]:
    """Return method -> everything that decides its record, of all that the `context` asks for on a `row`."""
    methods = context.preset.methods_of(row.recipe) if context.method is None else (context.method,)
    return {method: _method_settings(row, method, context) for method in methods}


def _wanted(row: Row, context: Context) -> dict[str, dict[str, Any]]:
    """Return method -> settings of the records that are asked for and not there."""
    return {
        m: found
        for m, found in method_settings(row, context).items()
        if context.wants(context.place("table1", row.name, m), found)
    }


def _method_settings(row: Row, method: str, context: Context) -> dict[str, Any]:
    """Return everything that decides a record: estimator, steps, seeds, data, and the density where fitted."""
    fitted = row.kind == "d4rl" and METHODS[method].needs_density
    return {
        **_training_settings(row, method, context),
        "seeds": context.preset.seeds,
        "gamma": row.gamma,
        **(_fit_settings(row, context) if fitted else {"data": data_settings(row, context)}),
    }


def _training_settings(row: Row, method: str, context: Context) -> dict[str, Any]:
    """Return what is fitted: an estimator with its config and steps, or the members of an average with theirs."""
    found = METHODS[method]
    if found.members:
        return {each: _training_settings(row, each, context) for each in found.members}
    run = context.preset.run_of(method, row.kind, _size(row, context))
    return {"estimator": found.estimator, "config": config_dict(run.estimator.config), "steps": run.steps}


def _size(row: Row, context: Context) -> ProblemSize:
    """Return the size that a row's defaults follow from: its rows as logged, known before the log is read."""
    settings = data_settings(row, context)
    rows = (
        settings["rows"] if "rows" in settings else len(read_log(row.name, context).transitions)
    )  # of a file
    return ProblemSize(rows, row.gamma).with_recipe(context.preset.recipe_rows or rows)


def _fit_settings(row: Row, context: Context) -> dict[str, Any]:
    """Return everything that decides the fit of a row's density, as JSON can hold it; no time limits it here."""
    fit = config_dict(FitConfig(**context.preset.fit_settings))
    del fit["seconds"]
    return {"data": data_settings(row, context), "fit": fit}


def fitted_density(row: Row, log: Log, context: Context) -> Fitted:
    """Return the behaviour density fitted to a row's log, and the report of its fit.

    The fit is kept in the work folder, and read from there by the next call. `row` names the `log`, and `context`
    has the fit's sizes and the folder.
    """
    folder = context.work / "density" / f"{row.name}-{settings_hash(_fit_settings(row, context))}"
    if not folder.is_dir():
        context.say(f"{row.name}: fitting the behaviour density")
    folder.mkdir(parents=True, exist_ok=True)
    return fit_or_load(
        folder,
        log.transitions,
        low=getattr(log.target, "low", None),
        high=getattr(log.target, "high", None),
        config=FitConfig(**context.preset.fit_settings),
    )


def _density_summary(report: FitReport) -> dict[str, Any]:
    record = report.as_record()
    best = max(record["table"], key=lambda entry: entry["log_likelihood"])
    return {
        "components": report.chosen,
        "log_likelihood": best["log_likelihood"],
        "standard_error": best["standard_error"],
        "warnings": record["warnings"],
    }


def estimate_fields(estimate: Estimate, truths: Mapping[str, float | None]) -> dict[str, Any]:
    """Return the values per seed, a thin trajectory, and the error against each named truth that is known."""
    return {
        "values": estimate.values,
        "discounted_return": estimate.discounted_return,
        "trajectory": thin_trajectory(estimate),
        "errors": {
            name: error_of(estimate.values, truth) for name, truth in truths.items() if truth is not None
        },
    }


def thin_trajectory(estimate: Estimate) -> dict[str, np.ndarray]:
    """Return at most MOST_POINTS records, the last included: V̂ per seed, infos as means over seeds."""
    total = len(estimate.recorded_steps)
    points = np.unique(np.linspace(0, total - 1, min(total, MOST_POINTS)).round().astype(int))
    with np.errstate(over="ignore", invalid="ignore"):  # a diverged seed's infos are infinite: kept as null
        infos = {name: series[points].mean(axis=1) for name, series in estimate.infos.items()}
    return {"step": estimate.recorded_steps[points], "value": estimate.trajectory[points], **infos}
