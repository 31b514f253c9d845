"""Pickle streams read as inert data: no name in them is looked up, no function in them is called."""

from __future__ import annotations

import io
import math
import pickletools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partialmethod

import numpy as np

from kmifqe.errors import InputError, shown
from kmifqe.io.archives import MOST_DIMENSIONS, MOST_NUMBERS

STREAM_LIMIT = 16 * 2**20  # bytes; a state dict's stream takes a few kilobytes, its numbers lie outside it
STEP_LIMIT = 500_000  # opcodes; a parameter takes about thirty, and one may build an object of 300 bytes


@dataclass(frozen=True)
class Name:
    """A dotted name found in the stream, never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return shown(f"{self.module}.{self.name}")


@dataclass(eq=False)
class Built:
    """A call or an object found in the stream, never made."""

    what: object
    args: object
    state: object = None
    items: dict[object, object] = field(default_factory=dict)
    elements: list[object] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """A persistent id: data that lies outside the stream."""

    id: object


CONSTANTS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
LITERALS: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,  # a set's elements would have to be hashed; a list holds them as well
}
MARK = object()


def read_inert(source: bytes | io.BytesIO, allowed: Callable[[Name], bool], where: str) -> object:
    """Return the object a pickle stream describes, as plain containers, `Name`s, `Built`s and `Reference`s.

    source: the stream; a stream object is left just after the pickle's end.
    allowed: says which names the stream may mention; a file with any other is hostile and refused.
    where: the file and its part, for messages.
    """
    if isinstance(source, bytes):
        if len(source) > STREAM_LIMIT:
            raise InputError(f"{where}: a stream of {len(source):,} bytes; expected at most {STREAM_LIMIT:,}")
        source = io.BytesIO(source)
    machine = _Machine(allowed, where)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(source)):
            if count > STEP_LIMIT:
                raise InputError(f"{where}: the stream takes more than {STEP_LIMIT:,} steps")
            machine.step(opcode.name, argument)
        return machine.stack.pop()
    except InputError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error) as error:
        raise InputError(f"{where}: damaged ({type(error).__name__}: {shown(error)})") from error


class _Machine:
    def __init__(self, allowed: Callable[[Name], bool], where: str) -> None:
        self.allowed, self.where = allowed, where
        self.stack: list[object] = []
        self.memo: dict[object, object] = {}

    def step(self, opcode: str, argument: object) -> None:
        if opcode in CONSTANTS:
            self.stack.append(argument)
        elif opcode in LITERALS:
            self.stack.append(LITERALS[opcode]())
        else:
            action = getattr(self, f"do_{opcode.lower()}", None)
            if action is None:
                raise InputError(f"{self.where}: uses the pickle opcode {opcode}; plain arrays need none")
            action(argument)

    def above_mark(self) -> list[object]:
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:  # from the top: a copy of the stack each time would be quadratic
            at -= 1
            if at < 0:
                raise ValueError("no mark to go back to")
        above = self.stack[at + 1 :]
        del self.stack[at:]
        return above

    def name(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            # Not shown: a tuple that holds one tuple twice, and so on, is short to store and endless to print.
            raise InputError(f"{self.where}: damaged (a name is no text)")
        found = Name(module, name)
        if not self.allowed(found):
            raise InputError(f"{self.where}: refers to {found}, as no honest file does; it was not run")
        self.stack.append(found)

    def call(self, _: object = None) -> None:
        args = self.stack.pop()
        self.stack.append(Built(self.stack.pop(), args))

    def store(self, pairs: list[object]) -> None:
        target = self.stack[-1]
        held = target.items if isinstance(target, Built) else target
        if not isinstance(held, dict):
            raise InputError(f"{self.where}: damaged (items set on a {type(target).__name__})")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            # Hashing a deeply nested tuple would overflow the C stack, so keys are scalars.
            if not isinstance(key, str | bytes | int | float | None):
                raise InputError(
                    f"{self.where}: a dictionary key is a {type(key).__name__}; expected text or a number"
                )
            held[key] = value

    def extend(self, values: list[object]) -> None:
        target = self.stack[-1]
        held = target.elements if isinstance(target, Built) else target
        if not isinstance(held, list):
            raise InputError(f"{self.where}: damaged (elements added to a {type(target).__name__})")
        held.extend(values)

    def remember(self, key: object) -> None:
        self.memo[key] = self.stack[-1]

    def recall(self, key: object) -> None:
        self.stack.append(self.memo[key])

    def do_nothing(self, _: object) -> None:
        pass

    do_proto = do_frame = do_stop = do_nothing
    do_binput = do_long_binput = remember
    do_binget = do_long_binget = recall
    do_reduce = do_newobj = call

    def do_memoize(self, _: object) -> None:
        self.remember(len(self.memo))

    def do_mark(self, _: object) -> None:
        self.stack.append(MARK)

    def do_global(self, argument: object) -> None:
        self.name(*str(argument).split(" ", 1))

    def do_stack_global(self, _: object) -> None:
        name = self.stack.pop()
        self.name(self.stack.pop(), name)

    def do_newobj_ex(self, _: object) -> None:
        keywords = self.stack.pop()
        positional = self.stack.pop()
        self.stack.append(Built(self.stack.pop(), (positional, keywords)))

    def do_build(self, _: object) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if not isinstance(target, Built):
            raise InputError(f"{self.where}: damaged (state given to a {type(target).__name__})")
        target.state = state

    def do_binpersid(self, _: object) -> None:
        self.stack.append(Reference(self.stack.pop()))

    def do_tuple(self, _: object) -> None:
        self.stack.append(tuple(self.above_mark()))

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("the stack is empty")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    do_tuple1 = partialmethod(lambda self, _: self.tuple_of(1))
    do_tuple2 = partialmethod(lambda self, _: self.tuple_of(2))
    do_tuple3 = partialmethod(lambda self, _: self.tuple_of(3))

    def do_list(self, _: object) -> None:
        self.stack.append(self.above_mark())

    do_frozenset = do_list

    def do_append(self, _: object) -> None:
        self.extend([self.stack.pop()])

    def do_appends(self, _: object) -> None:
        values = self.above_mark()
        self.extend(values)

    do_additems = do_appends

    def do_setitem(self, _: object) -> None:
        value = self.stack.pop()
        self.store([self.stack.pop(), value])

    def do_setitems(self, _: object) -> None:
        pairs = self.above_mark()
        self.store(pairs)


ARRAY_MODULES = {f"numpy.{core}.{part}" for core in ("core", "_core") for part in ("multiarray", "numeric")}
PLAIN_TYPE = re.compile(r"f[248]|[iu][1248]|b1")


def to_array(node: object, where: str) -> np.ndarray:
    """Return the array or scalar that `node` describes, checked against the bytes it carries."""
    if isinstance(node, bool | int | float):
        return np.asarray(node)
    if isinstance(node, Built) and isinstance(node.what, Name) and node.what.module in ARRAY_MODULES:
        match node:
            case Built(what=Name(name="_reconstruct"), state=(_, shape, kind, fortran, data)):
                return _from_bytes(data, kind, shape, bool(fortran), where)
            case Built(what=Name(name="_frombuffer"), args=(data, kind, shape, order)):
                return _from_bytes(data, kind, shape, order == "F", where)
            case Built(what=Name(name="scalar"), args=(kind, data)):
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
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < MOST_NUMBERS for n in shape):
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
