"""PyTorch state dicts read without PyTorch and without unpickling.

Two layouts exist: since 1.6 a zip with a stream `data.pkl` and one member per storage; before, four small
streams and a list of keys, then the storages one after the other.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kmifqe.errors import InputError, shown
from kmifqe.io.archives import MOST_DIMENSIONS, MOST_NUMBERS, Archive
from kmifqe.io.policies.pickles import Built, Name, Reference, read_inert

STORAGES = {
    "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "LongStorage": "i8", "IntStorage": "i4",
    "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "b1",
}  # fmt: skip
NAMES = {
    Name("collections", "OrderedDict"),
    Name("torch._utils", "_rebuild_tensor_v2"),
    *(Name("torch", storage) for storage in STORAGES),
}
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


@dataclass(frozen=True)
class _Tensor:
    key: str
    dtype: np.dtype
    storage_size: int  # elements
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements


class StateDict(Mapping[str, np.ndarray]):
    """Parameter name -> array; a parameter's numbers are read when it is asked for."""

    def __init__(self, tensors: dict[str, _Tensor], storage: Callable[[_Tensor], bytes], where: str) -> None:
        self._tensors, self._storage, self.where = tensors, storage, where

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        blob = self._storage(tensor)
        if len(blob) != tensor.storage_size * tensor.dtype.itemsize:
            raise InputError(
                f"{self.where}: {shown(name)} claims {tensor.storage_size:,} numbers of {tensor.dtype}; "
                f"found {len(blob):,} bytes"
            )
        flat = np.frombuffer(blob, tensor.dtype)
        strides = tuple(step * tensor.dtype.itemsize for step in tensor.strides)
        view = np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, strides, writeable=False)
        return view.astype(tensor.dtype.newbyteorder("="))


def read_state_dict(blob: bytes, where: str) -> StateDict:
    """Return the state dict held in the bytes of a `.pth` file."""
    return _read_zip(blob, where) if blob.startswith(b"PK") else _read_legacy(blob, where)


def _read_zip(blob: bytes, where: str) -> StateDict:
    archive = Archive(blob, where)
    streams = [member for member in archive.sizes if re.fullmatch(r"[^/]+/data\.pkl", member)]
    if len(streams) != 1:
        raise InputError(f"{where}: found {len(streams)} members named data.pkl; torch.save writes one")
    prefix = streams[0].removesuffix("data.pkl")
    order = "<"
    if f"{prefix}byteorder" in archive.sizes and archive.read(f"{prefix}byteorder").strip() == b"big":
        order = ">"
    found = read_inert(archive.read(streams[0]), NAMES.__contains__, where)
    tensors = _tensors(found, order, where)
    return StateDict(tensors, lambda tensor: archive.read(f"{prefix}data/{tensor.key}"), where)


def _read_legacy(blob: bytes, where: str) -> StateDict:
    stream = io.BytesIO(blob)
    nothing_allowed = frozenset[Name]().__contains__
    if not blob.startswith(b"\x80\x02") or read_inert(stream, nothing_allowed, where) != LEGACY_MAGIC:
        raise InputError(f"{where}: neither of the layouts that torch.save writes")
    read_inert(stream, nothing_allowed, where)  # protocol version
    system = read_inert(stream, nothing_allowed, where)
    order = "<" if not isinstance(system, dict) or system.get("little_endian", True) else ">"
    tensors = _tensors(read_inert(stream, NAMES.__contains__, where), order, where)
    keys = read_inert(stream, nothing_allowed, where)
    by_key = {tensor.key: tensor for tensor in tensors.values()}
    storages: dict[str, bytes] = {}
    for key in keys if isinstance(keys, list) else []:
        # A key may be anything the stream can build, so it is looked at before it is hashed or shown.
        if not isinstance(key, str) or key not in by_key:
            what = shown(key) if isinstance(key, str) else f"a {type(key).__name__}"
            raise InputError(f"{where}: storage {what} belongs to no parameter")
        count = int.from_bytes(stream.read(8), "little" if order == "<" else "big")
        if count != by_key[key].storage_size:
            raise InputError(
                f"{where}: storage {key} holds {count:,} numbers; expected {by_key[key].storage_size:,}"
            )
        storages[key] = stream.read(min(count * by_key[key].dtype.itemsize, len(blob)))
    return StateDict(tensors, lambda tensor: storages.get(tensor.key, b""), where)


def check_stored_tensors(found: object, held: Callable[[str], int], where: str) -> None:
    """Refuse a tensor anywhere inside `found` whose storage has not the bytes it claims.

    `held` returns a storage's bytes by its key; `where` is the file and its part, for messages.
    """
    waiting, seen = [found], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # one that holds itself, or one many others share
            continue
        seen.add(id(node))
        if isinstance(node, Built) and isinstance(node.what, Name) and node.what.module == "torch._utils":
            tensor = _tensor(node, "<", f"{where}: a tensor")
            if tensor.storage_size * tensor.dtype.itemsize != held(tensor.key):
                raise InputError(
                    f"{where}: storage {shown(tensor.key)} claims {tensor.storage_size:,} numbers of "
                    f"{tensor.dtype}; found {held(tensor.key):,} bytes"
                )
        elif isinstance(node, Built):
            waiting += [node.what, node.args, node.state, *node.items.values(), *node.elements]
        elif isinstance(node, Reference):
            raise InputError(f"{where}: refers to a storage outside a tensor")
        elif isinstance(node, list | tuple):
            waiting += node
        elif isinstance(node, dict):
            waiting += node.values()


def _tensors(found: object, order: str, where: str) -> dict[str, _Tensor]:
    if isinstance(found, Built) and found.what == Name("collections", "OrderedDict"):
        found = found.items
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InputError(f"{where}: expected named tensors, as torch.save(module.state_dict()) writes")
    return {str(name): _tensor(value, order, f"{where}: {shown(name)}") for name, value in found.items()}


def _tensor(node: object, order: str, where: str) -> _Tensor:
    match node:
        case Built(
            what=Name(module="torch._utils", name="_rebuild_tensor_v2"),
            args=(
                Reference(
                    id=("storage", Name(module="torch", name=kind), str() as key, str(), int() as size, *_)
                ),
                int() as offset,
                tuple() as shape,
                tuple() as strides,
                *_,
            ),
        ) if kind in STORAGES:
            pass
        case _:
            raise InputError(f"{where} is not a plain tensor")
    if not len(shape) == len(strides) <= MOST_DIMENSIONS or not all(
        type(n) is int and 0 <= n < MOST_NUMBERS for n in (*shape, *strides, offset, size)
    ):
        # Not shown: a tuple that holds one tuple twice, and so on, is short to store and endless to print.
        raise InputError(f"{where} has a shape or strides that are not sizes of equal, small number")
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides))
    # A stride of 0 repeats one number without end: no more numbers than the storage holds.
    if math.prod(shape) > size or (math.prod(shape) > 0 and last >= size):
        raise InputError(f"{where} claims shape {shape} in a storage of {size:,} numbers")
    return _Tensor(key, np.dtype(order + STORAGES[kind]), size, offset, shape, strides)
