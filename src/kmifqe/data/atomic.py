"""Files and folders that appear whole or not at all."""

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
    with _temporary_folder(path) as folder:
        partial = folder / path.name
        yield partial
        os.replace(partial, path)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`; move it there at the end, replacing what was there."""
    with _temporary_folder(path) as folder:
        partial = folder / "new"
        partial.mkdir()
        yield partial
        if path.exists():
            os.replace(path, folder / "old")
        os.replace(partial, path)


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
