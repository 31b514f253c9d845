"""`kmifqe`: the root command, and how a user's mistake is shown."""

from __future__ import annotations

import io
import sys

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.cli import dataset, demo, estimators, evaluate, report, reproduce, study, worlds
from kmifqe.errors import InputError, printable, shown

app = typer.Typer(
    name="kmifqe",
    help="What is this continuous-action policy worth, judged only from logs of another controller?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo.demo)
app.command("evaluate", cls=evaluate.NamesEstimators)(evaluate.evaluate)
app.command("estimators")(estimators.estimators)
app.command("resume")(evaluate.resume)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.add_typer(dataset.app, name="dataset")
app.add_typer(study.app, name="study")
worlds.register(app)
EXHAUSTED = ("RESOURCE_EXHAUSTED", "Out of memory")  # XLA's words for a lack of memory


def main() -> None:
    """Run the command line; what the user or the system refuses becomes one sentence on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # both are None where the shell has closed them
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # V̂ in Latin-1 is no reason to lose an hour's work
    try:
        app()
    except InputError as error:
        _refuse(str(error))
    except OSError as error:  # a folder or a file that the system keeps closed, or too many open ones
        _refuse(f"{error.filename or 'the system'}: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(word in str(error) for word in EXHAUSTED):
            raise
        detail = shown(error)
        _refuse(
            f"there is too little memory{f' ({detail})' if detail else ''}: give it more, or a smaller log"
        )


def _refuse(sentence: str) -> None:
    text = escape(printable(sentence))
    Console(stderr=True).print(f"[bold red]error:[/] {text}", soft_wrap=True, highlight=False)
    sys.exit(2)
