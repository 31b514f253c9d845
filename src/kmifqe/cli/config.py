"""`--config FILE`: the options of a command from a TOML file, which the command line wins over."""

from __future__ import annotations

import inspect
import re
import tomllib
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from kmifqe.errors import InputError, listed, shown
from kmifqe.io.files import read_file

# Bytes: ten times what a list of options takes. A key of nothing but dots costs the parser the square of its length.
MOST_READ = 2**15
EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}


def _read(ctx: typer.Context, path: Path | None) -> None:
    """Make the values in the file the defaults of the command's other parameters."""
    if path is not None and not ctx.resilient_parsing:
        ctx.default_map = {**(ctx.default_map or {}), **read_config(path, ctx)}


# Read before the other parameters, whatever their order; commands do not get a value of their own for it.
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        help="Take options from this file: a line for each, by its long name without the dashes, such as "
        "force = true. What is given on the command line wins (docs/reference/config.md).",
        show_default=False,
        is_eager=True,
        expose_value=False,
        callback=_read,
    ),
]


def read_config(path: Path, ctx: typer.Context) -> dict[str, Any]:
    """Return the values in the TOML file `path` by the parameters of the command of `ctx`, checked one by one.

    A key is an option's long name without its dashes, or an argument's name in small letters.
    """
    expected = "expected lines such as gamma = 0.9 or policy = 'actor.npz'"
    content = read_file(path, MOST_READ)
    try:
        found = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, a number of thousands of digits
        raise InputError(f"{path}: cannot be read as TOML ({shown(error)}); {expected}") from error
    parameters = {_key(each): each for each in ctx.command.params if not each.is_eager}
    callback = ctx.command.callback
    annotations = get_type_hints(inspect.unwrap(callback)) if callback is not None else {}
    values = {}
    for key, value in found.items():
        if key not in parameters:
            raise InputError(
                f"{path}: the key {shown(key)} is unknown to `{ctx.command_path}`; expected "
                f"{listed(parameters, len(parameters))}"
            )
        parameter = parameters[key]
        value = _checked(value, annotations[str(parameter.name)], f"{path}: the key {key}")
        try:
            parameter.process_value(ctx, value)  # refuses what is out of range, or none of the choices
        except typer.BadParameter as error:
            said = " ".join(str(error.message).split()).rstrip(".")
            raise InputError(f"{path}: the key {key} is {shown(repr(value))}; {said}") from error
        values[str(parameter.name)] = value
    return values


def _key(parameter: Any) -> str:
    """Return the name of a parameter in a file."""
    if parameter.param_type_name == "argument":
        return re.sub(r"[^a-z]", "", (parameter.metavar or parameter.name).lower())
    return next(name for name in parameter.opts if name.startswith("--")).removeprefix("--")


def _checked(value: Any, annotation: Any, where: str) -> Any:
    """Return `value` as the parser of a command line takes it, or refuse a type that is not the annotation's."""
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (each for each in get_args(annotation) if each is not type(None))
    if get_origin(annotation) is list:
        (inner,) = get_args(annotation)
        entries = value if isinstance(value, list) else [value]
        return [_checked(entry, inner, where) for entry in entries]
    kind = str if issubclass(annotation, Path | Enum) else annotation
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (type(value) is int and value.bit_length() > 63):  # more is no integer of TOML
        raise InputError(f"{where} is {_shown_toml(value)}; expected {EXPECTED[kind]}")
    return float(value) if kind is float else value


def _shown_toml(value: Any) -> str:
    """Return a value of another type than expected as its author wrote it, nearly."""
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, Mapping) else shown(repr(value), 60)
