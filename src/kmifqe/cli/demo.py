"""`kmifqe demo`: the whole path on a problem whose truth is known."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.cli.config import Config
from kmifqe.cli.session import check_memory_limit, keep_compiled_programs
from kmifqe.errors import printable


def demo(
    out: Annotated[Path, typer.Option(help="Directory for result.json and figures; made if missing.")] = Path(
        "demo"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per estimator, trained side by side.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the log that is collected.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run in the directory.")] = False,
    config_file: Config = None,
) -> None:
    """Collect a Pendulum log, judge a better policy from it with four estimators, and compare with the truth.

    Takes about three minutes on two cores. Nothing is downloaded: both policies come with the package.
    """
    check_memory_limit()
    # Not above: with these comes JAX, which --help does without.
    from kmifqe.api import evaluate_problem
    from kmifqe.experiments.pendulum import DemoConfig, demo_estimators, demo_problem
    from kmifqe.io.files import disk_sentence
    from kmifqe.io.format import duration
    from kmifqe.report.page import REPORT
    from kmifqe.report.result import Question
    from kmifqe.report.terminal import TerminalWatch, estimates_table, verdict_lines
    from kmifqe.report.watch import device_name
    from kmifqe.store import open_run

    console = Console()
    keep_compiled_programs()
    config = DemoConfig()
    with disk_sentence(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    watch = TerminalWatch(Console(stderr=True))
    with open_run(out, {}, force=force, warn=watch.warn) as run:
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
        estimators, steps = zip(*demo_estimators(config))
        result = evaluate_problem(
            setting.problem,
            estimators,
            Question.about(
                setting.problem,
                data=setting.transitions.name,
                policy="pendulum-target.safetensors, zeros for the dummies",
                behavior=config.behavior_name,
            ),
            steps=steps,
            seeds=seeds,
            run=run,
            watch=watch,
            command=sys.argv[1:],
            references={"truth": setting.logged_truth, "behaviour": behavior.value},
            extra={"demo": asdict(config), "truth": asdict(truth), "behavior": asdict(behavior)},
        )
    console.print(estimates_table(result.estimates, setting.logged_truth))
    for line in verdict_lines(result.verdicts):
        console.print(line, highlight=False, soft_wrap=True)
    took = duration(sum(estimate.seconds for estimate in result.estimates))
    console.print(
        "error: V̂ minus the value of the logged first states, which each seed weighs in its own way. The two "
        f"policies differ by {truth.value - behavior.value:.3f}. All four took {took}.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"written: {escape(printable(str(out)))}/{REPORT}, result.json, trajectories.png, bandwidth.png",
        highlight=False,
    )
