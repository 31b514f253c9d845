"""`kmifqe cache`: what is kept between runs, and how to be rid of it."""

from __future__ import annotations

import datetime

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kmifqe.errors import printable
from kmifqe.io import cache as folders
from kmifqe.io.format import size
from kmifqe.io.logs import kept

app = typer.Typer(
    help="Logs that were read once, and compiled programs: kept between runs, made again when they are missing.",
    no_args_is_help=True,
)


@app.command("list")
def _list() -> None:
    """Print the kept logs, how large they are, and when each was last used.

    Example: kmifqe cache list

    A log is found by its content: the name is the one under which it was first read. The variable KMIFQE_CACHE_GIB
    sets how much the logs may take in all (10 GiB; 0 keeps none); those used longest ago go first.
    """
    console, cache = Console(emoji=False), kept.kept_logs()
    found = sorted(kept.entries(cache), key=lambda entry: -entry.used)
    table = Table(
        "log", "rows", "size", "last used", title=escape(printable(str(cache))), title_justify="left"
    )
    for entry in found:
        used = datetime.datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        name = entry.about.name if entry.about.checked else f"{entry.about.name} (for inspection only)"
        table.add_row(escape(printable(name)), f"{entry.about.rows:,}", size(entry.size), used)
    console.print(table)
    total, most = sum(entry.size for entry in found), kept.most_kept()
    console.print(f"{_count(len(found), 'log')}, {size(total)} of at most {size(most)}", highlight=False)
    programs = folders.compiled_programs()
    held = sum(program.stat().st_size for program in programs)
    console.print(f"{len(programs)} compiled programs, {size(held)}", highlight=False)


@app.command("clear")
def _clear() -> None:
    """Remove the kept logs and the compiled programs; a run that goes on keeps what it has.

    Example: kmifqe cache clear
    """
    cache = kept.kept_logs()
    found, programs = kept.entries(cache), folders.compiled_programs()
    for entry in found:
        kept.remove(entry)
    for program in programs:
        program.unlink(missing_ok=True)
    sentence = f"removed {_count(len(found), 'log')} and {_count(len(programs), 'compiled program')}"
    Console(emoji=False).print(sentence, highlight=False)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' * (number != 1)}"
