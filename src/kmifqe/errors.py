"""The one exception that means: the input is wrong, not the program."""


class InputError(ValueError):
    """A user's file, field or setting is wrong.

    The message names the file, the field, what was expected and what was found. The command line prints it
    without a traceback and exits with code 2.
    """
