"""A run directory: locked, always readable, and all that a run needs to go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kmifqe.behavior.fit import REPORT_FILE
from kmifqe.errors import InputError, listed
from kmifqe.estimators.base import Estimate
from kmifqe.estimators.fit import Plan
from kmifqe.io.files import PARTIAL, disk_sentence, make_directory
from kmifqe.mdp.problem import Problem
from kmifqe.store.checkpoints import SAVE_SECONDS, CheckpointFolder
from kmifqe.store.fits import KeptFits
from kmifqe.store.identity import fingerprint
from kmifqe.store.manifest import (
    CHECKPOINTS,
    DENSITY,
    EVALUATE,
    FINISHED,
    MANIFEST,
    RANKED,
    RANKING,
    RESULT,
    SHOWN,
    RunFiles,
    read_manifest,
)

LOCK = ".kmifqe.lock"


class RunDirectory:
    """What one evaluation has reached. Made by `open_run`, which holds its lock."""

    def __init__(
        self,
        files: RunFiles,
        *,
        afresh: bool,
        save_seconds: float,
        stop_asked: Callable[[], bool],
        warn: Callable[[str], None],
    ) -> None:
        self.path = files.folder
        self._files = files
        self._afresh = afresh
        self._save_seconds = save_seconds
        self._stop_asked = stop_asked
        self._warn = warn
        self._warned: set[str] = set()
        self._fits = self._kept_fits({}, "")
        self._parts: dict[str, KeptFits] = {}

    @property
    def saves(self) -> int:
        """How many snapshots this process has written."""
        return sum(fits.saves for fits in self._parts.values())

    @property
    def saving_seconds(self) -> float:
        """How long this process has spent on writing snapshots."""
        return sum(fits.saving_seconds for fits in self._parts.values())

    def begin(self, plans: Sequence[Plan], problem: Problem, part: str = "") -> dict[str, Any]:
        """Refuse what does not go with what is stored, drop an earlier run if asked to, and write run.json.

        `plans` are the fits of this run, `problem` is what they learn from. Where a run fits the same problem several
        times, `part` tells these fits from the others. The problem's fingerprint is returned.
        """
        data = fingerprint(problem)
        self._fits = self.part(part, data)
        self.drop_earlier_run()
        for plan in plans:
            if self.finished(plan) is None:
                self.checkpoints(plan).restore(plan, problem)
        self._files.begin(RESULT, *SHOWN, *map(self._fits.finished_name, plans))
        return data

    @property
    def begun_with(self) -> dict[str, Any]:
        """What run.json keeps of the command that began the run; nothing for a new run."""
        return {} if self._afresh else self._files.options

    def begin_ranking(self, options: dict[str, Any]) -> None:
        """Drop an earlier run if asked to, and write run.json: the fits of many policies follow, by `part`.

        `options` are kept in it: what a run that is resumed must not decide anew.
        """
        self.drop_earlier_run()
        self._files.begin(*RANKED, options=options)

    def part(self, name: str, data: dict[str, Any]) -> KeptFits:
        """Return the fits to one of many problems, which `name` tells from the others; `data` is its fingerprint."""
        if name not in self._parts:
            self._parts[name] = self._kept_fits(data, name)
        return self._parts[name]

    def _kept_fits(self, data: dict[str, Any], name: str) -> KeptFits:
        return KeptFits(
            self._files,
            data,
            name=name,
            save_seconds=self._save_seconds,
            stop_asked=self._stop_asked,
            warn=self._warn_once,
        )

    def file(self, name: str) -> Path:
        """Return where the run's file `name` is to be written, listed in run.json as the run's own."""
        return self._files.path(name)

    def claim_density(self) -> None:
        """List the files of a fitted density as the run's own, for `fit_or_load`, before it writes them."""
        self._files.claim(*DENSITY)

    def checkpoints(self, plan: Plan) -> CheckpointFolder:
        """Return where the fit of `plan` keeps its snapshots."""
        return self._fits.checkpoints(plan)

    def begin_fit(self, plan: Plan) -> None:
        """Make room for the snapshots of `plan`; raise Interrupted when a stop was asked for."""
        self._fits.begin_fit(plan)

    def finished(self, plan: Plan) -> Estimate | None:
        """Return the estimate stored for `plan`; refuse one of another plan or other data."""
        return self._fits.finished(plan)

    def finish(self, plan: Plan, estimate: Estimate) -> None:
        """Store the estimate of `plan`, without its final state, and drop the snapshots that led to it."""
        self._fits.finish(plan, estimate)

    def holds_work(self) -> bool:
        """Return whether there is anything that a resumed run would not have to do again."""
        there = (*self._files.under(CHECKPOINTS), *self._files.under(FINISHED))
        return bool(there) or self._files.holds(REPORT_FILE)

    def holds_result(self) -> bool:
        """Return whether the run has ended with a result, or with a ranking."""
        return self._files.holds(RESULT) or self._files.holds(RANKING)

    def drop_earlier_run(self) -> None:
        """Remove the earlier run that `force` replaces, once: not before this run has something to write.

        Only files that its run.json lists are removed. The result goes first: what is left of the run at any
        moment is readable.
        """
        if self._afresh:
            self._afresh = False
            self._files.remove(self._files.names())

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._warn(sentence)


@contextmanager
def open_run(
    path: Path,
    options: dict[str, Any],
    *,
    task: str = EVALUATE,
    resume: bool = False,
    force: bool = False,
    save_seconds: float = SAVE_SECONDS,
    stop_asked: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda sentence: None,
) -> Iterator[RunDirectory]:
    """Give the run directory `path`, made if missing, for this process alone.

    `options` is what run.json keeps of the command, and `task` what the run is for: EVALUATE or RANK. A directory
    that holds a run is refused unless `resume`, which goes on with one for the same task, or `force`, which starts
    again. One that is not empty and holds no run is refused and left as it is. Snapshots are at least `save_seconds`
    apart. When `stop_asked` returns True the fit is saved and Interrupted raised. `warn` is called with sentences for
    the user. A run that leaves nothing behind leaves no directory.
    """
    if force and resume:
        raise InputError("--force starts again and --resume goes on; give one of them")
    missing = [parent for parent in path.parents if not parent.exists()]
    made = _make_own(path)
    begun_in = path.stat()
    try:
        with locked(path / LOCK):
            files = RunFiles(path, options, task)
            try:
                run = RunDirectory(
                    files, afresh=force, save_seconds=save_seconds, stop_asked=stop_asked, warn=warn
                )
                if not force and not resume:
                    _refuse_earlier_run(run)
                if resume:
                    files.refuse_other_task()
                files.refuse_strangers()
                files.sweep()
                yield run
            finally:
                files.close()
    finally:
        if made:
            with suppress(OSError):  # it is not empty, or gone already
                if os.path.samestat(begun_in, path.stat()):
                    for each in (path, *missing):
                        each.rmdir()


def _make_own(path: Path) -> bool:
    """Make the directory `path`, or refuse one that holds anything but a run of ours; return whether it was made."""
    with disk_sentence(path):
        if os.path.lexists(path) and not path.is_dir():
            raise InputError(f"{path}: exists and is not a directory; expected a directory for the results")
        if not path.exists():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise InputError(f"{path}: cannot be made; {path.parent} is no directory") from error
            make_directory(path)
            return True
        # A process that was killed early leaves its lock, and what it was writing, and no run.json.
        found = {each for each in os.listdir(path) if each != LOCK and not each.startswith(PARTIAL)}
    if found and MANIFEST not in found:
        raise InputError(
            f"{path}: holds {listed(found, 3)} and no run of kmifqe; nothing in it was changed: choose another "
            "--out, or an empty directory"
        )
    read_manifest(path)
    return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path` as this process's lock, or refuse with the id of the process that holds it.

    The system releases the lock when its process ends, however it ends; the file may stay. It is removed at the
    end of the block.
    """
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise InputError(f"{path}: is no lock of a run; nothing was changed: choose another --out")
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
        held = path.stat()
        with disk_sentence(path):
            path.write_text(f"{os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        with suppress(OSError):  # the directory may be gone, or another one in its place
            if os.path.samestat(held, path.lstat()):
                path.unlink()
        lock.release()


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or "unknown"
    except OSError:  # removed by its holder, or not ours to read
        return "unknown"


def _refuse_earlier_run(run: RunDirectory) -> None:
    if run.holds_result():
        raise InputError(
            f"{run.path}: holds a result already; choose another --out, or --force to replace the run"
        )
    if run.holds_work():
        raise InputError(
            f"{run.path}: holds an unfinished run; --resume to go on with it, --force to start again, or choose "
            "another --out"
        )
