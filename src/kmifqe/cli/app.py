"""`kmifqe`: the root command, and how a user's mistake is shown."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from enum import Enum
from typing import Annotated, Any, get_args, get_origin

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

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
    resume,
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


class _Plain:
    """Help as a reader of a command line expects it, whatever the version of typer.

    An option says what it takes in capitals, a switch takes nothing, and a paragraph is as wide as the terminal.
    """

    help: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, each option with the name of what it takes."""
        found = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if each.param_type_name == "option" and each.metavar is None:
                each.metavar = "" if each.is_flag else _taken(each)
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help for `ctx` with `formatter`, with the registry's names in place of `{estimators}`."""
        self.help = "\n\n".join(" ".join(each.split()) for each in (self.help or "").split("\n\n"))
        asking = [
            each for each in self.get_params(ctx) if evaluate.ESTIMATORS in (getattr(each, "help", "") or "")
        ]
        if asking:
            from kmifqe.estimators.registry import all_entries  # with it comes JAX

            names = ", ".join(entry.name for entry in all_entries())
            for each in asking:
                each.help = each.help.replace(evaluate.ESTIMATORS, names)
        super().format_help(ctx, formatter)  # type: ignore[misc]


class PlainCommand(_Plain, TyperCommand):
    """A command with plain help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what the line of usage names after the command."""
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(str(each.metavar or each.name).upper() for each in arguments)]


class PlainGroup(_Plain, TyperGroup):
    """A group of commands with plain help."""


def _taken(option: Any) -> str:
    """Return what an option takes, in capitals, or its choices. Older versions of typer have click's types."""
    clicked = getattr(option, "type", None)
    if clicked is not None:
        choices, name = getattr(clicked, "choices", ()), clicked.name
    else:
        annotation = option.type_descriptor.annotation
        inner = get_args(annotation) if get_origin(annotation) is list else (annotation,)
        choices, name = inner[0] if issubclass(inner[0], Enum) else (), inner[0].__name__
    if choices:
        return "|".join(str(getattr(each, "value", each)) for each in choices)
    name = name.upper().removesuffix(" RANGE")
    return {"STR": "TEXT", "INT": "INTEGER"}.get(name, name)


app = typer.Typer(
    name="kmifqe",
    cls=PlainGroup,
    callback=_root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
JUDGE, LOGS, PAPER = "Judge policies", "Logs and tasks", "The paper and the studies"
app.command("example", rich_help_panel=JUDGE)(example.example)
app.command("demo", rich_help_panel=JUDGE)(demo.demo)
app.command("evaluate", rich_help_panel=JUDGE)(evaluate.evaluate)
app.command("report", rich_help_panel=JUDGE)(report.report)
app.command("resume", rich_help_panel=JUDGE)(resume.resume)
# Files that the shell made of a pattern without quotes are refused by `rank` itself, with what to do about it.
app.command("rank", rich_help_panel=JUDGE, context_settings={"allow_extra_args": True})(rank.rank)
app.command("estimators", rich_help_panel=JUDGE)(estimators.estimators)
app.add_typer(dataset.app, name="dataset", rich_help_panel=LOGS)
app.add_typer(cache.app, name="cache", rich_help_panel=LOGS)
worlds.register(app, LOGS)
app.command("reproduce", rich_help_panel=PAPER)(reproduce.reproduce)
app.add_typer(study.app, name="study", rich_help_panel=PAPER)
for level in [app, dataset.app, cache.app, study.app]:
    for registered in level.registered_commands:
        registered.cls = PlainCommand
for group in app.registered_groups:
    group.cls = PlainGroup
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
