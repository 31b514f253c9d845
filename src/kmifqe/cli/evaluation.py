"""What `kmifqe evaluate` does: read, build, foresee, run, report."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.cli.compilation import keep_compiled_programs
from kmifqe.cli.density import behavior_density
from kmifqe.cli.interrupts import Interrupts
from kmifqe.cli.progress import ProgressLine, device_name, warn_on
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, Estimator, make_estimator
from kmifqe.estimators.fit import Plan, make_plan
from kmifqe.estimators.forecast import placed, size, with_fallback
from kmifqe.estimators.registry import check_settings
from kmifqe.evaluation import density_settings
from kmifqe.io.files import disk_sentence
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.objects import check_policy_fits
from kmifqe.mdp.problem import Problem
from kmifqe.report.figures import save_figures
from kmifqe.report.html.page import REPORT, write_report
from kmifqe.report.result import Result, result_record, write_record
from kmifqe.report.terminal import estimates_table, verdict_lines
from kmifqe.store.checkpoints import Interrupted
from kmifqe.store.directory import RESULT, RunDirectory, open_run
from kmifqe.trust.checks.diagnose import measure
from kmifqe.trust.interval import check_level
from kmifqe.trust.landscape import LANDSCAPE, keep_landscape

TIMED_STEPS = 20_000  # a shorter run is over before its time is foretold


@dataclass(frozen=True)
class Asked:
    """The options of an evaluation, as the command line names them; run.json keeps them."""

    data: str
    policy: str
    behavior: str | None
    gamma: float
    estimator: list[str] | None
    seeds: int
    bootstrap: bool
    level: float
    steps: int | None
    preset: str
    setting: list[str] | None
    policy_normalization: str | None
    max_episode_steps: int | None
    save_seconds: float


def run_evaluation(asked: Asked, out: Path, *, force: bool, resume: bool) -> None:
    """Judge the policy, go on with an earlier run if asked to, and print and write what came out."""
    console = Console(stderr=True)
    keep_compiled_programs()
    names, estimators = _estimators(asked)
    check_level(asked.level)
    if force and resume:
        raise InputError("--force starts again and --resume goes on; give one of them")
    interrupts = Interrupts(console)
    with open_run(
        out,
        asdict(asked),
        resume=resume,
        force=force,
        save_seconds=asked.save_seconds,
        stop_asked=interrupts.asked,
        warn=partial(warn_on, console),
    ) as run:
        problem, report = _problem(asked, names, run, console)
        console.print(escape(repr(problem)), highlight=False, soft_wrap=True)
        console.print(f"running on {device_name()}", highlight=False)
        if problem.is_on_host:
            warn_on(
                console,
                f"{size(problem.host_bytes)} of data exceed the device's memory and stay in host memory",
            )
        plans = [
            make_plan(e, problem, seeds=asked.seeds, steps=asked.steps, bootstrap=asked.bootstrap)
            for e in estimators
        ]
        run.begin(plans, problem)
        started = time.perf_counter()
        try:
            with interrupts, ProgressLine(console) as progress:
                estimates = run_all(estimators, plans, problem, run, progress, console)
        except Interrupted as stopped:
            _say_what_is_there(stopped, run, plans, console)
            raise typer.Exit(interrupts.exit_code) from None
        if run.saves:
            share = run.saving_seconds / (time.perf_counter() - started)
            console.print(f"saved {run.saves} times on the way, {share:.2%} of the time", highlight=False)
        result = Result.of(estimates, asked.level)
        record = result_record(
            result,
            problem,
            data=asked.data,
            policy=asked.policy,
            behavior=asked.behavior or "none",
            command=sys.argv[1:],
            **({} if report is None else {"behavior_fit": report}),
        )
        with disk_sentence(out / RESULT):
            title = f"{asked.policy} judged from {asked.data}"
            save_figures(estimates, problem.counts.in_sample, out, title=title)
            write_record(record, out / RESULT)
            write_report([out], out / REPORT)
    Console().print(estimates_table(estimates, level=asked.level))
    for line in verdict_lines(result.diagnosis):
        console.print(line, highlight=False, soft_wrap=True)
    written = " and ".join(escape(str(out / name)) for name in (RESULT, REPORT))
    console.print(f"written: {written}", highlight=False, soft_wrap=True)


def run_all(
    estimators: list[Estimator],
    plans: list[Plan],
    problem: Problem,
    run: RunDirectory,
    progress: ProgressLine,
    console: Console,
) -> list[Estimate]:
    """Return every estimator's estimate, one after the other, those of an earlier process as it left them.

    What a run will take is said before it; data that the device cannot hold moves to host memory.
    """
    estimates = []
    for estimator, plan in zip(estimators, plans):
        stored = run.finished(plan)
        if stored is not None:
            estimates.append(stored)
            continue
        run.refuse_to_begin(plan)  # before half a minute of compilation
        progress.begin(estimator.name)
        problem, forecast, said = placed(
            estimator,
            problem,
            seeds=plan.seeds,
            steps=plan.steps,
            timed=plan.steps >= TIMED_STEPS,
            bootstrap=plan.bootstrap,
        )
        console.print(f"{forecast}; another {size(forecast.free)} is free", highlight=False, soft_wrap=True)
        if said:
            warn_on(console, said)
        progress.begin(estimator.name)  # again: the forecast has compiled, the time that is left begins here
        fit = partial(
            run.fit,
            estimator,
            seeds=plan.seeds,
            steps=plan.steps,
            on_progress=progress,
            bootstrap=plan.bootstrap,
            examine=partial(examined, run.path),
        )
        estimate, problem = with_fallback(fit, problem, partial(warn_on, console))
        estimates.append(estimate)
    return estimates


def examined(folder: Path, estimator: Estimator, estimate: Estimate, problem: Problem) -> Estimate:
    """Return the estimate with its measurements; what it says of Q is kept beside the result."""
    keep_landscape(folder / LANDSCAPE, estimator, estimate, problem)
    return replace(estimate, measurements=measure(estimator, estimate, problem))


def _estimators(asked: Asked) -> tuple[list[str], list[Estimator]]:
    """Return the names that were asked for, each once, and their estimators with all settings."""
    names, settings = list(dict.fromkeys(asked.estimator or ["kmifqe"])), list(asked.setting or [])
    check_settings(names, settings)
    settings = [*density_settings(asked.behavior), *settings]
    return names, [make_estimator(name, asked.preset, settings, asked.steps) for name in names]


def _problem(
    asked: Asked, names: list[str], run: RunDirectory, console: Console
) -> tuple[Problem, dict[str, Any] | None]:
    """Return the problem, and the report of a density that was fitted for it; the log itself is given up."""
    load = partial(load_policy, normalization=asked.policy_normalization)
    target = load(asked.policy)
    transitions = load_dataset(asked.data, max_episode_steps=asked.max_episode_steps)
    check_policy_fits(target, transitions.state_dim, transitions.action_dim)
    for note in transitions.notes:
        console.print(f"[cyan]note:[/] {escape(note)}", highlight=False)
    density, report = behavior_density(asked.behavior, names, transitions, target, load, run, console)
    return Problem.build(transitions, target, density, asked.gamma), report


def _say_what_is_there(stopped: Interrupted, run: RunDirectory, plans: list[Plan], console: Console) -> None:
    """Print the finished estimates, how far the stopped one is, and how to go on."""
    finished = [estimate for plan in plans if (estimate := run.finished(plan)) is not None]
    if finished:
        Console().print(estimates_table(finished))
    if stopped.snapshot is None:
        console.print(f"{stopped.estimator}: not begun", highlight=False)
    else:
        values = stopped.snapshot.trajectory[-1]
        console.print(
            f"{stopped.estimator}: {stopped.snapshot.step:,} of {stopped.steps:,} steps saved, "
            f"V̂ {np.mean(values):.3f} so far",
            highlight=False,
        )
    console.print(
        f"go on with: kmifqe resume {escape(str(run.path))} (or the same command with --resume)",
        highlight=False,
        soft_wrap=True,
    )
