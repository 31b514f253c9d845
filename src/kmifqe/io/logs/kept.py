"""Logs that were read once, kept in the user's cache folder under the digest of what they were read from."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import msgspec

from kmifqe.errors import InputError
from kmifqe.io.cache import cache_folder, make_private
from kmifqe.io.files import open_file, temporary_folder
from kmifqe.io.logs.arrays import FIELDS, HEADER, SCHEMA
from kmifqe.io.serialize import read_json, to_json

SIZE_VARIABLE = "KMIFQE_CACHE_GIB"  # how much the kept logs may take in all; 0 keeps none
DEFAULT_GIB = 10.0
ABOUT = "about.json"
NAMES = {*(f"{field}.npy" for field in FIELDS), HEADER, ABOUT}  # of the files of an entry
_KEY = re.compile(r"[0-9a-f]{64}(-unchecked)?")


class About(msgspec.Struct, frozen=True):
    """What `kmifqe cache list` tells of an entry."""

    name: str  # the log as it was named when it was read
    rows: int
    checked: bool  # it holds no NaN and no infinity


class Entry(msgspec.Struct, frozen=True):
    """A kept log."""

    folder: Path
    about: About
    size: int  # bytes
    used: float  # when it was last used, seconds since 1970


def kept_logs() -> Path:
    """Return the folder of kept logs; it need not exist."""
    return cache_folder() / "logs"


def most_kept() -> int:
    """Return how many bytes the kept logs may take in all."""
    chosen = os.environ.get(SIZE_VARIABLE, "").strip()
    try:
        gib = float(chosen) if chosen else DEFAULT_GIB
        return int(gib * 2**30)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{SIZE_VARIABLE} is {chosen!r}; expected a number of GiB, 0 to keep no log"
        ) from error


def digest_of(files: Sequence[Path], root: Path) -> str:
    """Return a name that only files of the same content have in common.

    files: what is read, in order.
    root: their names count from here.
    """
    found = hashlib.sha256(
        f"{SCHEMA} {version('kmifqe')}".encode()
    )  # another version may read something else
    for path in files:
        with open_file(path) as file:
            found.update(
                b"%r %d\n" % (os.fsencode(os.path.relpath(path, root)), os.fstat(file.fileno()).st_size)
            )
            while block := file.read(2**20):
                found.update(block)
    return found.hexdigest()


@contextmanager
def new_entry(cache: Path | None) -> Iterator[Path]:
    """Give an empty folder for a log's arrays; what is not moved to its place by `keep` is gone at the end."""
    place = Path(tempfile.gettempdir()) if cache is None else cache
    with temporary_folder(place / "log") as folder:
        (folder / "arrays").mkdir()
        yield folder / "arrays"


def keep(arrays: Path, cache: Path, key: str, about: About) -> Path:
    """Move the `arrays` to their place in the `cache` and return it; the entries used longest ago make room.

    `key` is the name of the place, and `about` says what the arrays are and where they are from.
    What is larger than the cache may be stays where it is.
    """
    (arrays / ABOUT).write_bytes(to_json(about))
    most = most_kept() - _size(arrays)
    if most < 0:
        return arrays
    kept = sorted(entries(cache), key=lambda entry: entry.used)
    total = sum(entry.size for entry in kept)
    for entry in kept:
        if total <= most:
            break
        remove(entry)
        total -= entry.size
    place = cache / key
    remove_folder(place)  # a damaged one, or the same from another process
    try:
        os.rename(arrays, place)
    except OSError:  # another process was faster, or somebody else's files are there
        return arrays
    return place


def find(cache: Path, key: str) -> Path | None:
    """Return the folder of the entry `key`, noted as used now; None if there is none."""
    place = cache / key
    if place.is_symlink() or not (place / HEADER).is_file():
        return None
    with suppress(OSError):  # only the order in which entries go suffers
        os.utime(place / HEADER)
    return place


def entries(cache: Path) -> list[Entry]:
    """Return all entries; folders that are none are left out."""
    found = []
    for folder in sorted(cache.iterdir()) if cache.is_dir() else []:
        if _KEY.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            try:
                about, used = read_json(folder / ABOUT, About), (folder / HEADER).stat().st_mtime
            except (InputError, OSError):
                about, used = About("damaged", 0, False), 0.0
            found.append(Entry(folder, about, _size(folder), min(used, time.time())))
    return found


def remove(entry: Entry) -> None:
    """Remove an entry; a process that has its arrays mapped keeps them."""
    remove_folder(entry.folder)


def remove_folder(folder: Path) -> None:
    """Remove the files of an entry from `folder`, and the folder if nothing else is in it."""
    if folder.is_symlink():
        return
    with suppress(OSError):
        for name in NAMES:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def private_cache() -> Path:
    """Return the folder of kept logs, made if missing; InputError if it is not the user's alone."""
    cache = kept_logs()
    make_private(cache.parent)
    make_private(cache)
    return cache


def _size(folder: Path) -> int:
    with suppress(OSError):
        return sum(file.stat().st_size for file in folder.iterdir())
    return 0
