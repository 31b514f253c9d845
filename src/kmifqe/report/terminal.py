"""What a terminal shows: estimates and verdicts as a table and lines, and the progress of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kmifqe.behavior.fit_report import FitReport
from kmifqe.errors import printable
from kmifqe.estimators.base import Estimate
from kmifqe.estimators.fit import Progress
from kmifqe.io.format import duration, number, plus_minus
from kmifqe.report.watch import TaskProgress, Watch
from kmifqe.trust.checks.training import without_diverged
from kmifqe.trust.interval import LEVEL, ConfidenceInterval, interval_of
from kmifqe.trust.verdict import Verdict

if TYPE_CHECKING:
    from kmifqe.report.result import Result

TASKS = 12  # of a cluster that have a line of their own in a terminal
SHOWN = 4  # reasons for a verdict in a terminal; result.json has them all
COLOURS = {"trustworthy": "green", "use with care": "yellow", "do not use": "red"}


def verdict_lines(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return lines of markup for a terminal: every verdict that has reasons, and the weightiest of these below it."""
    return [
        line
        for name, verdict in verdicts.items()
        if verdict.reasons
        for line in _verdict_lines(name, verdict)
    ]


def _verdict_lines(name: str, verdict: Verdict) -> list[str]:
    lines = [f"{escape(name)}: [{COLOURS[verdict.word]}]{verdict.word}[/]"]
    lines += [f"  · {escape(reason)}" for reason in verdict.reasons[:SHOWN]]
    more = len(verdict.reasons) - SHOWN
    return [*lines, f"  · and {more} more in result.json"] if more > 0 else lines


def headline(result: Result) -> list[str]:
    """Return what the policy is worth, in what units, and what the number is made of, a sentence each."""
    if not np.isfinite(result.value):
        return [f"There is no value: no network of {result.estimate.estimator} ended with a finite one."]
    interval, gamma = result.interval, result.estimate.gamma
    between = f" ({100 * interval.level:.4g} % interval {_between(interval)})" if interval else ""
    sentences = [
        f"The policy is worth {number(result.value)} per step{between}: {result.verdict.word}.",
        f"Per step means discounted and normalised, (1 − γ) Σ γᵗ r with γ = {gamma:g}; the discounted return is "
        f"{number(result.discounted_return, decimals=2)}.",
    ]
    return [*sentences, *(each for each in (result.better, result.choice) if each)]


def estimates_table(
    estimates: Sequence[Estimate],
    truth: float | None = None,
    *,
    level: float = LEVEL,
    verdicts: Mapping[str, Verdict] | None = None,
) -> Table:
    """Return one row for each of `estimates`; with a known `truth`, its error and the estimators ranked by it.

    `level` is that of the intervals, 0.95 by default. Estimates from bootstrapped seeds have an interval instead of
    the spread that it is made from; to leave it room in 80 columns, bandwidth and effective rows are then
    left to the report. Where some seeds diverged the row is about the others and its V̂ is starred. `verdicts`, by
    estimator, are a column where they are given.
    """
    table = Table(title="Value of the target policy", title_justify="left")
    table.add_column("estimator", no_wrap=True)
    intervals = [interval_of(estimate, level) for estimate in estimates]
    value = ("V̂", f"{100 * level:.4g} % interval") if any(intervals) else ("V̂ ± spread",)
    extra = ("discounted return",) if truth is None else ("error", "|error|")
    infos = () if any(intervals) else _INFOS
    judged = () if verdicts is None else ("verdict",)
    for column in (*value, *extra, *(heading for _, heading, _ in infos), *judged, "time"):
        table.add_column(
            column, justify="right", no_wrap=column not in ("discounted return", "effective rows", "verdict")
        )
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
        if verdicts is not None:
            word = verdicts[estimate.estimator].word
            cells.append(f"[{COLOURS[word]}]{word}[/]")
        table.add_row(*cells, duration(estimate.seconds))
    return table


def _between(interval: ConfidenceInterval | None) -> str:
    """Return the interval's ends, written alike; a dash where there is none."""
    if interval is None:
        return "–"
    size = max(abs(interval.low), abs(interval.high))
    return f"{number(interval.low, size)} … {number(interval.high, size)}"


_INFOS = (("h", "h", "{:.3f}"), ("ess", "effective rows", "{:,.0f}"))


def _last(estimate: Estimate, name: str, pattern: str) -> str:
    series = estimate.infos.get(name)
    return "–" if series is None else pattern.format(float(np.mean(series[-1])))


def likelihood_table(report: FitReport) -> Table:
    """Return the held-out log-likelihood of every component count that was tried for the behaviour density."""
    table = Table(title="Fitted behaviour: held-out log-likelihood, nats a row", title_justify="left")
    table.add_column("components", justify="right")
    table.add_column("log-likelihood", justify="right")
    for count, values, error in zip(report.components, report.log_likelihood, report.standard_error):
        chosen = " ◂" if count == report.chosen else ""
        table.add_row(str(count), f"{np.mean(values):.3f} ± {error:.3f}{chosen}")
    return table


class TerminalWatch(Watch):
    """Shows progress in place on a terminal; into a file or pipe, one plain line per tenth of the run."""

    def __init__(self, console: Console, on_training: Callable[[bool], None] = lambda training: None) -> None:
        self._console = console
        self._on_training = on_training  # told whether networks are being trained
        self._live = Live(console=console, transient=True, refresh_per_second=8)
        self._first: tuple[float, int] | None = None  # when the first record came, and its step
        self._records, self._tenths = 0, 0

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self._console.print(escape(printable(sentence)), highlight=False, soft_wrap=True)

    def note(self, sentence: str) -> None:
        """Print something about the log that the user should know."""
        self._console.print(f"[cyan]note:[/] {escape(printable(sentence))}", highlight=False, soft_wrap=True)

    def warn(self, sentence: str) -> None:
        """Print a warning."""
        self._console.print(
            f"[yellow]warning:[/] {escape(printable(sentence))}", highlight=False, soft_wrap=True
        )

    @contextmanager
    def status(self, sentence: str) -> Iterator[None]:
        """Show on a terminal what is being done while the block runs."""
        self._show(Text(sentence), force=False)
        try:
            yield
        finally:
            self.end()

    def update(self, sentence: str) -> None:
        """Show on a terminal how far the work of `status` has come."""
        self._show(Text(sentence), force=False)

    def density(self, report: FitReport, *, is_stored: bool) -> None:
        """Print the table of held-out likelihoods of `report`; `is_stored`: only say that there is a density."""
        if is_stored:
            self.say("behaviour density: as fitted before")
            return
        Console(emoji=False).print(likelihood_table(report))
        for warning in report.warnings:
            self.warn(warning)

    def begin(self, estimator: str) -> None:
        """Say that an estimator starts: its first steps wait for compilation."""
        self._on_training(False)
        self._first, self._records, self._tenths = None, 0, 0
        self._show(Text(f"{estimator}: compiling …"), force=False)

    def progress(self, progress: Progress) -> None:
        """Show one report of a fit."""
        self._on_training(True)
        tenths = 10 * progress.step // progress.steps
        line = _described(progress) + self._time_left(progress)
        early = self._records < 2  # the second record is the first to know how long the run takes
        self._show(Text(line), force=early or tenths > self._tenths)
        self._records, self._tenths = self._records + 1, tenths

    def tasks(self, running: Sequence[TaskProgress], done: int, total: int) -> None:
        """Show all tasks of a cluster: a line for the whole, and in a terminal one for each that runs."""
        self._on_training(True)
        reached = done + sum(each.step / each.steps for each in running)
        rate = sum(each.steps_per_second for each in running)
        lines = [f"{done} of {total} tasks done, {len(running)} in training, {rate:,.0f} steps/s"]
        if self._console.is_terminal:
            lines += [_task_line(each) for each in running[:TASKS]]
            lines += [f"  and {len(running) - TASKS} more"] * (len(running) > TASKS)
        tenths = int(10 * reached / max(total, 1))
        self._show(Text("\n".join(lines)), force=tenths > self._tenths)
        self._tenths = tenths

    def end(self) -> None:
        """Take the live line off the terminal."""
        self._on_training(False)
        self._live.stop()

    def _time_left(self, progress: Progress) -> str:
        """Return how long the fit will take, by the rate since the first record: that one was compiled too."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now, progress.step
            return "  (compiling included)"
        since, begun = self._first
        left = (now - since) * (progress.steps - progress.step) / (progress.step - begun)
        return f"  {duration(left)} left"

    def _show(self, line: Text, *, force: bool) -> None:
        if self._console.is_terminal:
            if not self._live.is_started:
                self._live.start()
            self._live.update(line)
        elif force:
            self._console.print(line, soft_wrap=True)


def _task_line(task: TaskProgress) -> str:
    again = f", attempt {task.attempt}, from step {task.begun:,}" if task.attempt > 1 else ""
    return f"  {task.name}: {task.step:,}/{task.steps:,} steps  {task.steps_per_second:,.0f}/s{again}"


def _described(progress: Progress) -> str:
    """Return one report as a line of text."""
    values = progress.values
    parts = [
        f"{progress.estimator}: {progress.step:,}/{progress.steps:,} steps",
        f"{progress.steps_per_second:,.0f}/s",
    ]
    finite = np.isfinite(values)
    if finite.all():
        spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
        parts.append(f"V̂ {np.mean(values):.3f}{spread}")
    elif finite.any():
        parts.append(f"V̂ {values[finite].mean():.3f} ({int((~finite).sum())} seeds without a value)")
    if "h" in progress.infos:
        parts += [
            f"h {np.mean(progress.infos['h']):.3f}",
            f"effective rows {np.mean(progress.infos['ess']):,.0f}",
        ]
    return "  ".join(parts)
