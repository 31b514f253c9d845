"""Guards against files that claim more than they hold, and library errors turned into sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kmifqe.errors import InputError, printable

# Real logs compress 1-3 times (flags alone a thousand); a whole file beyond a hundred is not a log.
MAX_EXPANSION = 100
FREE_BYTES = 16 * 2**20


def check_declared_bytes(declared: int, stored: int, name: str, what: str) -> None:
    """Refuse a file whose headers declare more than 16 MiB + 100 times the bytes it has on disk."""
    allowed = FREE_BYTES + MAX_EXPANSION * stored
    if declared > allowed:
        raise InputError(
            f"{name}: {what} declares {declared:,} bytes, but the file has {stored:,}; "
            f"expected at most {MAX_EXPANSION} times the file's size"
        )


def shown(text: object, most: int = 200) -> str:
    """Return a file's or a library's own words fit for one line of a message: printable, and not long."""
    return printable(" ".join(str(text)[: 10 * most].split())[:most])


@contextmanager
def sentence_for(path: Path | str, expected: str, errors: Iterable[type[BaseException]]) -> Iterator[None]:
    """Turn a library's errors on a broken file into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except tuple(errors) as error:
        detail = shown(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read as {expected} ({detail})") from error
