"""`kmifqe reproduce`: the paper's tables and figures, each number from a command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from kmifqe.cli.progress import ProgressLine
    from kmifqe.estimators import Progress

EXPERIMENTS = "policies, data, table1, loglik, fig1a, fig1b, fig2, shift, all, or render (records only)"


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
        typer.Option(
            metavar="DIR", help="Root of the records. Default: experiments/results.", show_default=False
        ),
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
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that step environments. Default: all cores.", show_default=False),
    ] = None,
    prefetch: Annotated[
        bool, typer.Option(help="Collect the next row's data while this one is learned from.")
    ] = True,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md", help="With render: also fill the tables of this page.", show_default=False
        ),
    ] = None,
) -> None:
    """Make the paper's evidence again: one record per row and method, then tables and figures from the records.

    Example: kmifqe reproduce table1 --preset small --only pendulum
    """
    # Not above: with these comes JAX, which --help does without.
    from kmifqe.cli.compilation import keep_compiled_programs
    from kmifqe.cli.progress import ProgressLine
    from kmifqe.experiments.context import Context
    from kmifqe.experiments.drive import run_experiments
    from kmifqe.experiments.presets import preset_named
    from kmifqe.experiments.records import RESULTS
    from kmifqe.experiments.render import fill_page, render

    console = Console(stderr=True)
    root = RESULTS if results is None else results
    chosen = preset_named(preset)
    if experiment != "render":
        keep_compiled_programs()
        with ProgressLine(console) as progress:
            context = Context(
                preset=chosen,
                results=root,
                work=work / preset,
                method=method,
                resume=resume,
                workers=workers or os.cpu_count() or 1,
                d4rl_dir=d4rl_dir,
                say=lambda words: console.print(words, highlight=False, soft_wrap=True, markup=False),
                on_progress=_fits_on(progress),
            )
            run_experiments(experiment, context, only, prefetch=prefetch)
    if experiment in ("all", "render"):
        for path in render(root, root / preset / "rendered", preset):
            console.print(f"written: {path}", highlight=False, soft_wrap=True, markup=False)
    if page is not None:
        fill_page(page, root)


def _fits_on(line: ProgressLine) -> Callable[[Progress], None]:
    """Return what shows one fit after another on one line: a step that does not follow begins another fit."""
    last = 0

    def show(progress: Progress) -> None:
        nonlocal last
        if last == 0 or progress.step <= last:
            line.begin(progress.estimator)
        last = progress.step
        line(progress)

    return show
