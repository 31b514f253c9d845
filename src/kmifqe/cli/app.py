"""`kmifqe`: the root command, and how a user's mistake is shown."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe import __version__
from kmifqe.cli import (
    cache,
    dataset,
    demo,
    estimators,
    evaluate,
    example,
    rank,
    report,
    reproduce,
    study,
    worlds,
)
from kmifqe.errors import InputError, printable, shown
from kmifqe.io.cache import CacheWarning


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"kmifqe {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """What is this continuous-action policy worth, judged only from logs of another controller?"""


app = typer.Typer(
    name="kmifqe",
    callback=_root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("example")(example.example)
app.command("demo")(demo.demo)
app.command("evaluate", cls=evaluate.NamesEstimators)(evaluate.evaluate)
app.command("estimators")(estimators.estimators)
app.command("resume")(evaluate.resume)
# Files that the shell made of a pattern without quotes are refused by `rank` itself, with what to do about it.
app.command("rank", cls=evaluate.NamesEstimators, context_settings={"allow_extra_args": True})(rank.rank)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.add_typer(dataset.app, name="dataset")
app.add_typer(cache.app, name="cache")
app.add_typer(study.app, name="study")
worlds.register(app)
# What `--ray` takes for an address: the parser knows no option whose value may be left out.
RAY_ADDRESS = re.compile(r"auto|local|ray://\S+|\S+:\d+")
# XLA's words for a lack of memory, and the system's for a library that found no room.
EXHAUSTED = ("RESOURCE_EXHAUSTED", "Out of memory", "failed to map segment", "Cannot allocate memory")


def main() -> None:
    """Run the command line; what the user or the system refuses becomes one sentence on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # both are None where the shell has closed them
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # V̂ in Latin-1 is no reason to lose an hour's work
    if type(sys.stderr) is io.TextIOWrapper and sys.stderr is sys.__stderr__:
        plain = sys.stderr
        sys.stderr = _Stderr(plain.detach(), plain.encoding, "replace", line_buffering=True)
    with warnings.catch_warnings():
        warnings.simplefilter("always", CacheWarning)
        _show_cache_warnings()
        _run()


class _Stderr(io.TextIOWrapper):
    """A stderr that, once it finds no room (a full disk), is silent: nobody can be told, but the work can go on."""

    def write(self, text: str, /) -> int:
        """Write `text`, or nothing where there is no room."""
        try:
            return super().write(text)
        except OSError:
            return self._fall_silent()

    def flush(self) -> None:
        """Pass on what was written, or drop it where there is no room."""
        try:
            super().flush()
        except OSError:
            self._fall_silent()

    def _fall_silent(self) -> int:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fileno())
        os.close(nothing)
        return 0


def _run() -> None:
    try:
        app(args=with_ray_address(sys.argv[1:]))
    except InputError as error:
        _refuse(str(error))
    except OSError as error:  # a folder or a file that the system keeps closed, or too many open ones
        _refuse(f"{error.filename or 'the system'}: {error.strerror or error}")
    except (MemoryError, RuntimeError, ImportError) as error:
        if not isinstance(error, MemoryError) and not any(word in str(error) for word in EXHAUSTED):
            raise
        detail = shown(error)
        _refuse(
            f"there is too little memory{f' ({detail})' if detail else ''}: give it more, or a smaller log"
        )


def with_ray_address(words: list[str]) -> list[str]:
    """Return the command line `words` with the address "auto" after every `--ray` that has none."""
    found: list[str] = []
    for word, following in zip(words, [*words[1:], ""]):
        found.append(word)
        if word == "--ray" and not RAY_ADDRESS.fullmatch(following):
            found.append("auto")
    return found


def _show_cache_warnings() -> None:
    """Show a cache that is not used as one sentence, without the line of code that found out."""
    show = warnings.showwarning

    def sentence_or_show(message: Warning | str, *more: Any, **named: Any) -> None:
        if isinstance(message, CacheWarning):
            text = f"[yellow]warning:[/] {escape(printable(str(message)))}"
            Console(stderr=True, emoji=False).print(text, soft_wrap=True, highlight=False)
        else:
            show(message, *more, **named)

    warnings.showwarning = sentence_or_show


def _refuse(sentence: str) -> None:
    text = escape(printable(sentence))
    Console(stderr=True, emoji=False).print(f"[bold red]error:[/] {text}", soft_wrap=True, highlight=False)
    sys.exit(2)
