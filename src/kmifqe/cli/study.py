"""`kmifqe study`: what intervals and verdicts are worth, on problems whose value is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.cli.study_records import OUT, RECORDS, Preset, Records, Shard, all_records
from kmifqe.cli.study_verdicts import verdicts

app = typer.Typer(
    name="study",
    help="How often intervals hold the truth, and what verdicts are worth, on problems of known value.",
    no_args_is_help=True,
)
app.command("verdicts")(verdicts)


@app.command("coverage")
def coverage(
    preset: Preset = "full",
    shard: Shard = None,
    out: Annotated[Path, typer.Option(help="Directory for coverage.json and coverage.png.")] = OUT,
    records: Records = RECORDS,
) -> None:
    """Count how often nominal 90 % intervals hold the true value, over problems from easy to hopeless.

    Example: kmifqe study coverage --preset smoke --out /tmp/study --records /tmp/study/records

    The problems' records are shared with `kmifqe study verdicts`. coverage.json and its figure are written once
    all are there; run again, the command only reads the records.
    """
    from importlib.util import find_spec

    from kmifqe.experiments.coverage import coverage_record, rows_of
    from kmifqe.experiments.paper_figures import coverage_figure, coverage_table
    from kmifqe.report.figures import save_figure
    from kmifqe.report.result import write_record

    console = Console(stderr=True)
    found = all_records(preset, shard, records, console)
    if found is None:
        return
    chosen, there = found
    record = coverage_record(rows_of(there), chosen.name, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    write_record(record, out / "coverage.json")
    Console().print(coverage_table(record))
    if find_spec("matplotlib") is None:
        console.print("matplotlib is not installed: no figure; run the same command where it is")
    else:
        save_figure(coverage_figure(record), out / "coverage.png")
    console.print(f"written: {escape(str(out / 'coverage.json'))}", highlight=False)
