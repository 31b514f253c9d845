"""`kmifqe demo`: the whole path on a problem whose truth is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kmifqe.cli.config import Config
from kmifqe.cli.session import check_memory_limit, keep_compiled_programs, print_result, written


def demo(
    out: Annotated[Path, typer.Option(help="Directory for result.json and figures; made if missing.")] = Path(
        "demo"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Networks per estimator, trained side by side.")] = 4,
    minutes: Annotated[
        float, typer.Option(help="Minutes that training may take; the sizes of the fits follow from them.")
    ] = 2.0,
    seed: Annotated[
        int, typer.Option(help="Seed of the log that is collected: the same seed gives the same log.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run in the directory.")] = False,
    config_file: Config = None,
) -> None:
    """Collect a Pendulum log, judge a better policy from it as `kmifqe evaluate` does, and compare with the truth.

    Takes about three minutes on two cores. Nothing is downloaded: both policies come with the package.
    """
    check_memory_limit()
    # Not above: with these comes JAX, which --help does without.
    from kmifqe.api import evaluate
    from kmifqe.experiments.pendulum import DEMO, GAMMA, demo_problem
    from kmifqe.io.files import disk_sentence
    from kmifqe.report.terminal import TerminalWatch

    console = Console(emoji=False)
    keep_compiled_programs()
    with disk_sentence(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with console.status("collecting the log and the truth …"):
        found = demo_problem(DEMO, seed)
    trial, truth, behavior = found.trial, found.truth, found.behavior_value
    for line in (
        f"Log:            {trial.transitions.name}: {len(trial.transitions):,} steps in "
        f"{trial.transitions.n_episodes:,} episodes",
        f"Target policy:  V = {truth.value:.3f} ± {truth.standard_error:.3f} over {truth.episodes:,} episodes; "
        f"{trial.truth:.3f} from the logged first states (exact)",
        f"Behaviour:      V = {behavior.value:.3f} ± {behavior.standard_error:.3f}",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    result = evaluate(
        trial.transitions,
        trial.target,
        behavior=trial.behavior,
        gamma=GAMMA,
        minutes=minutes,
        seeds=seeds,
        out=out,
        force=force,
        references={"truth": trial.truth, "behaviour": behavior.value},
        watch=TerminalWatch(Console(stderr=True, emoji=False)),
        command=sys.argv[1:],
    )
    print_result(result, console, truth=trial.truth)
    console.print(
        "error: V̂ minus the value of the logged first states, which each network weighs in its own way.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(written(out), highlight=False, soft_wrap=True)
