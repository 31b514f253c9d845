"""NumPy arrays out of an inert pickle stream."""

from __future__ import annotations

import math
import re

import numpy as np

from kmifqe.errors import InputError
from kmifqe.policies.archives import MOST_DIMENSIONS, MOST_NUMBERS, shown
from kmifqe.policies.inert import Built, Name

ARRAY_MODULES = (
    "numpy.core.multiarray",
    "numpy._core.multiarray",
    "numpy.core.numeric",
    "numpy._core.numeric",
)
PLAIN_TYPE = re.compile(r"f[248]|[iu][1248]|b1")


def to_array(node: object, where: str) -> np.ndarray:
    """Return the array or scalar that `node` describes, checked against the bytes it carries."""
    if isinstance(node, bool | int | float):
        return np.asarray(node)
    match node:
        case Built(what=Name(module=m, name="_reconstruct"), state=(_, shape, kind, fortran, data)) if (
            m in ARRAY_MODULES
        ):
            return _from_bytes(data, kind, shape, bool(fortran), where)
        case Built(what=Name(module=m, name="_frombuffer"), args=(data, kind, shape, order)) if (
            m in ARRAY_MODULES
        ):
            return _from_bytes(data, kind, shape, order == "F", where)
        case Built(what=Name(module=m, name="scalar"), args=(kind, data)) if m in ARRAY_MODULES:
            return _from_bytes(data, kind, (), False, where)
    raise InputError(f"{where}: expected a plain array of numbers")


def _from_bytes(data: object, kind: object, shape: object, fortran: bool, where: str) -> np.ndarray:
    dtype = _dtype(kind, where)
    match data:
        case Built(what=Name(module="_codecs", name="encode"), args=(str() as text, "latin1")):
            try:
                data = text.encode("latin1")  # how Python 2's protocols spell bytes
            except UnicodeEncodeError as error:
                raise InputError(f"{where}: the array's data is text that spells no bytes") from error
    if not isinstance(data, bytes | bytearray):
        raise InputError(f"{where}: the array's data is a {type(data).__name__}; expected bytes")
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and 0 <= n < MOST_NUMBERS for n in shape):
        raise InputError(f"{where}: the array's shape is not a tuple of sizes")
    if len(shape) > MOST_DIMENSIONS or math.prod(shape) * dtype.itemsize != len(data):
        raise InputError(f"{where}: claims shape {shown(shape[:8])} of {dtype}; found {len(data):,} bytes")
    return np.frombuffer(bytes(data), dtype).reshape(shape, order="F" if fortran else "C")


def _dtype(kind: object, where: str) -> np.dtype:
    match kind:
        case Built(what=Name(module="numpy", name="dtype"), args=(str() as code, *_), state=state):
            big = isinstance(state, tuple) and len(state) > 1 and state[1] == ">"
            if PLAIN_TYPE.fullmatch(code):
                return np.dtype((">" if big else "<") + code)
    raise InputError(f"{where}: the array's type is not a plain number type")
