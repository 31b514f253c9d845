"""A run directory: locked, always readable, and all that a run needs to go on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from kmifqe.behavior.fit import DENSITY_FILE, REPORT_FILE
from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate
from kmifqe.estimators.fit import Plan
from kmifqe.io.files import disk_sentence, make_directory, remove_leftovers
from kmifqe.io.serialize import write_json
from kmifqe.mdp.problem import Problem
from kmifqe.store.archive import DamagedError, read_finished, write_finished
from kmifqe.store.checkpoints import SAVE_SECONDS, CheckpointFolder, Interrupted
from kmifqe.store.identity import differences, fingerprint, identity

RESULT = "result.json"
SHOWN = ("report.html", "landscape.npz")  # what rooms above this one make of a finished run
MANIFEST = "run.json"
SCHEMA = "kmifqe.run/1"
LOCK = ".lock"
CHECKPOINTS = "checkpoints"  # CHECKPOINTS/estimator/step-*.safetensors, while it runs
FINISHED = "finished"  # FINISHED/estimator.safetensors, when it is done


class Manifest(msgspec.Struct, frozen=True):
    """run.json: what a run directory is for, so that `kmifqe resume DIR` needs nothing else."""

    schema: str
    kmifqe: str  # the version that began the run
    created: str
    directory: str  # relative paths in the options start here
    options: dict[str, Any]

    @classmethod
    def of_run(cls, options: dict[str, Any], created: str | None = None) -> Manifest:
        """Return the manifest of a run with these options that begins in the present directory.

        `options` are those of the command. `created` is when the run was begun; by default it is now.
        """
        created = created or datetime.now(UTC).isoformat(timespec="seconds")
        return cls(SCHEMA, version("kmifqe"), created, os.getcwd(), options)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write run.json, whole or not at all."""
    write_json(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> Manifest | None:
    """Return what run.json says, None if there is none; refuse one of another schema or no JSON."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        record = msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}); --force to start again") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"{path}: its schema is {schema!r}, this version ({version('kmifqe')}) reads {SCHEMA!r}; go on with "
            "the version that wrote it, choose another --out, or --force to start again"
        )
    try:
        return msgspec.convert(record, Manifest)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}; --force to start again") from error


class RunDirectory:
    """What one evaluation has reached. Made by `open_run`, which holds its lock."""

    def __init__(
        self,
        path: Path,
        options: dict[str, Any],
        *,
        afresh: bool,
        save_seconds: float,
        stop_asked: Callable[[], bool],
        warn: Callable[[str], None],
    ) -> None:
        self.path = path
        self._options = options
        self._afresh = afresh
        self._save_seconds = save_seconds
        self._stop_asked = stop_asked
        self._warn = warn
        self._warned: set[str] = set()
        self._data: dict[str, Any] = {}
        self._folders: dict[str, CheckpointFolder] = {}

    @property
    def saves(self) -> int:
        """How many snapshots this process has written."""
        return sum(folder.saves for folder in self._folders.values())

    @property
    def saving_seconds(self) -> float:
        """How long this process has spent on writing snapshots."""
        return sum(folder.seconds for folder in self._folders.values())

    def begin(self, plans: Sequence[Plan], problem: Problem) -> dict[str, Any]:
        """Refuse what does not go with what is stored, drop an earlier run if asked to, and write run.json.

        `plans` are the fits of this run, `problem` is what they learn from. The problem's fingerprint is returned.
        """
        self._data = fingerprint(problem)
        self.drop_earlier_run()
        for plan in plans:
            if self.finished(plan) is None:
                self.checkpoints(plan).restore(plan, problem)
        earlier = read_manifest(self.path)
        created = None if earlier is None else earlier.created
        write_manifest(self.path, Manifest.of_run(self._options, created))
        return self._data

    def checkpoints(self, plan: Plan) -> CheckpointFolder:
        """Return where the fit of `plan` keeps its snapshots."""
        if plan.estimator not in self._folders:
            self._folders[plan.estimator] = CheckpointFolder(
                self.path / CHECKPOINTS / plan.estimator,
                save_seconds=self._save_seconds,
                stop_asked=self._stop_asked,
                warn=self._warn_once,
                data=self._data,
            )
        return self._folders[plan.estimator]

    def begin_fit(self, plan: Plan) -> None:
        """Make room for the snapshots of `plan`; raise Interrupted when a stop was asked for."""
        if self._stop_asked():
            raise Interrupted(plan.estimator, None, plan.steps)
        make_directory(self.path / CHECKPOINTS)

    def finished(self, plan: Plan) -> Estimate | None:
        """Return the estimate stored for `plan`; refuse one of another plan or other data."""
        path = self._finished_path(plan)
        if not path.exists():
            return None
        try:
            estimate, stored = read_finished(path, plan.config)
        except DamagedError as error:
            self._warn_once(f"{error}; {plan.estimator} is computed again")
            return None
        for warning in differences(stored, identity(plan, self._data), path):
            self._warn_once(warning)
        return estimate

    def finish(self, plan: Plan, estimate: Estimate) -> None:
        """Store the estimate of `plan`, without its final state, and drop the snapshots that led to it."""
        make_directory(self.path / FINISHED)
        write_finished(self._finished_path(plan), estimate, identity(plan, self._data))
        self.checkpoints(plan).clear()

    def holds_work(self) -> bool:
        """Return whether there is anything that a resumed run would not have to do again."""
        return any(
            any(self.path.glob(pattern))
            for pattern in (f"{CHECKPOINTS}/*/step-*", f"{FINISHED}/*.safetensors", REPORT_FILE)
        )

    def drop_earlier_run(self) -> None:
        """Remove the earlier run that `force` replaces, once: not before this run has something to write.

        The result goes first: what is left of the run at any moment is readable.
        """
        if not self._afresh:
            return
        self._afresh = False
        with disk_sentence(self.path):
            (self.path / RESULT).unlink(missing_ok=True)
            for folder in (FINISHED, CHECKPOINTS):
                if (self.path / folder).is_dir():
                    shutil.rmtree(self.path / folder)
            for name in (*SHOWN, REPORT_FILE, DENSITY_FILE, MANIFEST):
                (self.path / name).unlink(missing_ok=True)

    def _finished_path(self, plan: Plan) -> Path:
        return self.path / FINISHED / f"{plan.estimator}.safetensors"

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._warn(sentence)


@contextmanager
def open_run(
    path: Path,
    options: dict[str, Any],
    *,
    resume: bool = False,
    force: bool = False,
    save_seconds: float = SAVE_SECONDS,
    stop_asked: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda sentence: None,
) -> Iterator[RunDirectory]:
    """Give the run directory `path`, made if missing, for this process alone.

    `options` is what run.json keeps of the command. A directory that holds a run is refused unless `resume`,
    which goes on with it, or `force`, which starts again. Snapshots are at least `save_seconds` apart. When
    `stop_asked` returns True the fit is saved and Interrupted raised. `warn` is called with sentences for the
    user. A run that leaves nothing behind leaves no directory.
    """
    if force and resume:
        raise InputError("--force starts again and --resume goes on; give one of them")
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: exists and is not a directory; expected a directory for the results")
    if not path.exists() and not path.parent.is_dir():
        raise InputError(f"{path}: cannot be made; the directory {path.parent} does not exist")
    made = not path.exists()
    make_directory(path)
    run = RunDirectory(
        path, options, afresh=force, save_seconds=save_seconds, stop_asked=stop_asked, warn=warn
    )
    with locked(path / LOCK):
        try:
            if not force:
                _refuse_other_runs(run, resume)
            _remove_leftovers(path)
            yield run
        finally:
            _remove_empty(path, run.holds_work(), made)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path` as this process's lock, or refuse with the id of the process that holds it.

    The system releases the lock when its process ends, however it ends; the file may stay.
    """
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{path.parent}: another process (id {_holder(path)}) is writing to this run directory; "
            "wait for it, stop it, or choose another --out"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
    try:
        with disk_sentence(path):
            path.write_text(f"{os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or "unknown"
    except OSError:  # removed by its holder, or not ours to read
        return "unknown"


def _refuse_other_runs(run: RunDirectory, resume: bool) -> None:
    begun = read_manifest(run.path) is not None
    result = run.path / RESULT
    if result.exists() and not begun and resume:
        raise InputError(
            f"{result}: was written by a version that kept no run.json, or moved here; it cannot be gone on with: "
            "choose another --out, or --force to replace it"
        )
    if result.exists() and not resume:
        raise InputError(f"{result}: exists already; choose another --out, or --force to replace it")
    if run.holds_work() and not resume:
        raise InputError(
            f"{run.path}: holds an unfinished run; --resume to go on with it, --force to start again, or choose "
            "another --out"
        )


def _remove_leftovers(path: Path) -> None:
    """Remove what a killed process was still writing; nobody else can be: the lock is ours."""
    for folder in (path, path / FINISHED, *path.glob(f"{CHECKPOINTS}/*")):
        remove_leftovers(folder)


def _remove_empty(path: Path, holds_work: bool, made: bool) -> None:
    """Remove the lock, empty folders, and the whole directory if we made it and the run left nothing."""
    (path / LOCK).unlink(missing_ok=True)
    for folder in (*path.glob(f"{CHECKPOINTS}/*"), path / CHECKPOINTS, path / FINISHED):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    if not holds_work and not (path / RESULT).exists():
        (path / MANIFEST).unlink(missing_ok=True)
        if made and not any(path.iterdir()):
            path.rmdir()
