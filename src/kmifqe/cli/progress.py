"""A live line while an estimator trains: steps/s, V̂ with its spread over seeds, h, ESS, time left."""

from __future__ import annotations

import os
import time

import jax
import numpy as np
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from kmifqe.estimators import Progress
from kmifqe.estimators.forecast import duration


class ProgressLine:
    """Shows progress in place on a terminal; into a file or pipe, one plain line per tenth of the run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, refresh_per_second=8)
        self._first: tuple[float, int] | None = None  # when the first record came, and its step
        self._records, self._tenths = 0, 0

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, name: str) -> None:
        """Say that an estimator starts: its first steps wait for compilation."""
        self._first, self._records, self._tenths = None, 0, 0
        self._show(Text(f"{name}: compiling …"), force=False)

    def __call__(self, progress: Progress) -> None:
        """Show one report of `fit`."""
        tenths = 10 * progress.step // progress.steps
        line = describe(progress) + self._time_left(progress)
        early = self._records < 2  # the second record is the first to know how long the run takes
        self._show(Text(line), force=early or tenths > self._tenths)
        self._records, self._tenths = self._records + 1, tenths

    def _time_left(self, progress: Progress) -> str:
        """Return words on how long it will take, from the rate since the first record: that one compiled."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now, progress.step
            return "  (compiling included)"
        since, begun = self._first
        left = (now - since) * (progress.steps - progress.step) / (progress.step - begun)
        return f"  {duration(left)} left"

    def _show(self, line: Text, *, force: bool) -> None:
        if self._console.is_terminal:
            self._live.update(line)
        elif force:
            self._console.print(line, soft_wrap=True)


def describe(progress: Progress) -> str:
    """Return one report as a line of text."""
    values = progress.values
    parts = [
        f"{progress.estimator}: {progress.step:,}/{progress.steps:,} steps",
        f"{progress.steps_per_second:,.0f}/s",
    ]
    if np.isfinite(values).all():
        spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
        parts.append(f"V̂ {np.mean(values):.3f}{spread}")
    elif np.isfinite(values).any():
        parts.append(
            f"V̂ {values[np.isfinite(values)].mean():.3f} ({int((~np.isfinite(values)).sum())} seeds without a value)"
        )
    if "h" in progress.infos:
        parts += [f"h {np.mean(progress.infos['h']):.3f}", f"ESS {np.mean(progress.infos['ess']):,.0f}"]
    return "  ".join(parts)


def device_name() -> str:
    """Return the device that the program runs on, as a person says it."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return f"the CPU, {cores} cores"
    return f"{device.device_kind} ({device.platform}:{device.id})"


def warn_on(console: Console, sentence: str) -> None:
    """Print a warning."""
    console.print(f"[yellow]warning:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
