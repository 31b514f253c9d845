"""Numbers, sentences and tables for a terminal."""

from __future__ import annotations

import math

import numpy as np
from rich.markup import escape
from rich.table import Table

from kmifqe.estimators.base import Estimate
from kmifqe.estimators.forecast import duration
from kmifqe.trust.checks.training import without_diverged
from kmifqe.trust.interval import LEVEL, ConfidenceInterval, interval_of
from kmifqe.trust.verdict import Diagnosis, Verdict

PLAIN = (0.01, 1e5)  # sizes that three decimals show well


def number(x: float, size: float | None = None, *, sign: bool = False, decimals: int = 3) -> str:
    """Return x with fixed decimals, or with three significant digits where these would say nothing or too much.

    `size` decides in place of |x|: a value and its spread are then written alike.
    """
    largest = abs(x if size is None else size)
    fixed = largest == 0 or not math.isfinite(largest) or PLAIN[0] <= largest < PLAIN[1]
    return f"{x:{'+' if sign else ''}{f'.{decimals}f' if fixed else '.3g'}}"


def plus_minus(value: float, spread: float) -> str:
    """Return "value ± spread", both written alike; the value alone where one seed leaves no spread."""
    if math.isnan(spread) and not math.isnan(value):
        return number(value)
    size = max(abs(x) for x in (value, spread, 0.0) if not math.isnan(x))
    return f"{number(value, size)} ± {number(spread, size)}"


SHOWN = 4  # reasons for a verdict in a terminal; result.json has them all
COLOURS = {"trustworthy": "green", "use with care": "yellow", "do not use": "red"}


def verdict_lines(diagnosis: Diagnosis) -> list[str]:
    """Return lines of markup for a terminal: every estimator's verdict, and its weightiest reasons below it."""
    return [line for name, verdict in diagnosis.verdicts.items() for line in _told(name, verdict)]


def _told(name: str, verdict: Verdict) -> list[str]:
    lines = [f"{escape(name)}: [{COLOURS[verdict.word]}]{verdict.word}[/]"]
    lines += [f"  · {escape(reason)}" for reason in verdict.reasons[:SHOWN]]
    more = len(verdict.reasons) - SHOWN
    return [*lines, f"  · and {more} more in result.json"] if more > 0 else lines


def estimates_table(estimates: list[Estimate], truth: float | None = None, *, level: float = LEVEL) -> Table:
    """Return one row per estimator; with a known `truth`, its error and the estimators ranked by it.

    Estimates from bootstrapped seeds have an interval instead of the spread that it is made from; to leave it room
    in 80 columns, bandwidth and effective sample size are then left to the report.

    Where some seeds diverged the row is about the others and its V̂ is starred; a note says which.
    """
    table = Table(title="Value of the target policy", title_justify="left")
    table.add_column("estimator", no_wrap=True)
    intervals = [interval_of(estimate, level) for estimate in estimates]
    value = ("V̂", f"{100 * level:.4g} % interval") if any(intervals) else ("V̂ ± spread",)
    extra = ("discounted return",) if truth is None else ("error", "|error|")
    infos = () if any(intervals) else _INFOS
    for column in (*value, *extra, *(heading for _, heading, _ in infos), "time"):
        table.add_column(column, justify="right", no_wrap=column != "discounted return")
    shown = [without_diverged(estimate) for estimate in estimates]
    errors = [abs(e.value - truth) if truth is not None else np.nan for e in shown]
    best = int(np.nanargmin(errors)) if np.isfinite(errors).any() else -1
    for i, (estimate, error) in enumerate(zip(shown, errors)):
        star = " *" if len(estimate.seeds) < len(estimates[i].seeds) else ""
        if any(intervals):
            cells = [estimate.estimator, number(estimate.value) + star, _between(intervals[i])]
        else:
            cells = [estimate.estimator, plus_minus(estimate.value, estimate.spread) + star]
        if truth is None:
            cells.append(number(estimate.discounted_return, decimals=2))
        else:
            size = max(abs(truth), error)
            cells.append(number(estimate.value - truth, size, sign=True))
            cells.append(f"{number(error, size)}{' ◂' if i == best else '  '}")
        cells += [_last(estimate, name, pattern) for name, _, pattern in infos]
        table.add_row(*cells, duration(estimate.seconds))
    return table


def _between(interval: ConfidenceInterval | None) -> str:
    """Return the interval's ends, written alike; a dash where there is none."""
    if interval is None:
        return "–"
    size = max(abs(interval.low), abs(interval.high))
    return f"{number(interval.low, size)} … {number(interval.high, size)}"


_INFOS = (("h", "h", "{:.3f}"), ("ess", "ESS", "{:,.0f}"))


def _last(estimate: Estimate, name: str, pattern: str) -> str:
    series = estimate.infos.get(name)
    return "–" if series is None else pattern.format(float(np.mean(series[-1])))
