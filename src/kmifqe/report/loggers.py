"""A run as it goes on, in TensorBoard, Weights & Biases or MLflow: give one of these as `on_progress`.

A logger is a function of `Progress`; several are called one after the other with `together`. The loggers here also
take the finished result. All three libraries are optional: none is imported before its logger is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kmifqe.errors import InputError, shown
from kmifqe.estimators.fit import Progress

if TYPE_CHECKING:
    from kmifqe.estimators.base import Estimate
    from kmifqe.report.result import Result

Logger = Callable[[Progress], None]
PROJECT = "kmifqe"  # where W&B and MLflow keep runs, unless their own variables say otherwise
TENSORBOARD = "tensorboard"  # the folder in a run directory


class Tracker(Protocol):
    """A logger that also takes the result."""

    def __call__(self, progress: Progress) -> None:
        """Add one point to every curve."""

    def finish(self, result: Result | None) -> None:
        """Record the values, intervals and verdicts of `result`, None where there is none, and end the run."""


class WandbRun(Protocol):
    """What is asked of a W&B run: `wandb.init(...)` returns one."""

    summary: Any

    def log(self, data: dict[str, Any]) -> Any:
        """Record values."""

    def finish(self, exit_code: int | None = None) -> Any:
        """End the run."""


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


def final_numbers(result: Result) -> dict[str, float]:
    """Return what a result comes to: value, low and high of the headline, and final/NAME/value of every estimator."""
    found: dict[str, float] = {}
    for estimate in result.estimates:
        interval = result.intervals[estimate.estimator]
        numbers = {"value": estimate.value}
        if interval is not None:
            numbers |= {"low": interval.low, "high": interval.high}
        if estimate is result.estimate:
            found |= numbers
        found |= {f"final/{estimate.estimator}/{name}": value for name, value in numbers.items()}
    return found


def final_words(result: Result) -> dict[str, str]:
    """Return the verdict on the headline and on every estimator, named as in `final_numbers`, and the reasons."""
    words = {"verdict": result.verdict.word, "reasons": " ".join(result.verdict.reasons)}
    return words | {f"final/{name}/verdict": verdict.word for name, verdict in result.verdicts.items()}


class TensorBoardLogger:
    """Writes event files that `tensorboard --logdir` shows; needs tensorboardX (the extra `tensorboard`).

    The folder is made with the first point.
    """

    def __init__(self, logdir: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboardX", "tensorboard") from error
        self._make = SummaryWriter
        self._logdir = str(logdir)
        self._made: Any = None

    @property
    def _writer(self) -> Any:
        if self._made is None:
            self._made = self._make(self._logdir)
        return self._made

    def __call__(self, progress: Progress) -> None:
        """Add one point to every curve."""
        for name, value in scalars(progress):
            self._writer.add_scalar(name, value, progress.step)
        self._writer.flush()  # a run that is watched is watched now

    def finish(self, result: Result | None) -> None:
        """Add the final numbers and, as text, the verdicts; then finish the file."""
        if result is not None:
            steps = result.estimate.steps
            for name, value in final_numbers(result).items():
                self._writer.add_scalar(name, value, steps)
            for name, word in final_words(result).items():
                self._writer.add_text(name, word, steps)
        self.close()

    def close(self) -> None:
        """Finish the file."""
        if self._made is not None:
            self._made.close()


class WandbLogger:
    """Logs to a run of Weights & Biases, with each estimator's own step as the curves' axis."""

    def __init__(self, run: WandbRun) -> None:
        self._run = run

    def __call__(self, progress: Progress) -> None:
        """Log one point of every curve."""
        # W&B's own step may only grow, and a second estimator begins at 0 again: its step is a value of its own.
        self._run.log({f"{progress.estimator}/step": progress.step, **dict(scalars(progress))})

    def finish(self, result: Result | None) -> None:
        """Put the final numbers and the verdicts into the run's summary, and end the run."""
        if result is not None:
            self._run.summary.update({**final_numbers(result), **final_words(result)})
        self._run.finish(exit_code=0 if result is not None else 1)


class MlflowLogger:
    """Logs to a new run of MLflow; needs mlflow or mlflow-skinny (the extra `mlflow`).

    name: of the run.
    parameters: what MLflow shows as the run's parameters; none by default.

    MLFLOW_TRACKING_URI says where runs are kept, MLFLOW_EXPERIMENT_NAME in which experiment ("kmifqe" by default).
    """

    def __init__(self, name: str, parameters: dict[str, Any] | None = None) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise _missing("mlflow", "mlflow") from error
        self._mlflow = mlflow
        try:
            experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
            self._client = mlflow.MlflowClient()
            run = self._client.create_run(experiment.experiment_id, run_name=name)
            self._run = run.info.run_id
            for key, value in (parameters or {}).items():
                self._client.log_param(self._run, key, shown(value, 500))
        except mlflow.exceptions.MlflowException as error:
            raise InputError(f"MLflow refuses a run: {shown(error)}") from error

    def __call__(self, progress: Progress) -> None:
        """Log one point of every curve."""
        self._log(dict(scalars(progress)), progress.step)

    def finish(self, result: Result | None) -> None:
        """Log the final numbers as metrics and the verdicts as tags, and end the run."""
        if result is not None:
            self._log(final_numbers(result), result.estimate.steps)
            for name, word in final_words(result).items():
                self._client.set_tag(self._run, name, word)
        self._client.set_terminated(self._run, "FINISHED" if result is not None else "KILLED")

    def _log(self, numbers: dict[str, float], step: int) -> None:
        now = int(datetime.now().timestamp() * 1000)
        metrics = [
            self._mlflow.entities.Metric(name, value, now, int(step)) for name, value in numbers.items()
        ]
        self._client.log_batch(self._run, metrics=metrics)


def together(*loggers: Logger) -> Logger:
    """Return one function that calls every logger in turn."""

    def call_all(progress: Progress) -> None:
        for logger in loggers:
            logger(progress)

    return call_all


def _on_tensorboard(folder: Path, options: dict[str, Any]) -> Tracker:
    return TensorBoardLogger(folder / TENSORBOARD / datetime.now().strftime("%Y%m%d-%H%M%S"))


def _on_wandb(folder: Path, options: dict[str, Any]) -> Tracker:
    try:
        import wandb
    except ImportError as error:
        raise _missing("wandb", "wandb") from error
    try:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        return WandbLogger(wandb.init(project=project, name=folder.name, config=options))
    except wandb.errors.Error as error:
        raise InputError(
            f"Weights & Biases refuses a run: {shown(error)}; `wandb login` once, or WANDB_MODE=offline"
        ) from error


def _on_mlflow(folder: Path, options: dict[str, Any]) -> Tracker:
    return MlflowLogger(folder.name, options)


TRACKERS: dict[str, Callable[[Path, dict[str, Any]], Tracker]] = {
    "tensorboard": _on_tensorboard,
    "wandb": _on_wandb,
    "mlflow": _on_mlflow,
}


class Tracking:
    """Several trackers of one evaluation. A tracker that fails is dropped with a warning: the evaluation goes on.

    An estimator that is fitted again, as within a time budget, gets curves of its own: kmifqe, then kmifqe-2.
    """

    def __init__(
        self, names: Sequence[str], folder: Path, options: dict[str, Any], warn: Callable[[str], None]
    ) -> None:
        """Begin a run with every tracker.

        names: of TRACKERS; a package that is missing is refused here, before anything is trained.
        folder: the run directory, whose name the runs get.
        options: what was asked, for the trackers that show it.
        warn: called with a sentence when a tracker fails.
        """
        self._warn = warn
        self._trackers: dict[str, Tracker] = {}
        self._fits: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        try:
            for name in dict.fromkeys(names):
                self._trackers[name] = TRACKERS[name](folder, options)
        except InputError:
            self.finish(None)
            raise

    def __call__(self, progress: Progress) -> None:
        """Add one point to every curve."""
        name = progress.estimator
        if progress.step <= self._steps.get(name, progress.step):
            self._fits[name] = self._fits.get(name, 0) + 1
        self._steps[name] = progress.step
        if self._fits[name] > 1:
            progress = progress._replace(estimator=f"{name}-{self._fits[name]}")
        self._each(lambda tracker: tracker(progress))

    def finish(self, result: Result | None) -> None:
        """Record the result, None where the evaluation ended without one, and end the runs.

        An estimator that was trained elsewhere, on a cluster or before a resumed run stopped, gets its curves now.
        """
        if result is not None and self._trackers:
            for estimate in result.estimates:
                if not estimate.members and estimate.estimator not in self._steps:
                    for progress in _recorded(estimate):
                        self(progress)
        self._each(lambda tracker: tracker.finish(result))
        self._trackers = {}

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except (
                Exception
            ) as error:  # a network, a server or a disk of theirs is no reason to lose an evaluation
                del self._trackers[name]
                self._warn(f"{name} failed ({shown(error)}); the evaluation goes on without it")


def _recorded(estimate: Estimate) -> Iterator[Progress]:
    """Yield what was reported of a fit that has ended."""
    speed = estimate.steps / max(estimate.seconds, 1e-9)
    for i, step in enumerate(estimate.recorded_steps):
        infos = {name: series[i] for name, series in estimate.infos.items()}
        yield Progress(estimate.estimator, int(step), estimate.steps, speed, estimate.trajectory[i], infos)


def _missing(package: str, extra: str) -> InputError:
    return InputError(
        f"tracking with {extra} needs {package}, which is not installed: pip install 'kmifqe[{extra}]'"
    )
