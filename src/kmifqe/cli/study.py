"""`kmifqe study`: what intervals and verdicts are worth, on problems whose value is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.cli.study_verdicts import OUT, RECORDS, verdicts

app = typer.Typer(
    name="study",
    help="How often intervals hold the truth, and what verdicts are worth, on problems of known value.",
    no_args_is_help=True,
)
app.command("verdicts")(verdicts)


@app.command("coverage")
def coverage(
    preset: Annotated[str, typer.Option(help="smoke (a minute) or full (hundreds of problems).")] = "full",
    shard: Annotated[
        str | None,
        typer.Option(
            help="Only the I-th of N parts, as I/N; parts may run at once.", show_default="everything"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for coverage.json and coverage.png.")] = OUT,
    records: Annotated[
        Path, typer.Option(help="Directory of the problems' records; those that are there are not run again.")
    ] = RECORDS,
) -> None:
    """Count how often nominal 90 % intervals hold the true value, over problems from easy to hopeless.

    Example: kmifqe study coverage --preset smoke --out /tmp/study --records /tmp/study/records

    The problems' records are shared with `kmifqe study verdicts`. coverage.json and its figure are written once
    all are there; run again, the command only reads the records.
    """
    from importlib.util import find_spec

    from kmifqe.cli.compilation import keep_compiled_programs
    from kmifqe.experiments.coverage import coverage_record, rows_of
    from kmifqe.experiments.trust_run import preset_named, run_missing, shard_of
    from kmifqe.report.coverage import coverage_figure, coverage_table
    from kmifqe.report.figures import save_figure
    from kmifqe.report.record import write_record

    chosen, part = preset_named(preset), shard_of(shard or "1/1")
    console = Console(stderr=True)
    keep_compiled_programs()
    there = run_missing(
        chosen, records, part, lambda words: console.print(escape(words), highlight=False, soft_wrap=True)
    )
    missing = len(chosen.items()) - len(there)
    if missing:
        console.print(f"{missing} of {len(chosen.items())} problems are not run yet: run the other shards")
        return
    record = coverage_record(rows_of(there), chosen.name, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    write_record(record, out / "coverage.json")
    Console().print(coverage_table(record))
    if find_spec("matplotlib") is None:
        console.print("matplotlib is not installed: no figure; run the same command where it is")
    else:
        save_figure(coverage_figure(record), out / "coverage.png")
    console.print(f"written: {escape(str(out / 'coverage.json'))}", highlight=False)
