"""Estimates as tables for a terminal."""

from __future__ import annotations

import numpy as np
from rich.markup import escape
from rich.table import Table

from kmifqe.estimators.base import Estimate
from kmifqe.estimators.foresee import duration
from kmifqe.report.notes import convergence_notes, without_diverged
from kmifqe.report.numbers import number, plus_minus


def estimates_table(estimates: list[Estimate], truth: float | None = None) -> Table:
    """Return one row per estimator; with a known `truth`, its error and the estimators ranked by it.

    Where some seeds diverged the row is about the others and its V̂ is starred; a note says which.
    """
    table = Table(title="Value of the target policy", title_justify="left")
    table.add_column("estimator", no_wrap=True)
    extra = ("discounted return",) if truth is None else ("error", "|error|")
    for column in ("V̂ ± spread", *extra, *(heading for _, heading, _ in _INFOS), "time"):
        table.add_column(column, justify="right", no_wrap=column != "discounted return")
    shown = [without_diverged(estimate) for estimate in estimates]
    errors = [abs(e.value - truth) if truth is not None else np.nan for e in shown]
    best = int(np.nanargmin(errors)) if np.isfinite(errors).any() else -1
    for i, (estimate, error) in enumerate(zip(shown, errors)):
        star = " *" if len(estimate.seeds) < len(estimates[i].seeds) else ""
        cells = [estimate.estimator, plus_minus(estimate.value, estimate.spread) + star]
        if truth is None:
            cells.append(number(estimate.discounted_return, decimals=2))
        else:
            size = max(abs(truth), error)
            cells.append(number(estimate.value - truth, size, sign=True))
            cells.append(f"{number(error, size)}{' ◂' if i == best else '  '}")
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
