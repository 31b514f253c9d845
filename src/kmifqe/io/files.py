"""Files and folders that appear whole or not at all, also after a kill, a full disk or lost power.

What is still being written lies in a temporary folder beside its final place. The folder's name begins with
`PARTIAL`, so that the leftovers of a killed process are recognised by their name alone.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from kmifqe.errors import InputError, shown

try:
    import fcntl
except ImportError:  # not on Windows: there, what a killed process leaves is removed by the next run alone
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".kmifqe-partial-"
ABANDONED_SECONDS = 60.0  # a temporary folder is held by its process far sooner after it was made
MOST_READ = 2**30  # bytes of a file that is read whole: far more than any record of ours has


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path for a writer that wants a file; move it to `path` at the end, or remove it.

    The content is flushed to the disk before the rename, and the directory after it. Whatever interrupts this,
    `path` holds all of the old content or all of the new. The temporary path ends in the same name as `path`.
    A directory, a pipe or a device is not replaced.
    """
    with disk_sentence(path):
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is a directory, a pipe or a device; expected the name of a file")
    with temporary_folder(path) as folder:
        partial = folder / path.name
        yield partial
        _flush_file(partial)
        os.replace(partial, path)
        _flush_directory(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give an empty temporary folder; move it to `path` at the end, in place of what was there."""
    with temporary_folder(path) as folder:
        partial = folder / "new"
        partial.mkdir()
        yield partial
        for inside in (*partial.rglob("*"), partial):
            (_flush_directory if inside.is_dir() else _flush_file)(inside)
        if path.exists():
            os.replace(path, folder / "old")
        os.replace(partial, path)
        _flush_directory(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """Put `data` into `path`, whole and durably, as `whole_file` does."""
    with whole_file(path) as partial:
        partial.write_bytes(data)


def open_file(path: Path | str, expected: str = "a file") -> IO[bytes]:
    """Return the file `path`, opened for reading; refuse what is none, without waiting for it.

    Every reader begins here: a pipe that nobody writes to would be waited on for ever, and a device may have no end.

    path: the file; a link to one is followed.
    expected: what was looked for, for the message: "a .safetensors actor, or ...".
    """
    name = shown(path)
    if not str(path):
        raise InputError(f"an empty name was given for a file; expected {expected}")
    # A pipe is opened without waiting for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError as error:
        raise InputError(f"{name}: no such file; expected {expected}") from error
    except (OSError, ValueError) as error:  # locked, a link to itself, a name with a zero in it
        raise InputError(f"{name}: cannot be opened ({getattr(error, 'strerror', 0) or error})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{name}: is a directory, a pipe or a device; expected {expected}")
    return open(descriptor, "rb")


def require_file(path: Path | str, expected: str = "a file") -> None:
    """Refuse `path` as `open_file` does, for a library that opens files itself."""
    open_file(path, expected).close()


def read_file(path: Path, most: int = MOST_READ) -> bytes:
    """Return the content of a file of at most `most` bytes, or raise InputError."""
    with open_file(path) as file:
        found = os.fstat(file.fileno()).st_size
        if found > most:
            raise InputError(f"{path}: has {found:,} bytes; expected {most:,} at most")
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    if content is None or len(content) > most:  # a file of the system's own, which it would be waited for
        raise InputError(f"{path}: is no file of known size; expected at most {most:,} bytes")
    return content


def make_directory(path: Path) -> None:
    """Make the directory `path` if it is missing, and flush its parent."""
    with disk_sentence(path):
        if not path.is_dir():
            path.mkdir()
            _flush_directory(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was still writing to `folder`; nobody else may be writing there."""
    for partial in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def disk_sentence(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into an InputError that names `path` and says why."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be written ({reason})") from error


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder beside `path`, on the same disk, for this process alone; remove it at the end."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written; the directory {path.parent} does not exist")
    with disk_sentence(path):
        _remove_abandoned(path.parent)
        folder = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=path.parent))
        folder.chmod(0o700)  # whatever the umask
        held = _hold(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if held is not None:
                os.close(held)


def _remove_abandoned(folder: Path) -> None:
    """Remove temporary folders in `folder` whose process was killed: the system holds them for nobody any more."""
    oldest_kept = time.time() - ABANDONED_SECONDS
    for partial in folder.glob(f"{PARTIAL}*"):
        with suppress(OSError):  # removed by its own process, or not ours
            if partial.lstat().st_mtime < oldest_kept and (held := _hold(partial)) is not None:
                shutil.rmtree(partial, ignore_errors=True)
                os.close(held)


def _hold(folder: Path) -> int | None:
    """Return a descriptor by which the system knows that `folder` is in use; None where it is already, or cannot be.

    The system forgets it when the descriptor is closed or the process ends, however it ends.
    """
    if fcntl is None or folder.is_symlink():
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _flush_file(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    if os.name != "posix":  # elsewhere a directory cannot be opened, and needs no flush
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
