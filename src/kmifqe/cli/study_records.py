"""What both studies' commands share: their options, and the records they read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from kmifqe.experiments.trust_run import TrustPreset

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


def all_records(
    preset: str, shard: str | None, records: Path, console: Console
) -> tuple[TrustPreset, list[dict[str, Any]]] | None:
    """Run what of the shard is missing; return the preset and every record, or None while some are missing."""
    from kmifqe.cli.compilation import keep_compiled_programs
    from kmifqe.experiments.trust_run import preset_named, run_missing, shard_of

    chosen, part = preset_named(preset), shard_of(shard or "1/1")
    keep_compiled_programs()
    there = run_missing(
        chosen, records, part, lambda words: console.print(escape(words), highlight=False, soft_wrap=True)
    )
    missing = len(chosen.items()) - len(there)
    if missing:
        console.print(f"{missing} of {len(chosen.items())} problems are not run yet: run the other shards")
        return None
    return chosen, there
