"""`kmifqe study verdicts`: are estimates that are called trustworthy right, and are hopeless ones never called so?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kmifqe.cli.study_records import OUT, RECORDS, Preset, Records, Shard, all_records


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
    from kmifqe.experiments.verdicts import rows_of, verdicts_record
    from kmifqe.report.result import write_record

    console = Console(stderr=True)
    found = all_records(preset, shard, records, console)
    if found is None:
        return
    chosen, there = found
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
