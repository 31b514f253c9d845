"""The project's one way to JSON and back: dataclasses, msgspec Structs, NumPy arrays and plain values.

JSON has no NaN and no infinity: both are written as null, and null in an array of numbers is read as NaN.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from kmifqe.errors import InputError, shown
from kmifqe.io.files import read_file, write_file

T = TypeVar("T")


def to_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> bytes:
    """Return `value` as UTF-8 JSON; half a character of UTF-16, as in a file name that is no UTF-8, becomes "?".

    value: a dataclass, a msgspec Struct, or nested dicts and sequences; arrays become nested lists.
    indent: spaces per level; None (the default) writes everything on one line.
    sort_keys: write the keys of every object in alphabetical order, so that equal values give equal bytes.
    """
    order: Literal["sorted"] | None = "sorted" if sort_keys else None
    try:
        data = msgspec.json.encode(value, enc_hook=_encode, order=order)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_writable(value), order=order)
    return data if indent is None else msgspec.json.format(data, indent=indent) + b"\n"


def from_json(data: bytes, expected: type[T], *, name: Path | str = "the JSON text") -> T:
    """Return JSON text as a value of the type `expected`; an InputError says what is wrong in which field.

    data: UTF-8 JSON.
    expected: a dataclass, a msgspec Struct, or a plain type such as `dict[str, Any]`.
    name: the file that the text comes from, for the message.
    """
    try:
        return msgspec.json.decode(data, type=expected, dec_hook=_decode)
    except msgspec.ValidationError as error:
        what, _, field = str(error).partition(" - at `$")
        where = f"{name}: the field {shown(field.strip('.`'))}" if field else f"{name}"
        said = what.replace("`", "").replace(", got ", ", found ")
        raise InputError(f"{where}: {shown(said[:1].lower() + said[1:])}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{name}: cannot be read as JSON ({shown(error)})") from error


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> None:
    """Write `value` to the file `path`, whole and durably; `indent` as for `to_json`, by default 1."""
    write_file(path, to_json(value, indent=indent))


def read_json(path: Path, expected: type[T]) -> T:
    """Return the content of the JSON file `path` as a value of the type `expected`, or raise InputError."""
    return from_json(read_file(path), expected, name=path)


def plain(value: Any) -> Any:
    """Return `value` as it reads back from JSON: dicts, lists, text, numbers, and None for NaN and infinity."""
    return msgspec.json.decode(to_json(value))


def digest(content: bytes | np.ndarray | None) -> str:
    """Return a short name that equal bytes, or arrays equal in type, shape and values, have in common."""
    if isinstance(content, np.ndarray):
        found = hashlib.blake2b(f"{content.dtype.str}{content.shape}".encode(), digest_size=16)
        found.update(np.ascontiguousarray(content).data if content.size else b"")
    else:
        found = hashlib.blake2b(b"absent" if content is None else content, digest_size=16)
    return found.hexdigest()


def json_schema(of: Any) -> dict[str, Any]:
    """Return the JSON schema of a Struct or dataclass; an array of numbers is a list of lists of them."""
    return msgspec.json.schema(of, schema_hook=_schema)


def _writable(value: Any) -> Any:
    """Return `value` as plain values whose text can be written as UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_writable(key): _writable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(each) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _writable(msgspec.to_builtins(value, enc_hook=_encode))


def _encode(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "__array__"):  # NumPy's arrays and JAX's
        return np.asarray(value).tolist()
    raise NotImplementedError(f"a {type(value).__name__} cannot be written as JSON")


def _decode(expected: Any, value: Any) -> Any:
    if getattr(expected, "array_type", expected) is not np.ndarray:  # jaxtyping's Float[np.ndarray, "n"]
        raise NotImplementedError(f"a {expected} cannot be read from JSON")
    array = np.array(value)
    if array.dtype.kind not in "biufO":
        raise ValueError(f"Expected numbers, got {array.dtype}")
    if array.dtype == object or not isinstance(array, expected):
        try:
            array = np.array(value, dtype=np.float64)  # a null becomes NaN, and 3 becomes 3.0
        except OverflowError as error:  # an integer of 400 digits
            raise ValueError(f"Expected numbers of at most 1e308, got more ({error})") from error
    return array


def _schema(of: Any) -> dict[str, Any]:
    if getattr(of, "array_type", of) is not np.ndarray:
        raise NotImplementedError(f"{of} has no JSON schema")
    return {"type": "array"}
