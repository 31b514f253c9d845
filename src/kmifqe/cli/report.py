"""`kmifqe report`: run directories to one HTML page, experiment records to tables and figures."""

from __future__ import annotations

import os
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.cli.config import Config
from kmifqe.errors import InputError, printable
from kmifqe.io.serialize import read_json

EXPERIMENT_SCHEMA = "kmifqe.experiment/"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Directories that `kmifqe evaluate` or `kmifqe demo` wrote result.json into; several are compared. "
            "Or one directory of `kmifqe reproduce`'s records.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The HTML file; for experiment records a directory.",
            show_default="RUN/report.html; ./report.html for several runs; DIR/PRESET/rendered for records",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Also write a table: value, interval and verdict of every estimator of every run.",
            show_default=False,
        ),
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.tex",
            help="Also write this table for a paper; it needs the package booktabs.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that no `kmifqe` command has written.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    config_file: Config = None,
) -> None:
    """Write one self-contained HTML page: the value, how far to believe it, and everything behind it.

    Example: kmifqe report runs/first --open

    The page needs no network and no other file; it works on a phone, on paper and by keyboard
    (docs/guides/report.md).
    """
    if len(runs) == 1 and _holds_experiments(runs[0]):
        if csv is not None or latex is not None:
            raise InputError(
                f"{runs[0]}: holds experiment records, which have tables of their own; --csv and --latex take "
                "directories of `kmifqe evaluate`"
            )
        return _render_experiments(runs[0], out)
    from kmifqe.report import tables
    from kmifqe.report.page import REPORT, is_page, run_names, write_page
    from kmifqe.report.result import Result
    from kmifqe.store.manifest import list_file

    folders = [run if run.is_dir() else run.parent for run in runs]
    page = out or (folders[0] if len(runs) == 1 else Path()) / REPORT
    if page.is_dir():
        raise InputError(f"--out {page} is a directory; expected a file such as {page / REPORT}")
    if os.path.lexists(page) and not force and not is_page(page):
        raise InputError(
            f"{page}: exists and is no report of kmifqe; choose another file with --out, or --force to replace it"
        )
    asked = [path.resolve() for path in (page, csv, latex) if path is not None]
    if len(set(asked)) < len(asked):
        raise InputError(
            f"--out, --csv and --latex name the same file ({asked[0]}); expected a file for each"
        )
    for option, path in (("--csv", csv), ("--latex", latex)):
        if path is not None and os.path.lexists(path) and not force and not tables.is_results_table(path):
            raise InputError(
                f"{path}: exists and is no table of `kmifqe report`; choose another file with {option}, or --force "
                "to replace it"
            )
    results = [Result.load(run) for run in runs]
    write_page(results, page, folders=folders)
    if page.name == REPORT:
        list_file(page.parent, REPORT)
    _say_written(page, f" ({page.stat().st_size / 1e6:.1f} MB)")
    if csv is not None:
        tables.write_results_csv(csv, [str(run) for run in runs], results)
        _say_written(csv)
    if latex is not None:
        tables.write_results_latex(latex, run_names(results, folders), results)
        _say_written(latex)
    if open_page and not webbrowser.open(page.resolve().as_uri()):
        sentence = f"no browser was found; open {escape(printable(str(page)))} yourself"
        Console(stderr=True, emoji=False).print(sentence, highlight=False)


def _holds_experiments(folder: Path) -> bool:
    """Return whether `folder` is a root of experiment records, PRESET/EXPERIMENT/ROW/METHOD.json."""
    for path in folder.glob("*/*/*/*.json"):
        with suppress(InputError):  # whoever reads the records says what is wrong with this one
            return str(read_json(path, dict[str, Any]).get("schema")).startswith(EXPERIMENT_SCHEMA)
    return False


def _render_experiments(root: Path, out: Path | None) -> None:
    """Write the tables and figures of every preset that has records under `root`."""
    from kmifqe.experiments.paper_tables import render
    from kmifqe.experiments.presets import PRESETS

    for preset in filter(lambda name: (root / name).is_dir(), PRESETS):
        for path in render(root, root / preset / "rendered" if out is None else out / preset, preset):
            _say_written(path)


def _say_written(path: Path, more: str = "") -> None:
    Console(emoji=False).print(
        f"written: {escape(printable(str(path)))}{more}", highlight=False, soft_wrap=True
    )
