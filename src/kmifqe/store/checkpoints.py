"""A folder with a fit's last two snapshots."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kmifqe.estimators.base import Estimate
from kmifqe.estimators.fit import Plan, Snapshot
from kmifqe.io.files import disk_sentence, make_directory, remove_leftovers
from kmifqe.mdp.problem import Problem
from kmifqe.store.archive import DamagedError, check_schema, read_archive, write_archive
from kmifqe.store.identity import differences, fingerprint, identity

SCHEMA = "kmifqe.checkpoint/2"
NAME = re.compile(r"step-\d{12,}\.safetensors")
KEPT = 2  # if the newest is damaged, the one before is there
SAVE_SECONDS = 30.0
COST_SHARE = 0.01  # a save waits until the last one's cost is below this share of the time since


class Interrupted(Exception):
    """A fit was asked to stop, and stopped after saving what it had reached."""

    def __init__(
        self,
        estimator: str,
        snapshot: Snapshot | None,
        steps: int,
        finished: Sequence[Estimate] = (),
    ) -> None:
        super().__init__(f"{estimator}: stopped as asked")
        self.estimator = estimator
        self.snapshot = snapshot  # None: there is nothing to go on from yet
        self.steps = steps
        self.finished = tuple(finished)  # of the estimators before it


class CheckpointFolder:
    """Keeps a fit's last two snapshots in a folder; give it to `fit` as `checkpoints`.

    A snapshot is written when `save_seconds` have passed since the last and its cost is below 1 % of that time;
    with `save_seconds=0`, at every record a restart can begin from. When `stop_asked` says so, the newest one is
    written and Interrupted raised. `warn` is told of damaged files and of anything that may change the last bits.

    `make_ready` returns where a snapshot of this file name is to be written, and `is_own` says whether one may be
    read and removed: a run directory knows its own. By default the folder is made, and files with the names of
    snapshots count as snapshots; everything else in the folder is left alone.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        save_seconds: float = SAVE_SECONDS,
        stop_asked: Callable[[], bool] = lambda: False,
        warn: Callable[[str], None] = lambda sentence: None,
        data: dict[str, Any] | None = None,
        make_ready: Callable[[str], Path] | None = None,
        is_own: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self._folder = Path(folder)
        self._save_seconds = save_seconds
        self._stop_asked = stop_asked
        self._warn = warn
        self._data = data  # the problem's fingerprint, where the caller has it already
        self._make_ready = make_ready or self._in_folder
        self._is_own = is_own
        self._identity: dict[str, Any] = {}
        self._steps = 0
        self._good: list[Path] = []
        self._restored: tuple[Plan, Snapshot | None] | None = None
        self._saved_at = time.perf_counter()
        self._cost = 0.0
        self.saves = 0
        self.seconds = 0.0  # spent on saving, all in all

    def restore(self, plan: Plan, problem: Problem) -> Snapshot | None:
        """Return the newest undamaged snapshot of this plan and problem; None where there is none.

        Raises InputError where the folder holds another plan's or other data's.
        """
        self._saved_at = time.perf_counter()
        if (
            self._restored is not None and self._restored[0] == plan
        ):  # asked before: whether the data are the same
            return self._restored[1]
        data = fingerprint(problem) if self._data is None else self._data
        self._identity, self._steps = identity(plan, data), plan.steps
        self._restored = plan, self._newest_snapshot()
        return self._restored[1]

    def _newest_snapshot(self) -> Snapshot | None:
        for path in self._newest_first():
            try:
                snapshot, stored = read_snapshot(path)
            except DamagedError as error:
                self._warn(f"{error}; going back to the one before")
                continue
            for warning in differences(stored, self._identity, path):
                self._warn(warning)
            self._good = [path]
            return snapshot
        return None

    def due(self, step: int) -> bool:
        """Return whether enough time has passed since the last save, or a stop was asked for."""
        if self._stop_asked() or self._save_seconds == 0:
            return True
        passed = time.perf_counter() - self._saved_at
        return passed >= max(self._save_seconds, self._cost / COST_SHARE)

    def save(self, snapshot: Snapshot) -> None:
        """Write the snapshot, remove all but the last two, and stop the fit if that was asked for."""
        started = time.perf_counter()
        self._restored = None
        path = self._make_ready(f"step-{snapshot.step:012d}.safetensors")
        _write_snapshot(path, snapshot, self._identity)
        self._good = [*(good for good in self._good if good != path), path][-KEPT:]
        with disk_sentence(self._folder):
            for other in self._newest_first():
                if other not in self._good:
                    other.unlink()
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - started
        self.saves += 1
        self.seconds += self._cost
        if self._stop_asked() and snapshot.step < self._steps:
            raise Interrupted(self._identity["plan"]["estimator"], snapshot, self._steps)

    def stop_if_asked(self, last: Snapshot | None) -> None:
        """Stop the fit if that was asked for, after keeping its `last` snapshot, None where there is none."""
        if self._stop_asked():
            if last is not None:
                self.save(last)
            raise Interrupted(self._identity["plan"]["estimator"], last, self._steps)

    def clear(self) -> None:
        """Remove the snapshots, and the folder if nothing else is in it: the fit is finished and kept elsewhere."""
        if self._folder.is_dir():
            with disk_sentence(self._folder):
                for path in self._newest_first():
                    path.unlink()
                remove_leftovers(self._folder)
                if not any(self._folder.iterdir()):
                    self._folder.rmdir()

    def _in_folder(self, name: str) -> Path:
        make_directory(self._folder)
        return self._folder / name

    def _newest_first(self) -> list[Path]:
        found = [path for path in self._folder.glob("step-*.safetensors") if NAME.fullmatch(path.name)]
        return sorted((path for path in found if path.is_file() and self._is_own(path.name)), reverse=True)


def read_snapshot(path: Path) -> tuple[Snapshot, dict[str, Any]]:
    """Return a snapshot and the identity of its fit; DamagedError, or InputError for another schema."""
    arrays, described = read_archive(path)
    check_schema(path, described, SCHEMA)

    def under(prefix: str) -> dict[str, Any]:
        return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}

    snapshot = Snapshot(
        step=described["step"],
        state=under("state"),
        recorded_steps=arrays["recorded_steps"],
        trajectory=arrays["trajectory"],
        infos=under("info."),
        seconds=described["seconds"],
    )
    return snapshot, described["identity"]


def _write_snapshot(path: Path, snapshot: Snapshot, of: dict[str, Any]) -> None:
    arrays = {f"state{name}": leaf for name, leaf in snapshot.state.items()}
    arrays |= {f"info.{name}": series for name, series in snapshot.infos.items()}
    arrays |= {"recorded_steps": snapshot.recorded_steps, "trajectory": snapshot.trajectory}
    described = {"schema": SCHEMA, "step": snapshot.step, "seconds": snapshot.seconds, "identity": of}
    write_archive(path, arrays, described)
