"""Files and folders that appear whole or not at all, also after a kill, a full disk or lost power."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kmifqe.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; move it there at the end, or remove it if anything fails."""
    with _temporary_folder(path) as folder, disk_sentence(path):
        partial = folder / path.name
        yield partial
        flush(partial)
        os.replace(partial, path)
        flush_directory(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`; move it there at the end, replacing what was there."""
    with _temporary_folder(path) as folder, disk_sentence(path):
        partial = folder / "new"
        partial.mkdir()
        yield partial
        for inside in (*partial.rglob("*"), partial):
            (flush_directory if inside.is_dir() else flush)(inside)
        if path.exists():
            os.replace(path, folder / "old")
        os.replace(partial, path)
        flush_directory(path.parent)


@contextmanager
def disk_sentence(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into an InputError that names the file and says why."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be written ({reason})") from error


def flush(path: Path) -> None:
    """Bring what was written to a file onto the disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def flush_directory(path: Path) -> None:
    """Bring a directory's entries onto the disk, so that a rename in it outlives lost power."""
    if os.name != "posix":  # elsewhere a directory cannot be opened, and needs no flush
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written; the directory {path.parent} does not exist")
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


PART = ".part"  # ends the name of a file that is still being written; a kill may leave one behind


def write_durably(path: Path, data: bytes) -> None:
    """Put `data` into `path`: write beside it, flush to the disk, rename, flush the directory.

    Whatever interrupts this, `path` holds all of the old content or all of the new.
    """
    partial = path.with_name(f".{path.name}{PART}")
    with disk_sentence(path):
        try:
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        flush_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make the directory `path` if it is missing, and flush its parent."""
    with disk_sentence(path):
        if not path.is_dir():
            path.mkdir()
            flush_directory(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove files that a killed process was still writing."""
    for partial in folder.glob(f".*{PART}"):
        partial.unlink(missing_ok=True)
