"""`kmifqe study`: what intervals and verdicts are worth, on problems whose value is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kmifqe.errors import printable

if TYPE_CHECKING:
    from kmifqe.experiments.records import Record
    from kmifqe.experiments.study import Coverage, Judged

OUT = Path("experiments") / "results"
RECORDS = Path("experiments-work") / "trust"

Preset = Annotated[str, typer.Option(help="smoke (a minute) or full (hundreds of problems).")]
Shard = Annotated[
    str | None,
    typer.Option(help="Only the I-th of N parts, as I/N; parts may run at once.", show_default="everything"),
]
Records = Annotated[
    Path, typer.Option(help="Directory of the problems' records; those that are there are not run again.")
]

app = typer.Typer(
    name="study",
    help="How often intervals hold the truth, and what verdicts are worth, on problems of known value.",
    no_args_is_help=True,
)


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

    from kmifqe.experiments import study
    from kmifqe.experiments.paper_figures import coverage_figure
    from kmifqe.report.figures import save_figure

    console = Console(stderr=True)
    judged = _judged(preset, shard, records, console)
    if judged is None:
        return
    found = study.coverage(judged, preset, sys.argv[1:])
    _write(found, out / "coverage.json", console)
    Console().print(_coverage_table(found))
    if find_spec("matplotlib") is None:
        console.print("matplotlib is not installed: no figure; run the same command where it is")
    else:
        save_figure(coverage_figure(found), out / "coverage.png")


@app.command("verdicts")
def verdicts(
    preset: Preset = "full",
    shard: Shard = None,
    out: Annotated[Path, typer.Option(help="Directory for verdicts.json.")] = OUT,
    records: Records = RECORDS,
) -> None:
    """Judge a family of problems of known value, from easy to hopeless, and count what the verdicts were worth.

    Example: kmifqe study verdicts --preset smoke --out /tmp/study --records /tmp/study/records

    The problems' records are shared with `kmifqe study coverage`. verdicts.json is written once all are there.
    """
    from kmifqe.experiments import study

    console = Console(stderr=True)
    judged = _judged(preset, shard, records, console)
    if judged is None:
        return
    found = study.verdicts(judged, preset)
    _write(found, out / "verdicts.json", console)
    Console().print(_verdicts_table(found.reported))


def _judged(preset: str, shard: str | None, records: Path, console: Console) -> list[Judged] | None:
    """Run what of the shard is missing; return every estimate, judged, or None while some problems are missing."""
    from kmifqe.cli.session import keep_compiled_programs
    from kmifqe.experiments import study

    chosen, part = study.preset_named(preset), study.shard_of(shard or "1/1")
    keep_compiled_programs()
    there = study.run_missing(
        chosen, records, part, lambda line: console.print(escape(line), highlight=False, soft_wrap=True)
    )
    count = len(chosen.items())
    if len(there) < count:
        console.print(f"{count - len(there)} of {count} problems are not run yet: run the other shards")
        return None
    return study.judge(there)


def _write(record: Record, path: Path, console: Console) -> None:
    from kmifqe.experiments.records import write_record

    write_record(record, path)
    console.print(f"written: {escape(printable(str(path)))}", highlight=False)


def _coverage_table(found: Coverage) -> Table:
    """Return a line per estimator and group of problems."""
    table = Table(title=f"Nominal {found.level:.0%} intervals", title_justify="left")
    for heading in ("estimator", "problems"):
        table.add_column(heading, no_wrap=True)
    for heading in ("", "covered", "(95 % sure)", "median width", "median |error|"):
        table.add_column(heading, justify="right")
    for name, tables in found.tables.items():
        for group in (group for groups in tables.values() for group in groups if group["problems"]):
            table.add_row(
                name,
                group["group"],
                str(group["problems"]),
                f"{group['share']:.0%}",
                f"{group['share_low']:.0%} – {group['share_high']:.0%}",
                f"{group['median_width']:.2f}",
                f"{group['median_error']:.2f}",
            )
        table.add_section()
    return table


def _verdicts_table(lines: list[dict[str, Any]]) -> Table:
    table = Table(title="Verdicts on problems with odd seeds", title_justify="left")
    table.add_column("verdict", no_wrap=True)
    for heading in ("estimates", "in 95 %", "in 90 %", "large errors", "hopeless", "misled"):
        table.add_column(heading, justify="right")
    for line in lines:
        shares = (line["inside_share"], line["inside_90_share"])
        inside = ("–" if share is None else f"{share:.0%}" for share in shares)
        counts = (line["large_errors"], line["hopeless"], line["misled"])
        table.add_row(line["verdict"], str(line["estimates"]), *inside, *map(str, counts))
    return table
