"""`kmifqe report`: run directories to one HTML page, experiment records to tables and figures."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.errors import InputError

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
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write one self-contained HTML page: the value, how far to believe it, and everything behind it.

    Example: kmifqe report runs/first --open

    The page needs no network and no other file; it works on a phone, on paper and by keyboard (docs/report.md).
    """
    if len(runs) == 1 and _holds_experiments(runs[0]):
        _render_experiments(runs[0], out)
        return
    from kmifqe.report.html.page import REPORT, write_report

    one = runs[0] if len(runs) == 1 else None
    folder = Path() if one is None else one if one.is_dir() else one.parent
    page = folder / REPORT if out is None else out
    if page.is_dir():
        raise InputError(f"--out {page} is a directory; expected a file such as {page / REPORT}")
    write_report(runs, page)
    _say_written(page, f" ({page.stat().st_size / 1e6:.1f} MB)")
    if open_page and not webbrowser.open(page.resolve().as_uri()):
        Console(stderr=True).print(
            f"no browser was found; open {escape(str(page))} yourself", highlight=False
        )


def _holds_experiments(folder: Path) -> bool:
    """Return whether a directory is a root of experiment records, PRESET/EXPERIMENT/ROW/METHOD.json."""
    for path in folder.glob("*/*/*/*.json"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # whoever reads the records says what is wrong with this one
        return isinstance(record, dict) and str(record.get("schema")).startswith(EXPERIMENT_SCHEMA)
    return False


def _render_experiments(root: Path, out: Path | None) -> None:
    """Write the tables and figures of every preset that has records."""
    from kmifqe.experiments.presets import PRESETS
    from kmifqe.experiments.render import render

    for preset in PRESETS:
        if (root / preset).is_dir():
            folder = root / preset / "rendered" if out is None else out / preset
            for path in render(root, folder, preset):
                _say_written(path)


def _say_written(path: Path, more: str = "") -> None:
    Console().print(f"written: {escape(str(path))}{more}", highlight=False, soft_wrap=True)
