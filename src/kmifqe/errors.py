"""The one exception that means: the input is wrong, not the program."""


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
