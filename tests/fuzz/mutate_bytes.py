"""Damage done to bytes, knowing nothing of what they mean."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

INTERESTING = (
    0,
    1,
    2,
    7,
    8,
    16,
    64,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
)
INTERESTING += (2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
NUMBERS = (b"-1", b"0", b"99999999999", b"1e999", b"NaN", b"18446744073709551616", b"9" * 5000)


def flip_bit(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Flip one bit."""
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def set_byte(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Set one byte to anything."""
    data[rng.randrange(len(data))] = rng.randrange(256)


def set_length(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Write a number that a length or an offset might lie with."""
    size = rng.choice((1, 2, 4, 4, 8, 8))
    at = rng.randrange(max(1, len(data) - size))
    value = rng.choice((*INTERESTING, len(data), len(data) + 1, rng.randrange(2**16))) % 2 ** (8 * size)
    data[at : at + size] = value.to_bytes(size, rng.choice(("little", "little", "big")))


def truncate(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Cut the end off."""
    del data[rng.randrange(len(data)) :]


def delete(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Take a span out."""
    at, length = _span(rng, data)
    del data[at : at + length]


def repeat(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Say a span twice."""
    at, length = _span(rng, data)
    data[at:at] = data[at : at + length]


def move(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Write a span over another place of the same file."""
    at, length = _span(rng, data)
    to = rng.randrange(len(data))
    data[to : to + length] = data[at : at + length]


def insert(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Put random bytes in."""
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 64)))


def blank(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Write zeros or ones over a span."""
    at, length = _span(rng, data)
    data[at : at + length] = bytes([rng.choice((0, 255))]) * len(data[at : at + length])


def splice(rng: random.Random, data: bytearray, other: bytes) -> None:
    """Go on as another file does."""
    if other:
        at = rng.randrange(len(other))
        start = rng.randrange(len(data))
        length = rng.choice((8, 64, 512, len(other)))
        data[start : start + length] = other[at : at + length]


def change_number(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Replace a number written in digits."""
    found = list(re.finditer(rb"\d+", bytes(data[:65536])))
    if found:
        place = rng.choice(found)
        data[place.start() : place.end()] = rng.choice(NUMBERS)


OPERATIONS: tuple[Callable[[random.Random, bytearray, bytes], None], ...] = (
    *(flip_bit, flip_bit, set_byte, set_byte, set_length, set_length, set_length, truncate, delete, repeat),
    *(move, insert, blank, splice, change_number),
)


def mutate_bytes(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """Return `data` with one to six damages; `other` is a file to splice from."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if not damaged:
            break
        rng.choice(OPERATIONS)(rng, damaged, other)
    return bytes(damaged)


def _span(rng: random.Random, data: bytearray) -> tuple[int, int]:
    return rng.randrange(len(data)), rng.choice((1, 2, 4, 8, 16, 64, 256, 4096))
