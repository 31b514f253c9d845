"""`kmifqe study verdicts`: are estimates that are called trustworthy right, and are hopeless ones never called so?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

OUT = Path("experiments") / "results"
RECORDS = Path("experiments") / "work" / "trust"


def verdicts(
    preset: Annotated[str, typer.Option(help="smoke (a minute) or full (hundreds of problems).")] = "full",
    shard: Annotated[
        str | None,
        typer.Option(
            help="Only the I-th of N parts, as I/N; parts may run at once.", show_default="everything"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for verdicts.json.")] = OUT,
    records: Annotated[
        Path, typer.Option(help="Directory of the problems' records; those that are there are not run again.")
    ] = RECORDS,
) -> None:
    """Judge a family of problems of known value, from easy to hopeless, and count what the verdicts were worth.

    Example: kmifqe study verdicts --preset smoke --out /tmp/study --records /tmp/study/records

    The problems' records are shared with `kmifqe study coverage`. verdicts.json is written once all are there.
    """
    from kmifqe.cli.compilation import keep_compiled_programs
    from kmifqe.experiments.trust_run import preset_named, run_missing, shard_of
    from kmifqe.experiments.verdicts import rows_of, verdicts_record
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
    record = verdicts_record(rows_of(there), chosen.name, len(there))
    out.mkdir(parents=True, exist_ok=True)
    write_record(record, out / "verdicts.json")
    Console().print(_table(record["reported"], "problems with odd seeds"))
    console.print(f"written: {escape(str(out / 'verdicts.json'))}", highlight=False)


def _table(lines: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=f"Verdicts on {title}", title_justify="left")
    table.add_column("verdict", no_wrap=True)
    for heading in ("estimates", "in 95 %", "in 90 %", "large errors", "hopeless", "misled"):
        table.add_column(heading, justify="right")
    for line in lines:
        shares = (line["inside_share"], line["inside_90_share"])
        inside = ("–" if share is None else f"{share:.0%}" for share in shares)
        counts = (line["large_errors"], line["hopeless"], line["misled"])
        table.add_row(line["verdict"], str(line["estimates"]), *inside, *map(str, counts))
    return table
