"""`kmifqe reproduce`: the paper's tables and figures, each number from a command."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kmifqe.cli.config import Config
from kmifqe.cli.evaluate import Ray

EXPERIMENTS = (
    "policies, data, table1, loglik, fig1a, fig1b, fig2, shift, ranking, all, or render (records only)"
)


def reproduce(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help=f"One of {EXPERIMENTS}.", show_default=False)
    ],
    preset: Annotated[
        str,
        typer.Option(
            help="How large: smoke (seconds), small (two cores, an hour), fast (a GPU), paper (a GPU, days)."
        ),
    ] = "small",
    only: Annotated[
        str | None, typer.Option(metavar="ROW", help="Only this row, such as hopper.", show_default=False)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Only this method, such as kmifqe.", show_default=False),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Leave out what is recorded already; go on with a stopped fit."),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Root of the records.", show_default="experiments/results"),
    ] = None,
    work: Annotated[
        Path, typer.Option(metavar="DIR", help="Logs, truths and other large files; a folder per preset.")
    ] = Path("experiments-work"),
    d4rl_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="D4RL's own files: their rows run beside the regenerated.", show_default=False
        ),
    ] = None,
    policies: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Actors that others trained (sac-Hopper-v3.npz, ...): the ranking judges them too.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that step environments.", show_default="one per core"),
    ] = None,
    prefetch: Annotated[
        bool, typer.Option(help="Collect the next row's data while this one is learned from.")
    ] = True,
    collect_only: Annotated[
        bool,
        typer.Option(
            "--collect-only", help="Only collect logs and measure truths, with all --workers side by side."
        ),
    ] = False,
    ray: Ray = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md", help="With render: also fill the tables of this page.", show_default=False
        ),
    ] = None,
    config_file: Config = None,
) -> None:
    """Make the paper's evidence again: one record per row and method, then tables and figures from the records.

    Example: kmifqe reproduce table1 --preset small --only pendulum
    """
    # Not above: with these comes JAX, which --help does without.
    from kmifqe.cli.session import Interrupts, keep_compiled_programs
    from kmifqe.cluster import connect
    from kmifqe.experiments.context import Context
    from kmifqe.experiments.drive import run_experiments
    from kmifqe.experiments.paper_tables import fill_page, render
    from kmifqe.experiments.presets import preset_named
    from kmifqe.experiments.records import RESULTS
    from kmifqe.report.terminal import TerminalWatch
    from kmifqe.store import Interrupted

    console = Console(stderr=True, emoji=False)
    root = RESULTS if results is None else results
    chosen = preset_named(preset)
    if experiment != "render":
        keep_compiled_programs()
        interrupts = Interrupts(console)
        context = Context(
            preset=chosen,
            results=root,
            work=work / preset,
            method=method,
            resume=resume,
            workers=workers or os.cpu_count() or 1,
            d4rl_dir=d4rl_dir,
            policies=policies,
            watch=TerminalWatch(console, interrupts.training),
        )
        run = partial(
            run_experiments, experiment, context, only, prefetch=prefetch, collect_only=collect_only
        )
        if ray is None:
            run()
        else:
            try:
                with interrupts, connect(ray, stop_asked=interrupts.asked) as cluster:
                    run(cluster=cluster)
            except (Interrupted, KeyboardInterrupt):
                console.print("stopped; go on with the same command and --resume", highlight=False)
                raise typer.Exit(interrupts.exit_code) from None
    if experiment in ("all", "render"):
        for path in render(root, root / preset / "rendered", preset):
            console.print(f"written: {path}", highlight=False, soft_wrap=True, markup=False)
    if page is not None:
        fill_page(page, root)
