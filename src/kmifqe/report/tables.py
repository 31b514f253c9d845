"""Estimates as tables for a terminal."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from kmifqe.estimators.base import Estimate


def estimates_table(estimates: list[Estimate], truth: float | None = None) -> Table:
    """Return one row per estimator; with a known `truth`, its error and the estimators ranked by it."""
    table = Table(title="Value of the target policy", title_justify="left")
    table.add_column("estimator", no_wrap=True)
    table.add_column("V̂ ± spread", justify="right")
    if truth is not None:
        table.add_column("error", justify="right")
        table.add_column("|error|", justify="right")
    table.add_column("discounted return", justify="right")
    for column in ("h", "ESS", "mean weight"):
        table.add_column(column, justify="right")
    table.add_column("time", justify="right")
    errors = [abs(e.value - truth) if truth is not None else np.nan for e in estimates]
    best = int(np.nanargmin(errors)) if np.isfinite(errors).any() else -1
    for i, (estimate, error) in enumerate(zip(estimates, errors)):
        cells = [estimate.estimator, f"{estimate.value:.3f} ± {estimate.spread:.3f}"]
        if truth is not None:
            cells += [f"{estimate.value - truth:+.3f}", f"{error:.3f}" + (" ◂" if i == best else "")]
        cells.append(f"{estimate.discounted_return:.2f}")
        cells += [_last(estimate, name, pattern) for name, pattern in _INFOS]
        table.add_row(*cells, duration(estimate.seconds))
    return table


_INFOS = (("h", "{:.3f}"), ("ess", "{:,.0f}"), ("mean_weight", "{:.2f}"))


def _last(estimate: Estimate, name: str, pattern: str) -> str:
    series = estimate.infos.get(name)
    return "–" if series is None else pattern.format(float(np.mean(series[-1])))


def duration(seconds: float) -> str:
    """Return a length of time as a person says it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
