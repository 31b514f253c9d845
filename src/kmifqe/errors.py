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


def shown(text: object, most: int = 200) -> str:
    """Return a file's or a library's own text for one line of a message: printable, and `most` letters at most."""
    line = " ".join(str(text)[: 10 * most].split())
    return printable(line[:most]) + ("..." if len(line) > most else "")


def listed(names: Iterable[object], most: int = 12) -> str:
    """Return the first `most` of a file's own names in order, for a message; "nothing" where there are none."""
    return ", ".join(shown(name, 40) for name in sorted(map(str, names))[:most]) or "nothing"


@contextmanager
def sentence_for(path: Path | str, expected: str, errors: Iterable[type[BaseException]]) -> Iterator[None]:
    """Turn a library's errors on a broken file into an InputError.

    path: the file, for the message.
    expected: what the file was read as, for the message: "an HDF5 file".
    errors: the exceptions that mean a broken file.
    """
    try:
        yield
    except InputError:
        raise
    except tuple(errors) as error:
        detail = shown(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read as {expected} ({detail})") from error
