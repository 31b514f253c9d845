"""`kmifqe demo`: the whole path on a problem whose truth is known."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape


def demo(
    out: Annotated[Path, typer.Option(help="Directory for result.json and figures; made if missing.")] = Path(
        "demo"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per estimator, trained side by side.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the log that is collected.")] = 0,
) -> None:
    """Collect a Pendulum log, judge a better policy from it with four estimators, and compare with the truth.

    Takes about three minutes on two cores. Nothing is downloaded: both policies come with the package.
    """
    # Not above: with these comes JAX, which --help does without.
    from kmifqe.cli.compilation import keep_compiled_programs
    from kmifqe.cli.evaluation import examined
    from kmifqe.cli.progress import ProgressLine, device_name
    from kmifqe.estimators import fit
    from kmifqe.estimators.forecast import duration
    from kmifqe.experiments.demo import DemoConfig, demo_estimators, demo_problem
    from kmifqe.report.figures import save_figures
    from kmifqe.report.html.page import REPORT, write_report
    from kmifqe.report.result import Result, result_record, write_record
    from kmifqe.report.terminal import estimates_table, verdict_lines

    console = Console()
    keep_compiled_programs()
    config = DemoConfig()
    with console.status("collecting the log and the truth …"):
        setting = demo_problem(config, seed)
    truth, behavior = setting.truth, setting.behavior_value
    for line in (
        f"Log:            {setting.transitions}",
        f"Target policy:  V = {truth.value:.3f} ± {truth.standard_error:.3f} over {truth.episodes:,} episodes; "
        f"{setting.logged_truth:.3f} from the logged first states (exact)",
        f"Behaviour:      V = {behavior.value:.3f} ± {behavior.standard_error:.3f}",
        f"Device:         {device_name()}",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    estimates, problem = [], setting.problem
    out.mkdir(parents=True, exist_ok=True)
    with ProgressLine(Console(stderr=True)) as progress:
        for estimator, steps in demo_estimators(config):
            progress.begin(estimator.name)
            made = fit(estimator, problem, seeds=seeds, steps=steps, on_progress=progress, bootstrap=True)
            estimates.append(replace(examined(out, estimator, made, problem), final_state=None))
    result = Result.of(estimates)
    console.print(estimates_table(estimates, setting.logged_truth))
    for line in verdict_lines(result.diagnosis):
        console.print(line, highlight=False, soft_wrap=True)
    gap = truth.value - behavior.value
    console.print(
        f"error: V̂ minus the value of the logged first states, which each seed weighs in its own way. The two "
        f"policies differ by {gap:.3f}. "
        f"All four took {duration(sum(e.seconds for e in estimates))}.",
        highlight=False,
        soft_wrap=True,
    )
    record = result_record(
        result,
        problem,
        data=setting.transitions.name,
        policy="pendulum-target.safetensors, zeros for the dummies",
        behavior="0.8 N(pendulum-behavior.safetensors, (0.5 a_max)²) + 0.2 U, dummies U",
        command=sys.argv[1:],
        demo=asdict(config),
        truth={
            "population": asdict(truth),
            "logged_first_states": setting.logged_truth,
            "behavior": asdict(behavior),
        },
    )
    write_record(record, out / "result.json")
    references = {"truth": setting.logged_truth, "behaviour": behavior.value}
    title = f"Pendulum with {config.dummies} dummy actions, {config.rows:,} logged steps"
    save_figures(estimates, problem.counts.in_sample, out, references, title=title)
    write_report([out], out / REPORT)
    console.print(
        f"written: {escape(str(out))}/{REPORT}, result.json, trajectories.png, bandwidth.png", highlight=False
    )
