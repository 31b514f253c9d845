"""A run directory: locked, always readable, and all that a run needs to go on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate, Estimator
from kmifqe.estimators.fit import Plan, Progress, Stop, fit, make_plan
from kmifqe.io.files import disk_sentence, make_directory, remove_leftovers, write_durably
from kmifqe.mdp.problem import Problem
from kmifqe.store.archive import DamagedError, read_finished, write_finished
from kmifqe.store.checkpoints import SAVE_SECONDS, CheckpointFolder, Interrupted
from kmifqe.store.identity import array_print, differences, fingerprint, identity

try:
    import fcntl
except ImportError:  # Windows: no lock, documented in docs/runs.md
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path` as this process's lock, or refuse with the process that holds it.

    The system releases the lock when its process ends, however it ends; the file may stay.
    """
    with disk_sentence(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _taken(descriptor, path):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise InputError(
                f"{path.parent}: another process (id {holder}) is writing to this run directory; "
                "wait for it, stop it, or choose another --out"
            )
        with disk_sentence(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int, path: Path) -> bool:
    """Return whether the lock is ours now; a file that its holder has removed meanwhile does not count."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


MANIFEST = "run.json"
MANIFEST_SCHEMA = "kmifqe.run/1"


@dataclass(frozen=True)
class Manifest:
    """What was asked for, when and from where."""

    created: str
    directory: str  # relative paths in the options start here
    options: dict[str, Any]

    @classmethod
    def now(cls, options: dict[str, Any]) -> Manifest:
        """Return the manifest of a run that begins now, here."""
        return cls(datetime.now(UTC).isoformat(timespec="seconds"), os.getcwd(), options)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write run.json, whole or not at all."""
    record = {"schema": MANIFEST_SCHEMA, "kmifqe": version("kmifqe"), **vars(manifest)}
    write_durably(folder / MANIFEST, (json.dumps(record, indent=1) + "\n").encode())


def read_manifest(folder: Path) -> Manifest | None:
    """Return what run.json says, None if there is none; refuse one of another schema or no JSON."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}); --force to start again") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != MANIFEST_SCHEMA:
        raise InputError(
            f"{path}: its schema is {schema!r}, this version ({version('kmifqe')}) reads {MANIFEST_SCHEMA!r}; go "
            "on with the version that wrote it, choose another --out, or --force to start again"
        )
    try:
        return Manifest(str(record["created"]), str(record["directory"]), dict(record["options"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: the field {error} is missing or wrong; --force to start again") from error


DENSITY = "behavior.safetensors"
DENSITY_REPORT = "behavior_fit.json"
DENSITY_SCHEMA = "kmifqe.behavior_fit/1"


def fitted_on(**arrays: np.ndarray | None) -> dict[str, str]:
    """Return a digest of every array a density is fitted to."""
    return {
        name: "absent" if array is None else array_print(np.asarray(array))["digest"]
        for name, array in arrays.items()
    }


def write_report(folder: Path, on: dict[str, str], report: dict[str, Any]) -> None:
    """Write the fit's report; it vouches for the density file, which must be there already."""
    record = {
        "schema": DENSITY_SCHEMA,
        "fitted_on": on,
        "digest": _digest(folder / DENSITY),
        "report": report,
    }
    write_durably(folder / DENSITY_REPORT, (json.dumps(record, indent=1) + "\n").encode())


def read_report(folder: Path, on: dict[str, str]) -> dict[str, Any] | None:
    """Return the report of the stored density; None if there is none, or its file is not what was written.

    Raises InputError where the density was fitted to something else than `on`.
    """
    path = folder / DENSITY_REPORT
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # as good as lost: it is fitted again
    if record.get("schema") != DENSITY_SCHEMA:
        raise InputError(
            f"{path}: its schema is {record.get('schema')!r}, this version reads {DENSITY_SCHEMA!r}; "
            "--force to start again"
        )
    changed = [name for name, digest in on.items() if record["fitted_on"].get(name) != digest]
    if changed:
        raise InputError(
            f"{folder / DENSITY}: was fitted to other data: {', '.join(changed)} differ; "
            "give the same, choose another --out, or --force to fit again"
        )
    return record["report"] if record["digest"] == _digest(folder / DENSITY) else None


def _digest(path: Path) -> str:
    if not path.is_file():
        return "absent"
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


RESULT = "result.json"
SHOWN = ("report.html", "landscape.npz")  # what rooms above this one make of a finished run
LOCK = ".lock"
CHECKPOINTS = "checkpoints"  # CHECKPOINTS/estimator/step-*.safetensors, while it runs
FINISHED = "finished"  # FINISHED/estimator.safetensors, when it is done


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
        self.saves = 0
        self.saving_seconds = 0.0

    def stored_density(self, on: dict[str, str]) -> tuple[Path, dict[str, Any]] | None:
        """Return the file and the report of a density fitted earlier `on` the same data, if there is one."""
        report = None if self._afresh else read_report(self.path, on)
        return None if report is None else (self.path / DENSITY, report)

    def store_density(self, save: Callable[[Path], None], on: dict[str, str], report: dict[str, Any]) -> Path:
        """Keep a fitted density, written by `save`, with its report; return its file."""
        self._forget_if_afresh()
        save(self.path / DENSITY)
        write_report(self.path, on, report)
        return self.path / DENSITY

    def begin(self, plans: list[Plan], problem: Problem) -> None:
        """Refuse what does not go with what is stored, forget it if asked to, and write run.json."""
        self._data = fingerprint(problem)
        self._forget_if_afresh()
        for plan in plans:
            if self.finished(plan) is None:
                self._checkpoints(plan).restore(plan, problem)
        earlier = read_manifest(self.path)
        record = Manifest.now(self._options)
        if earlier is not None:
            record = Manifest(earlier.created, record.directory, record.options)
        write_manifest(self.path, record)

    def fit(
        self,
        estimator: Estimator,
        problem: Problem,
        *,
        seeds: int | Sequence[int],
        steps: int | None,
        on_progress: Callable[[Progress], None] | None = None,
        stop: Stop | None = None,
        bootstrap: bool = False,
        examine: Callable[[Estimator, Estimate, Problem], Estimate] | None = None,
    ) -> Estimate:
        """Return the stored estimate, or compute it from where it was left, and store it.

        Raises Interrupted after saving when a stop was asked for. A stored estimate has no final state: what is to
        be known of that, `examine` reads off it, and adds to the estimate, before it is stored.
        """
        plan = make_plan(estimator, problem, seeds=seeds, steps=steps, stop=stop, bootstrap=bootstrap)
        stored = self.finished(plan)
        if stored is not None:
            return stored
        self.refuse_to_begin(plan)
        checkpoints = self._checkpoints(plan)
        make_directory(self.path / CHECKPOINTS)
        try:
            estimate = fit(
                estimator,
                problem,
                seeds=seeds,
                steps=steps,
                on_progress=on_progress,
                checkpoints=checkpoints,
                stop=stop,
                bootstrap=bootstrap,
            )
        finally:
            self.saves += checkpoints.saves
            self.saving_seconds += checkpoints.seconds
        if examine is not None:
            estimate = examine(estimator, estimate, problem)
        make_directory(self.path / FINISHED)
        write_finished(self._finished_path(plan), estimate, identity(plan, self._data))
        checkpoints.clear()
        return estimate

    def refuse_to_begin(self, plan: Plan) -> None:
        """Raise Interrupted when a stop was asked for: nothing new is begun then."""
        if self._stop_asked():
            raise Interrupted(plan.estimator, None, plan.steps)

    def finished(self, plan: Plan) -> Estimate | None:
        """Return the estimate stored for `plan`; refuse one of another plan or other data."""
        path = self._finished_path(plan)
        if not path.exists():
            return None
        try:
            estimate, stored = read_finished(path, plan.config)
        except DamagedError as error:
            self._tell(f"{error}; {plan.estimator} is computed again")
            return None
        for warning in differences(stored, identity(plan, self._data), path):
            self._tell(warning)
        return estimate

    def holds_work(self) -> bool:
        """Return whether there is anything that a resumed run would not have to do again."""
        return any(
            any(self.path.glob(pattern))
            for pattern in (f"{CHECKPOINTS}/*/step-*", f"{FINISHED}/*.safetensors", DENSITY_REPORT)
        )

    def _forget_if_afresh(self) -> None:
        """Drop the earlier run, once: not before this one has come so far that it has something to write."""
        if self._afresh:
            _forget(self.path)
            self._afresh = False

    def _finished_path(self, plan: Plan) -> Path:
        return self.path / FINISHED / f"{plan.estimator}.safetensors"

    def _checkpoints(self, plan: Plan) -> CheckpointFolder:
        return CheckpointFolder(
            self.path / CHECKPOINTS / plan.estimator,
            save_seconds=self._save_seconds,
            stop_asked=self._stop_asked,
            warn=self._tell,
            data=self._data,
        )

    def _tell(self, sentence: str) -> None:
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

    A directory that holds a run is refused unless `resume`, which goes on with it, or `force`, which starts
    again. `options` is what run.json keeps of the command. A run that leaves nothing behind leaves no directory.
    """
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


def _forget(path: Path) -> None:
    """Remove an earlier run's files, the result first: what is left of it at any moment is readable."""
    with disk_sentence(path):
        (path / RESULT).unlink(missing_ok=True)
        for folder in (FINISHED, CHECKPOINTS):
            if (path / folder).is_dir():
                shutil.rmtree(path / folder)
        for name in (*SHOWN, DENSITY_REPORT, DENSITY, MANIFEST):
            (path / name).unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove what a killed process was still writing; nobody else can be: the lock is ours."""
    for folder in (path, path / FINISHED, *path.glob(f"{CHECKPOINTS}/*")):
        remove_leftovers(folder)
    for name in (RESULT, "*.png"):
        for folder in path.glob(f".{name}.*"):  # the folders of data/atomic.py
            shutil.rmtree(folder, ignore_errors=True)


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
