"""Guards against files that claim more than they hold, and library errors turned into sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kmifqe.errors import InputError

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


@contextmanager
def sentence_for(path: Path | str, expected: str, errors: Iterable[type[BaseException]]) -> Iterator[None]:
    """Turn a library's errors on a broken file into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except tuple(errors) as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read as {expected} ({detail[:200]})") from error
