"""The snapshots and finished estimates of the fits to one problem, inside a run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kmifqe.estimators.base import Estimate
from kmifqe.estimators.fit import Plan
from kmifqe.io.files import make_directory
from kmifqe.store.archive import DamagedError, read_finished, write_finished
from kmifqe.store.checkpoints import CheckpointFolder, Interrupted
from kmifqe.store.identity import differences, identity
from kmifqe.store.manifest import CHECKPOINTS, FINISHED, RunFiles


class KeptFits:
    """What the fits to one problem have reached. A `RunDirectory` makes it, which holds the lock.

    `data` is the fingerprint of the problem, and `name` tells its files from those of other problems in the same run;
    a run with one problem has none.
    """

    def __init__(
        self,
        files: RunFiles,
        data: dict[str, Any],
        *,
        name: str = "",
        save_seconds: float,
        stop_asked: Callable[[], bool],
        warn: Callable[[str], None],
    ) -> None:
        self.path = files.folder
        self._files = files
        self._data = data
        self._name = name
        self._save_seconds = save_seconds
        self._stop_asked = stop_asked
        self._warn = warn
        self._folders: dict[str, CheckpointFolder] = {}

    @property
    def saves(self) -> int:
        """How many snapshots this process has written."""
        return sum(folder.saves for folder in self._folders.values())

    @property
    def saving_seconds(self) -> float:
        """How long this process has spent on writing snapshots."""
        return sum(folder.seconds for folder in self._folders.values())

    def checkpoints(self, plan: Plan) -> CheckpointFolder:
        """Return where the fit of `plan` keeps its snapshots."""
        if plan.estimator not in self._folders:
            name = f"{CHECKPOINTS}/{self._of(plan)}"
            self._folders[plan.estimator] = CheckpointFolder(
                self.path / name,
                save_seconds=self._save_seconds,
                stop_asked=self._stop_asked,
                warn=self._warn,
                data=self._data,
                make_ready=lambda file: self._files.path(f"{name}/{file}"),
                is_own=lambda file: self._files.holds(f"{name}/{file}"),
            )
        return self._folders[plan.estimator]

    def begin_fit(self, plan: Plan) -> None:
        """Make room for the snapshots of `plan`; raise Interrupted when a stop was asked for."""
        if self._stop_asked():
            raise Interrupted(plan.estimator, None, plan.steps)
        self._files.check_place()
        make_directory(self.path / CHECKPOINTS)

    def finished_name(self, plan: Plan) -> str:
        """Return the name of the file with the estimate of `plan`, inside the run directory."""
        return f"{FINISHED}/{self._of(plan)}.safetensors"

    def finished(self, plan: Plan) -> Estimate | None:
        """Return the estimate stored for `plan`; refuse one of another plan or other data."""
        name = self.finished_name(plan)
        path: Path = self.path / name
        if not self._files.holds(name):
            return None
        try:
            estimate, stored = read_finished(path, plan.config)
        except DamagedError as error:
            self._warn(f"{error}; {plan.estimator} is computed again")
            return None
        for warning in differences(stored, identity(plan, self._data), path):
            self._warn(warning)
        return estimate

    def finish(self, plan: Plan, estimate: Estimate) -> None:
        """Store the estimate of `plan`, without its final state, and drop the snapshots that led to it."""
        path = self._files.path(self.finished_name(plan))
        write_finished(path, estimate, identity(plan, self._data))
        self.clear(plan)

    def clear(self, plan: Plan) -> None:
        """Drop the snapshots of `plan`: what they led to is stored."""
        self.checkpoints(plan).clear()

    def _of(self, plan: Plan) -> str:
        return f"{self._name}.{plan.estimator}" if self._name else plan.estimator
