"""Tables for a spreadsheet (CSV) and for a paper (LaTeX, with the package booktabs): of results, and of rankings."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from kmifqe.errors import printable
from kmifqe.io.files import write_file
from kmifqe.io.format import number
from kmifqe.report.result import Result

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    letter: f"\\{letter}" for letter in "&%$#_{}"
}
MADE_BY = "% kmifqe report"  # the first line of a table of results: a file that may be replaced unasked


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write `rows` with these `columns` to the file `path`; None and NaN are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: None if value != value else value for name, value in row.items()})
    write_file(path, text.getvalue().encode(errors="replace"))


def write_latex(
    path: Path,
    align: str,
    headings: Sequence[str],
    groups: Iterable[Sequence[Sequence[str]]],
    first: str = "",
) -> None:
    """Write a table whose groups of rows a line parts; cells are LaTeX already.

    path: the file, which is replaced.
    align: of the columns, such as "lrl".
    headings: one for each column.
    groups: rows of cells; an empty group is left out.
    first: a line above the table, by default none.
    """
    bodies = ["".join(f"{' & '.join(row)} \\\\\n" for row in group) for group in groups if group]
    lines = [rf"\begin{{tabular}}{{{align}}}", r"\toprule", rf"{' & '.join(headings)} \\", r"\midrule"]
    text = "\n".join([*[first] * bool(first), *lines, ""]) + "\\midrule\n".join(bodies)
    write_file(path, f"{text}\\bottomrule\n\\end{{tabular}}\n".encode(errors="replace"))


def latex(text: str) -> str:
    """Return `text` for LaTeX, letter by letter as it stands."""
    return "".join(LATEX.get(letter, letter) for letter in printable(text).replace("\n", " "))


def latex_number(value: float | None) -> str:
    """Return a number for LaTeX; a dash for None and NaN."""
    return "--" if value is None or math.isnan(value) else f"${number(value)}$".replace("−", "-")


def latex_interval(low: float | None, high: float | None) -> str:
    """Return an interval for LaTeX; a dash where there is none."""
    return "--" if low is None or high is None else f"{latex_number(low)} to {latex_number(high)}"


RESULT_COLUMNS = (
    "run",
    "data",
    "policy",
    "behavior",
    "gamma",
    "estimator",
    "value",
    "low",
    "high",
    "level",
    "verdict",
    "spread",
    "seeds",
    "diverged",
    "discounted_return",
    "steps",
    "seconds",
)


def result_rows(names: Sequence[str], results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a row with RESULT_COLUMNS for every estimator of every result; `names` are what the runs are called."""
    rows = []
    for name, result in zip(names, results, strict=True):
        asked = {field: getattr(result.question, field) for field in ("data", "policy", "behavior", "gamma")}
        rows += [{"run": name} | asked | row for row in result.estimate_rows()]
    return rows


def write_results_csv(path: Path, names: Sequence[str], results: Sequence[Result]) -> None:
    """Write a row for every estimator of each of the `results` to the file `path`, the headline first.

    `names` are those of the results, in the same order.
    """
    write_csv(path, result_rows(names, results), RESULT_COLUMNS)


def write_results_latex(path: Path, names: Sequence[str], results: Sequence[Result]) -> None:
    """Write value, interval and verdict of every estimator of each of the `results` to the file `path`.

    The headline of a result is first. `names` are those of the results, in the same order.
    """
    rows = result_rows(names, results)
    levels = {row["level"] for row in rows if row["level"] is not None}
    interval = rf"{100 * levels.pop():.3g}\,\% interval" if len(levels) == 1 else "interval"
    groups = [
        [
            (
                latex(name) if i == 0 else "",
                latex(row["estimator"]),
                latex_number(row["value"]),
                latex_interval(row["low"], row["high"]),
                row["verdict"],
            )
            for i, row in enumerate(group)
        ]
        for name, group in groupby(rows, key=lambda row: str(row["run"]))
    ]
    write_latex(path, "llrrl", ("run", "estimator", r"$\hat V$", interval, "verdict"), groups, MADE_BY)


def is_results_table(path: Path) -> bool:
    """Return whether `path` is a table of results, by its first line."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline(1000).strip() in (MADE_BY.encode(), ",".join(RESULT_COLUMNS).encode())
