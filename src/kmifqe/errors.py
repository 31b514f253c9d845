"""The one exception that means: the input is wrong, not the program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class InputError(ValueError):
    """A user's file, field or setting is wrong.

    The message names the file, the field, what was expected and what was found. The command line prints it
    without a traceback and exits with code 2. Words of a file's own in it cannot command a terminal.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


# Python's table of letters ends with the Unicode of its release: later emoji are letters all the same.
# A joiner between two of them makes one sign, as between letters of Persian; beside ASCII it would only be invisible.
EMOJI = range(0x1F000, 0x1FFFE)
JOINER = re.compile("(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")


def printable(text: str) -> str:
    """Return `text` with a question mark for every letter that a terminal might obey instead of show."""
    joiners = {found.start() for found in JOINER.finditer(text)}
    return "".join(
        letter if letter.isprintable() or letter == "\n" or ord(letter) in EMOJI or place in joiners else "?"
        for place, letter in enumerate(text)
    )


def shown(text: object, most: int = 200) -> str:
    """Return a file's or a library's own text for one line of a message: printable, and `most` letters at most."""
    line = " ".join(str(text)[: 10 * most].split())
    return printable(line[:most]) + ("..." if len(line) > most else "")


def listed(names: Iterable[object], most: int = 12) -> str:
    """Return the first `most` of a file's own names in order, for a message; "nothing" where there are none."""
    return ", ".join(shown(name, 40) for name in sorted(map(str, names))[:most]) or "nothing"


def meant(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the one of the names `known` that is most like `name`, "" where none is."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


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
