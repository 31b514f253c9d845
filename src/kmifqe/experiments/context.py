"""One call of `kmifqe reproduce`: its options, what an experiment is, and the one place that fits an estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kmifqe.estimators import Estimate
from kmifqe.estimators.fit import Plan, make_plan
from kmifqe.experiments.presets import METHODS, Preset, Run
from kmifqe.experiments.records import Errors, Place, is_done, settings_hash, write_record
from kmifqe.io.files import disk_sentence
from kmifqe.mdp.problem import Problem
from kmifqe.report.watch import Watch
from kmifqe.runner import Store, run_estimators
from kmifqe.store.checkpoints import CheckpointFolder

MUJOCO = ("gymnasium", "mujoco")  # packages whose versions decide a MuJoCo row


class _Checkpointed(Store):
    """Keeps the snapshots of one fit; its estimate becomes a record, which somebody else keeps."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder

    def checkpoints(self, plan: Plan) -> CheckpointFolder:
        return self._folder


def fit_run(
    problem: Problem,
    run: Run,
    *,
    watch: Watch | None = None,
    checkpoints: CheckpointFolder | None = None,
    **plan: Any,
) -> tuple[Estimate, Problem]:
    """Return the estimate with its final state, and the problem to go on with.

    Every experiment and study trains its estimators here. `problem` is the log and the policy that is judged, `run`
    the estimator and its steps. `watch` hears progress and warnings, `checkpoints` keeps snapshots; both are None by
    default. `plan` are further arguments of `make_plan`: seeds, bootstrap, record_every.
    """
    (estimate,), problem = run_estimators(
        problem,
        [run.estimator],
        [make_plan(run.estimator, problem, steps=run.steps, **plan)],
        store=None if checkpoints is None else _Checkpointed(checkpoints),
        watch=watch,
        forecast=False,
        keep_state=True,
    )
    return estimate, problem


def _never() -> bool:
    """Say that no stop was asked for; a function of the module, so that a context can be sent to other processes."""
    return False


@dataclass(frozen=True)
class Context:
    """The options of one call of `reproduce`."""

    preset: Preset
    results: Path  # root of the records
    work: Path  # logs, truths, densities, policies, unfinished fits: large, and made again if missing
    method: str | None = None  # only this one
    resume: bool = False
    workers: int = 1  # processes that step environments
    d4rl_dir: Path | None = None
    policies: Path | None = None  # actors that others trained, which the ranking adds to its own
    watch: Watch = field(default_factory=Watch)  # hears lines for a person, and the progress of fits
    stop_asked: Callable[[], bool] = (
        _never  # asked between blocks of steps; True saves and raises `Interrupted`
    )

    def say(self, sentence: str) -> None:
        """Let a person read one line."""
        self.watch.say(sentence)

    def place(self, experiment: str, row: str, method: str) -> Place:
        """Return the place of the record of a `method` on a `row` of an `experiment`."""
        return Place(self.preset.name, experiment, row, method)

    def wants(self, place: Place, settings: Mapping[str, Any]) -> bool:
        """Return whether the record is asked for and not there already; say why not where it is."""
        if self.method not in (None, place.method):
            return False
        done = self.resume and is_done(self.results, place, settings)
        if done:
            self.say(f"{place.experiment} {place.row} {place.method}: there already")
        return not done

    def checkpoints(self, place: Place, settings: Mapping[str, Any]) -> CheckpointFolder:
        """Return where the fit of a record keeps how far it is, so that `resume` goes on from there."""
        folder = self.work / "fits" / f"{place.row}-{place.method}-{settings_hash(settings)}"
        with disk_sentence(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        checkpoints = CheckpointFolder(folder, warn=self.say, stop_asked=self.stop_asked)
        if not self.resume:
            checkpoints.clear()
        return checkpoints

    def fit(self, problem: Problem, run: Run, **options: Any) -> tuple[Estimate, Problem]:
        """Return `fit_run` of the problem with these options, its progress shown as this call asks."""
        return fit_run(problem, run, watch=self.watch, **options)

    def keep(self, place: Place, settings: Mapping[str, Any], wall_seconds: float, **measured: Any) -> None:
        """Write the record of a place (`Place.record` has the arguments); say where it lies and what its error is."""
        path = write_record(place.record(settings, wall_seconds, **measured), place.path(self.results))
        said = "".join(_error_text(name, error) for name, error in measured.get("errors", {}).items())
        self.say(f"{place.experiment} {place.row} {place.method}: {wall_seconds:.1f} s{said} -> {path}")


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper: its rows, and what makes and keeps one record per method of a row."""

    name: str
    rows: Callable[[Preset], tuple[str, ...]]
    run: Callable[[str, Context], None]
    methods: tuple[str, ...] = tuple(METHODS)
    # Does what a row needs of the processor alone (collection, truth) into `work`, so that another process can do it.
    prepare: Callable[[str, Context], None] | None = None
    file_rows: Callable[[Path], tuple[str, ...]] | None = None  # further rows, of the D4RL files in a folder
    # The same work as `prepare`'s in pieces by name, which several processes can share; rows may have some in common.
    jobs: Callable[[str, Context], Mapping[str, Callable[[], object]]] | None = None


def _error_text(name: str, error: Errors) -> str:
    if error["rmse"] is None:
        return f", {error['diverged']} seeds diverged"
    spread = "" if error["standard_error"] is None else f" ± {error['standard_error']:.3f}"
    return f", RMSE {error['rmse']:.3f}{spread} ({name.replace('_', ' ')})"
