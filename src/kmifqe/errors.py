"""The one exception that means: the input is wrong, not the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """A user's file, field or setting is wrong.

    The message names the file, the field, what was expected and what was found. The command line prints it
    without a traceback and exits with code 2. Words of a file's own in it cannot command a terminal.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Return `text` with a question mark for every letter that a terminal might obey instead of show."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


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
