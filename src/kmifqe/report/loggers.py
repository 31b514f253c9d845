"""A run as it goes on, in TensorBoard or Weights & Biases: give one of these as `on_progress`.

A logger is a function of `Progress`; several are called one after the other with `together`. Both libraries are
optional: neither is imported before its logger is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kmifqe.errors import InputError
from kmifqe.estimators.fit import Progress

Logger = Callable[[Progress], None]


class WandbRun(Protocol):
    """What is asked of a W&B run: `wandb.init(...)` returns one."""

    def log(self, data: dict[str, Any]) -> Any:
        """Record values."""


def scalars(progress: Progress) -> Iterator[tuple[str, float]]:
    """Yield what is worth a curve, by name: V̂ over seeds and of each, infos averaged over seeds, the speed."""
    name, values = progress.estimator, progress.values
    yield f"{name}/value", float(np.mean(values))
    if len(values) > 1:
        yield f"{name}/spread", float(np.std(values, ddof=1))
        for i, value in enumerate(values):
            yield f"{name}/seeds/{i}", float(value)
    for info, series in progress.infos.items():
        yield f"{name}/{info}", float(np.mean(series))
    yield f"{name}/steps_per_second", progress.steps_per_second


class TensorBoardLogger:
    """Writes event files that `tensorboard --logdir` shows; needs tensorboardX (the extra `tensorboard`)."""

    def __init__(self, logdir: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise InputError(
                "TensorBoardLogger needs tensorboardX, which is not installed: pip install 'kmifqe[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(logdir))

    def __call__(self, progress: Progress) -> None:
        """Add one point to every curve."""
        for name, value in scalars(progress):
            self._writer.add_scalar(name, value, progress.step)
        self._writer.flush()  # a run that is watched is watched now

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


class WandbLogger:
    """Logs to a run of Weights & Biases, with each estimator's own step as the curves' axis."""

    def __init__(self, run: WandbRun) -> None:
        self._run = run

    def __call__(self, progress: Progress) -> None:
        """Log one point of every curve."""
        # W&B's own step may only grow, and a second estimator begins at 0 again: its step is a value of its own.
        self._run.log({f"{progress.estimator}/step": progress.step, **dict(scalars(progress))})


def together(*loggers: Logger) -> Logger:
    """Return one function that calls every logger in turn."""

    def call_all(progress: Progress) -> None:
        for logger in loggers:
            logger(progress)

    return call_all
