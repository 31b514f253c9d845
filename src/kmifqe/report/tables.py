"""Estimates as tables for a terminal."""

from __future__ import annotations

import numpy as np
from rich.markup import escape
from rich.table import Table

from kmifqe.estimators.base import Estimate
from kmifqe.report.notes import convergence_notes


def estimates_table(estimates: list[Estimate], truth: float | None = None) -> Table:
    """Return one row per estimator; with a known `truth`, its error and the estimators ranked by it."""
    table = Table(title="Value of the target policy", title_justify="left")
    table.add_column("estimator", no_wrap=True)
    extra = ("discounted return",) if truth is None else ("error", "|error|")
    for column in ("V̂ ± spread", *extra, *(heading for _, heading, _ in _INFOS), "time"):
        table.add_column(column, justify="right", no_wrap=column != "discounted return")
    errors = [abs(e.value - truth) if truth is not None else np.nan for e in estimates]
    best = int(np.nanargmin(errors)) if np.isfinite(errors).any() else -1
    for i, (estimate, error) in enumerate(zip(estimates, errors)):
        cells = [estimate.estimator, f"{estimate.value:.3f} ± {estimate.spread:.3f}"]
        if truth is None:
            cells.append(f"{estimate.discounted_return:.2f}")
        else:
            cells += [f"{estimate.value - truth:+.3f}", f"{error:.3f}{' ◂' if i == best else '  '}"]
        cells += [_last(estimate, name, pattern) for name, _, pattern in _INFOS]
        table.add_row(*cells, duration(estimate.seconds))
    return table


_INFOS = (("h", "h", "{:.3f}"), ("ess", "ESS", "{:,.0f}"))


def _last(estimate: Estimate, name: str, pattern: str) -> str:
    series = estimate.infos.get(name)
    return "–" if series is None else pattern.format(float(np.mean(series[-1])))


def notes_lines(estimates: list[Estimate]) -> list[str]:
    """Return one line of markup per note on any estimate."""
    return [
        f"[yellow]{estimate.estimator}:[/] {escape(note)}"
        for estimate in estimates
        for note in convergence_notes(estimate)
    ]


def duration(seconds: float) -> str:
    """Return a length of time as a person says it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
