"""What a benchmark hands on: rows of one table, and which machine and versions they come from."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One measurement and, beside it, the ratio that was taken in the same run."""

    section: str
    what: str
    value: float | None = None  # None: could not be measured here, `note` says why
    unit: str = ""
    ratio: float | None = None
    of: str = ""  # what the ratio is taken to
    note: str = ""


def versions() -> dict[str, Any]:
    """Return what a comparison of two runs has to know: versions, machine, load and date."""
    names = ("kmifqe", "jax", "jaxlib", "numpy", "optax")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        **{name: importlib.metadata.version(name) for name in names if _installed(name)},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": load,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # a source tree on the path has no version to state
        return False
    return True


def table_of(rows: Sequence[Row], title: str) -> Table:
    """Return the rows as one table, a rule between sections."""
    table = Table(title=title)
    for name, justify in (("", "left"), ("what", "left"), ("measured", "right"), ("ratio", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("to")
    before = None
    for row in rows:
        if before not in (None, row.section):
            table.add_section()
        measured = "" if row.value is None else f"{number(row.value)} {row.unit}"
        ratio = "" if row.ratio is None else number(row.ratio)
        says = "; ".join(part for part in (row.of, row.note) if part)
        table.add_row(row.section if row.section != before else "", row.what, measured, ratio, says)
        before = row.section
    return table


def console() -> Console:
    """Return a console wide enough for the table, also where the output is a file."""
    usual = Console()
    return usual if usual.is_terminal else Console(width=150)


def number(x: float) -> str:
    """Return x with three digits that count."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:#.3g}".rstrip(".")


def write(path: Path, about: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write a run where `read` finds it."""
    content = {"about": about, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Return what `write` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["about"], [Row(**row) for row in content["rows"]]
