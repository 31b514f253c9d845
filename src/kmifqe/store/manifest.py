"""run.json: what a run directory is for, and the list of the files in it that are ours to replace or to remove.

A name enters the list before its file is written. A file that the list does not name is not ours, whatever it is
called and whatever the user asks for: it is neither replaced nor removed.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kmifqe.behavior.fit import DENSITY_FILE, REPORT_FILE
from kmifqe.errors import InputError, shown
from kmifqe.io.files import disk_sentence, make_directory, remove_leftovers
from kmifqe.io.serialize import read_json, write_json

MANIFEST = "run.json"
SCHEMA = "kmifqe.run/2"
EVALUATE, RANK = "evaluate", "rank"  # what a run is for, as the command is called; none goes on as the other
RESULT = "result.json"
# What rooms above this one make of a finished run.
SHOWN = ("report.html", "landscape.npz", "trajectories.png", "bandwidth.png")
RANKING = "ranking.json"
RANKED = (RANKING, "ranking.html", "ranking.csv", "ranking.tex", "ranking.png")  # of many policies
DENSITY = (DENSITY_FILE, REPORT_FILE)
CHECKPOINTS = "checkpoints"  # CHECKPOINTS/estimator/step-*.safetensors, while it runs
FINISHED = "finished"  # FINISHED/estimator.safetensors, when it is done
_AT_THE_TOP = (RESULT, *SHOWN, *RANKED, *DENSITY)
_BELOW = re.compile(rf"{FINISHED}/[^/\0]+\.safetensors|{CHECKPOINTS}/([^/\0]+)/step-\d{{12,}}\.safetensors")


class Manifest(msgspec.Struct, frozen=True):
    """What run.json holds, so that `kmifqe resume DIR` needs nothing else and nobody's files are touched."""

    schema: str
    kmifqe: str  # the version that began the run
    created: str
    directory: str  # relative paths in the options start here
    options: dict[str, Any]
    files: tuple[str, ...] = ()  # the run's own files, relative to the run directory
    task: str = ""  # EVALUATE or RANK; "" where an earlier version began the run, which did not say

    @classmethod
    def of_run(cls, options: dict[str, Any], created: str | None = None, task: str = EVALUATE) -> Manifest:
        """Return the manifest of a run with these options that begins in the present directory.

        `options` are those of the command. `created` is when the run was begun; by default it is now. `task` is
        EVALUATE, the default, or RANK.
        """
        created = created or datetime.now(UTC).isoformat(timespec="seconds")
        return cls(SCHEMA, version("kmifqe"), created, os.getcwd(), options, task=task)


def kept_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments `given` to a command as JSON holds them; nothing where it cannot hold one of them.

    That is an object of Python, a number that is not finite, or a file name that is no UTF-8.
    """
    try:
        return {name: _as_json(value) for name, value in given.items()}
    except _NotKeptError:
        return {}


class _NotKeptError(Exception):
    """JSON cannot hold an argument."""


def _as_json(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and value.encode(errors="replace").decode() == value:
        return value
    if isinstance(value, Mapping):
        return {_as_json(name): _as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple | range):
        return [_as_json(each) for each in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise _NotKeptError


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write run.json, whole or not at all."""
    write_json(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> Manifest | None:
    """Return what run.json says, None if there is none; refuse one that no run of this version wrote."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return None
    try:
        record: object = None if path.is_symlink() else read_json(path, dict[str, Any])
    except InputError as error:
        raise InputError(f"{error}; {_LEFT_ALONE}") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"{path}: its schema is {shown(repr(schema))}, this version ({version('kmifqe')}) reads {SCHEMA!r}; go "
            f"on with the program and version that wrote it; {_LEFT_ALONE}"
        )
    try:
        manifest = read_json(path, Manifest)
    except InputError as error:
        raise InputError(f"{error}; {_LEFT_ALONE}") from error
    for name in manifest.files:
        if not _may_be_ours(name):
            raise InputError(
                f"{path}: the field files names {shown(name)}, which no run writes; {_LEFT_ALONE}"
            )
    return manifest


_LEFT_ALONE = "nothing in this directory was changed: choose another --out"


class RunFiles:
    """The files of one run directory: which are ours, and that they are written where the run began.

    `folder` is the run directory, which must exist, `options` are what a new run.json keeps of the command, and
    `task` is what this run is for: EVALUATE, the default, or RANK.
    """

    def __init__(self, folder: Path, options: dict[str, Any], task: str = EVALUATE) -> None:
        self.folder = folder
        self._options = options
        self._task = task
        self._manifest = read_manifest(folder)
        # Held open, so that the system cannot give a removed directory's number to another one.
        self._descriptor = os.open(folder, os.O_RDONLY) if os.name == "posix" else None
        self._place = _place(folder)
        self._is_written = self._manifest is not None
        self._names = set() if self._manifest is None else set(self._manifest.files)

    @property
    def created(self) -> str | None:
        """When the run was begun; None where it has not been."""
        return None if self._manifest is None else self._manifest.created

    @property
    def options(self) -> dict[str, Any]:
        """What run.json keeps of the command that began the run; nothing where there is none."""
        return {} if self._manifest is None else self._manifest.options

    def begin(self, *names: str, options: dict[str, Any] | None = None) -> None:
        """Write run.json with `options`, by default those of this process, and list `names` in it as `claim` does."""
        self._refuse_strangers(names)
        self._options = self._options if options is None else options
        self._names |= set(names)
        self._manifest = Manifest.of_run(self._options, self.created, self._task)
        self._write()

    def claim(self, *names: str) -> None:
        """List `names` as the run's own before they are written; refuse a name that somebody else's file has."""
        self._refuse_strangers(names)
        if not self._is_written or not self._names.issuperset(names):
            self._names |= set(names)
            self._write()

    def path(self, name: str) -> Path:
        """Return where the run's file `name` is to be written; its folder is made if it is missing."""
        self.claim(name)
        path = self.folder / name
        for folder in reversed(path.relative_to(self.folder).parents[:-1]):
            make_directory(self.folder / folder)
        return path

    def holds(self, name: str) -> bool:
        """Return whether the run's own file `name` is there, and no folder on the way is a link."""
        path = self.folder / name
        return name in self._names and self._detour(path) is None and path.is_file()

    def under(self, folder: str) -> list[str]:
        """Return the names of the run's own files that are there, in a folder such as "finished" or below it."""
        return sorted(name for name in self._names if name.startswith(f"{folder}/") and self.holds(name))

    def remove(self, names: Iterable[str]) -> None:
        """Remove those of `names` that are the run's own files."""
        own = [name for name in names if name in self._names]
        self._refuse_strangers(own)
        with disk_sentence(self.folder):
            for name in own:
                (self.folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of the run's own files that are there, the result first."""
        there = [name for name in self._names if self.holds(name)]
        return sorted(there, key=lambda name: (name not in (RESULT, RANKING), name))

    def refuse_other_task(self) -> None:
        """Refuse to go on with a run that is for something else: its results would stand beside this run's."""
        found = "" if self._manifest is None else self._manifest.task
        if found not in ("", self._task):
            raise InputError(
                f"{self.folder}: holds a run of `kmifqe {shown(found)}`, which `kmifqe {self._task}` cannot go on "
                "with; nothing in it was changed: choose another --out, or --force to replace the run"
            )

    def refuse_strangers(self) -> None:
        """Refuse a directory with links in place of the run's folders, or others' files with names of every run."""
        self._refuse_strangers({*_AT_THE_TOP, *self._names})

    def sweep(self) -> None:
        """Remove what a killed process was still writing; nobody else can be: the run directory is locked."""
        for folder in (self.folder, *self._folders()):
            remove_leftovers(folder)

    def close(self) -> None:
        """Remove the run's empty folders, and take names from the list whose files are not there.

        Where no file of the run is left, run.json goes too. Nothing is done where the directory is gone. What
        cannot be tidied stays: it must not hide how the run ended, and a name without a file does no harm.
        """
        is_there = _place(self.folder) == self._place
        if self._descriptor is not None:
            os.close(self._descriptor)
        if not is_there:
            return
        with suppress(OSError, InputError):
            for folder in sorted(self._folders(), reverse=True):  # the inner ones first
                if not any(folder.iterdir()):
                    folder.rmdir()
            # What a link hides is there again when the link is gone.
            left = {name for name in self._names if self.holds(name) or self._detour(self.folder / name)}
            if not left and self._is_written:
                (self.folder / MANIFEST).unlink(missing_ok=True)
            elif left != self._names:
                self._names = left
                self._write()

    def check_place(self) -> None:
        """Refuse to write where the directory is no longer the one that the run began in."""
        if _place(self.folder) != self._place:
            raise InputError(
                f"{self.folder}: was removed, moved or replaced while the run went on; nothing is written there: put "
                "it back and go on with --resume, or start again with another --out"
            )

    def _write(self) -> None:
        manifest = self._manifest or Manifest.of_run(self._options, task=self._task)
        self._manifest = msgspec.structs.replace(manifest, files=tuple(sorted(self._names)))
        write_manifest(self.folder, self._manifest)
        self._is_written = True

    def _refuse_strangers(self, names: Iterable[str]) -> None:
        """Refuse names that no run has, files that are not listed, and folders that lead elsewhere."""
        self.check_place()
        for name in names:
            path = self.folder / name
            if not _may_be_ours(name):
                raise InputError(f"{path}: cannot be a file of a run; expected a name without slashes")
            detour = self._detour(path)
            if detour is not None:
                raise InputError(f"{detour}: is a link or a file; expected a folder of the run: move it away")
            if os.path.lexists(path) and (name not in self._names or path.is_dir()):
                raise InputError(
                    f"{path}: was not written by the run in this directory and is left as it is; move it away, or "
                    "choose another --out"
                )

    def _detour(self, path: Path) -> Path | None:
        """Return what on the way to the run's file `path` is no folder of the run, but a link or a file."""
        for inner in path.relative_to(self.folder).parents[:-1]:
            folder = self.folder / inner
            if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
                return folder
        return None

    def _folders(self) -> list[Path]:
        """Return the folders below the run directory that hold files of the run, or did."""
        inner = {parent for name in self._names for parent in Path(name).parents[:-1]}
        folders = (self.folder / parent for parent in inner | {Path(CHECKPOINTS)})
        return [folder for folder in folders if folder.is_dir() and self._detour(folder / RESULT) is None]


def list_file(folder: Path, name: str) -> None:
    """Add `name` to the files of the run in `folder`, for a command that has written one of them.

    A folder that holds no run of this version is left as it is.
    """
    try:
        manifest = read_manifest(folder)
    except InputError:
        return
    if manifest is not None and name not in manifest.files:
        files = tuple(sorted({*manifest.files, name}))
        write_manifest(folder, msgspec.structs.replace(manifest, files=files))


def _may_be_ours(name: str) -> bool:
    found = _BELOW.fullmatch(name)
    return name in _AT_THE_TOP or (found is not None and found[1] not in (".", ".."))


def _place(folder: Path) -> tuple[int, int] | None:
    """Return what tells a directory from every other one at this moment; None where there is none."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None
