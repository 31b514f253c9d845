"""What the runner says while it works, and to whom: `Watch` keeps it to itself, `terminal.TerminalWatch` shows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import jax

from kmifqe.behavior.fit_report import FitReport
from kmifqe.estimators.fit import Progress


class TaskProgress(NamedTuple):
    """Where one task of a cluster stands."""

    name: str
    estimator: str
    step: int
    steps: int
    steps_per_second: float
    begun: int  # the step that its present process began at
    attempt: int  # 1, or more where an earlier process was lost
    process: int  # the id of its process, on its node


class Watch:
    """Hears what the runner says, and keeps it to itself. `TerminalWatch` shows it."""

    def say(self, sentence: str) -> None:
        """Hear a sentence about what is being done."""

    def note(self, sentence: str) -> None:
        """Hear something about the log that the user should know."""

    def warn(self, sentence: str) -> None:
        """Hear a warning."""

    @contextmanager
    def status(self, sentence: str) -> Iterator[None]:
        """Hear what is being done while the block runs; `update` replaces the sentence."""
        yield

    def update(self, sentence: str) -> None:
        """Hear how far the work of `status` has come."""

    def density(self, report: FitReport, *, is_stored: bool) -> None:
        """Hear how well the fitted behaviour density explains the log; `is_stored`: it was fitted earlier."""

    def begin(self, estimator: str) -> None:
        """Hear that the programs of an estimator are being compiled."""

    def progress(self, progress: Progress) -> None:
        """Hear one report of a fit."""

    def tasks(self, running: Sequence[TaskProgress], done: int, total: int) -> None:
        """Hear how far the tasks of a cluster are: those that run, and how many of the `total` are `done`."""

    def end(self) -> None:
        """Hear that no more progress will be reported."""


def default_watch() -> Watch:
    """Return what shows progress where a person watches, in a terminal or a notebook; elsewhere a silent watch."""
    if not _in_notebook() and not sys.stderr.isatty():
        return Watch()
    from rich.console import Console

    from kmifqe.report.terminal import TerminalWatch

    return TerminalWatch(Console(stderr=True, emoji=False))


def _in_notebook() -> bool:
    """Return whether this process runs a notebook's cells; that ipykernel is imported does not say so yet."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def device_name() -> str:
    """Return the device that the program runs on, as a person says it."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return f"the CPU, {cores} cores"
    return f"{device.device_kind} ({device.platform}:{device.id})"
