"""Damage that keeps a container whole: what is wrong lies inside a well-formed zip, JSON or safetensors file."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from typing import Any

from fuzz.mutate_bytes import mutate_bytes

HOSTILE_TEXT = (
    *(
        "",
        "..",
        "../../escape",
        "/etc/passwd",
        "C:\\escape",
        "x\x00y",
        "\x1b[2J\x1b]0;owned\x07",
        "[bold]x[/]",
    ),
    *(
        "[/]",
        "<script>alert(1)</script>",
        "\ud7ff\u202e",
        "²1",
        "w" * 5000,
        "9" * 5000,
        "os.system",
        "O",
        "|O",
        "<f8",
    ),
    *(
        "V0",
        "<U9",
        "(3,)f4",
        "m8[ns]",
        "complex64",
        "float16",
        "BF16",
        "F8_E4M3",
        "bool",
        "BOOL",
        "I64",
        "C64",
    ),
)
HOSTILE_NUMBERS = (0, -1, 1, 2, 3, 2**31, 2**63, 2**64, -(2**63), 10**400, 10**12, 0.5, 1e308, True, None)
HOSTILE_NUMBERS += (float("nan"), float("inf"), float("-inf"))
BOMB = 24 * 2**20


def hostile_value(rng: random.Random) -> Any:
    """Return a JSON value that no honest writer would put in its place."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(HOSTILE_NUMBERS)
    if kind < 5:
        return rng.choice(HOSTILE_TEXT)
    if kind == 5:
        nested: Any = []
        for _ in range(rng.choice((3, 70, 900))):
            nested = [nested]
        return nested
    return rng.choice(([], {}, [1, "a"], [[1], [1, 2]], {"a": {}}, [None], [0] * 70, [[]] * 3, [10**400]))


def change_node(rng: random.Random, value: Any) -> Any:
    """Return a JSON value with one node changed, dropped, renamed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        changed = dict(value)
        action = rng.randrange(6)
        if action == 0:
            del changed[key]
        elif action == 1:
            changed[rng.choice(HOSTILE_TEXT)] = changed.pop(key)
        elif action == 2:
            changed[rng.choice(list(value))] = value[key]
        else:
            changed[key] = change_node(rng, value[key])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return [*value[:at], change_node(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, str) and value[:1] in '{["' and rng.random() < 0.8:  # JSON inside JSON
        try:
            return json.dumps(change_node(rng, json.loads(value)))
        except ValueError:
            return hostile_value(rng)
    return hostile_value(rng)


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    """Return other JSON, or bytes that no longer are."""
    if rng.random() < 0.2:
        return mutate_bytes(rng, data)
    if rng.random() < 0.02:
        depth = rng.choice((1000, 100_000))
        return b"[" * depth + b"]" * depth
    try:
        return json.dumps(change_node(rng, json.loads(data))).encode("utf-8", "surrogatepass")
    except ValueError:
        return mutate_bytes(rng, data)


def mutate_safetensors(rng: random.Random, data: bytes) -> bytes:
    """Return safetensors whose header is well-formed and lies."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    (length,) = struct.unpack("<Q", data[:8])
    header = mutate_json(rng, data[8 : 8 + length])
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def mutate_npy(rng: random.Random, data: bytes) -> bytes:
    """Return an array whose header is well-formed and lies about type, shape, order or its own length."""
    if rng.random() < 0.3 or not data.startswith(b"\x93NUMPY"):
        return mutate_bytes(rng, data)
    types = [
        "'|O'",
        "'<f8'",
        "'>f4'",
        "'<U0'",
        "'V0'",
        "'<U9'",
        "'<f2'",
        "'<c8'",
        "'<M8[s]'",
        "'|b1'",
        "'<i8'",
        "'<g'",
    ]
    types += ["[('a', '<f4')]", "('<f4', (2,))", "'O,O'", "'x'", "'S0'", "5", "None", "'<f4', (3,)"]
    shapes = [
        "(2,)",
        "(-1,)",
        "()",
        "(9999999999999,)",
        "(0,)",
        "(2, 3)",
        "(1,) * 9",
        "(True,)",
        "(1.0,)",
        "2",
        "(0, 9)",
    ]
    shapes += [
        "(" + "1, " * 70 + ")",
        "(" + "9" * 4500 + ",)",
        "-" * 3000 + "1",
        "(" * 150 + ")" * 150,
        "(1L,)",
        "(0, -9)",
    ]
    text = f"{{'descr': {rng.choice(types)}, 'fortran_order': {rng.choice(['False', 'True', '1', 'None'])}, "
    text += f"'shape': {rng.choice(shapes)}, }}"
    if rng.random() < 0.2:
        text = mutate_bytes(rng, text.encode()).decode("latin1")
    raw = (text + "\n").encode("latin1", "replace")
    version = rng.choice(((1, 0), (1, 0), (2, 0), (3, 0), (9, 9)))
    declared = len(raw) if rng.random() < 0.9 else rng.choice((0, 1, 65535, 2**32 - 1, 2**27))
    prefix = struct.pack("<H", declared % 2**16) if version == (1, 0) else struct.pack("<I", declared)
    start = 10 + struct.unpack("<H", data[8:10])[0]
    return b"\x93NUMPY" + bytes(version) + prefix + raw + data[start:]


def mutate_zip(rng: random.Random, data: bytes, depth: int = 0) -> bytes:
    """Return an archive with a member changed, renamed, doubled, dropped, packed otherwise or turned into a bomb."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    try:
        members = _members(data)
    except (zipfile.BadZipFile, OSError, ValueError):
        return mutate_bytes(rng, data)
    if not members:
        return mutate_bytes(rng, data)
    at = rng.randrange(len(members))
    name, blob = members[at]
    action = rng.randrange(16)
    if action == 0:
        members[at] = (rng.choice(HOSTILE_TEXT), blob)
    elif action == 1:
        members.append((name, mutate_member(rng, blob, depth)))
    elif action == 2:
        del members[at]
    elif action == 3:
        members[at] = (name, members[rng.randrange(len(members))][1])
    elif action == 4 and rng.random() < 0.1:
        members[at] = (name, (blob + bytes(BOMB)) if rng.random() < 0.5 else bytes(BOMB))
    else:
        members[at] = (name, mutate_member(rng, blob, depth))
    methods = (zipfile.ZIP_STORED,) * 6 + (zipfile.ZIP_DEFLATED,) * 3 + (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    return _packed(members, rng.choice(methods))


def mutate_member(rng: random.Random, blob: bytes, depth: int) -> bytes:
    """Return a member changed as its own kind of content."""
    if blob.startswith(b"PK") and depth < 3:
        return mutate_zip(rng, blob, depth + 1)
    if blob.startswith(b"\x93NUMPY"):
        return mutate_npy(rng, blob)
    if blob[:1] in (b"{", b"["):
        return mutate_json(rng, blob)
    return mutate_bytes(rng, blob)


def _members(data: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def _packed(members: list[tuple[str, bytes]], method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, blob in members:
            archive.writestr(zipfile.ZipInfo(name or "."), blob, method)
    return buffer.getvalue()
