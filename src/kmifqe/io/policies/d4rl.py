"""The policy that a D4RL dataset file carries about its own behaviour (expert and medium files do)."""

from __future__ import annotations

import math
import mmap
import struct
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.archives import FREE_BYTES, MAX_EXPANSION, MEMBER_LIMIT, shown
from kmifqe.io.policies.actor import Actor
from kmifqe.mdp.ask import Bounds

GROUP = "metadata/policy"
HDF5_ERRORS = (
    *(OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError),
    *(zlib.error, struct.error),
)
SHUFFLE, GZIP = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE
TEXT_LIMIT = 1000  # bytes, of the name of a function
MOST_CHUNKS = 10_000  # the library keeps near a kilobyte about each
PACKINGS: tuple[list[int], ...] = ([], [GZIP], [SHUFFLE, GZIP])  # what D4RL and h5py write
OUTPUTS = {"tanh_gaussian": "tanh", "gaussian": "clip"}


def load_d4rl_actor(path: str | Path, *, bounds: Bounds | None = None) -> Actor:
    """Return the mean action of the policy under `metadata/policy`; its box is [-1, 1] unless given."""
    try:
        with h5py.File(path, "r") as file:
            group = _member(file, GROUP, str(path))
            if not isinstance(group, h5py.Group):
                raise InputError(
                    f"{path}: has no {GROUP}; expert and medium files have, mixed and replay files do not"
                )
            return _read_group(group, bounds, str(path))
    except InputError:
        raise
    except HDF5_ERRORS as error:
        raise InputError(f"{path}: not a readable HDF5 file ({shown(error)})") from error


def _member(group: h5py.Group, path: str, where: str) -> object:
    """Return what lies at `path`, or None; links are refused, since they may lead into other files."""
    found: Any = group
    for key in path.split("/"):
        link = found.get(key, getlink=True) if isinstance(found, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise InputError(f"{where}: {GROUP} has a link at {key}; expected arrays in this file")
        found = found[key]
    return found


def _read_group(group: h5py.Group, bounds: Bounds | None, where: str) -> Actor:
    names: list[str] = []
    while _member(group, f"fc{len(names)}", where) is not None:
        names.append(f"fc{len(names)}")
    names.append("last_fc")
    found = [_array(group, f"{name}/{part}", where) for name in names for part in ("weight", "bias")]
    _check_total(found, where)  # of all together: one array may go by many names
    arrays = [np.asarray(_values(data, where), np.float32) for data in found]
    weights, biases = tuple(w.T for w in arrays[::2]), tuple(arrays[1::2])  # stored (outputs, inputs)
    distribution = _read_text(group, "output_distribution", where)
    if distribution not in OUTPUTS:
        raise InputError(
            f"{where}: output_distribution is {shown(distribution)!r}; expected one of {', '.join(OUTPUTS)}"
        )
    one = np.ones(biases[-1].shape, np.float32)
    low, high = bounds if bounds is not None else (-one, one)
    return Actor(
        weights=weights,
        biases=biases,
        hidden=_read_text(group, "nonlinearity", where),
        output=OUTPUTS[distribution],
        low=low,
        high=high,
        name=where,
    )


def _array(group: h5py.Group, field: str, where: str) -> h5py.Dataset:
    data = _member(group, field, where)
    if not isinstance(data, h5py.Dataset):
        raise InputError(f"{where}: {GROUP}/{field} is missing")
    if data.dtype.kind not in "iuf":
        raise InputError(f"{where}: {GROUP}/{field} has type {data.dtype}; expected numbers")
    return data


def _check_total(arrays: list[h5py.Dataset], where: str) -> None:
    total = sum(data.nbytes for data in arrays)
    allowed = min(MEMBER_LIMIT, FREE_BYTES + MAX_EXPANSION * Path(arrays[0].file.filename).stat().st_size)
    if total > allowed:
        raise InputError(f"{where}: {GROUP} claims {total:,} bytes; expected at most {allowed:,}")


def _read_text(group: h5py.Group, field: str, where: str) -> str:
    data = _member(group, field, where)
    if not isinstance(data, h5py.Dataset) or data.size != 1:
        raise InputError(f"{where}: {GROUP}/{field} is missing")
    if data.dtype.hasobject:
        return _heap_text(data, f"{where}: {GROUP}/{field}")
    _check_total([data], where)
    value = np.asarray(_values(data, where)).reshape(-1)[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _heap_text(data: h5py.Dataset, where: str) -> str:
    """Return a text of free length, read from its heap here: the HDF5 library trusts its claims."""
    offset = data.id.get_offset()
    if h5py.check_string_dtype(data.dtype) is None or data.chunks or offset is None:
        raise InputError(f"{where} is not a plain text")
    with open(data.file.filename, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        length, at, wanted = struct.unpack_from("<IQI", raw, offset)
        (size,) = struct.unpack_from("<Q", raw, at + 8)
        end, at = at + size, at + 16
        while at + 16 <= end and length <= TEXT_LIMIT:
            number, held = struct.unpack_from("<H6xQ", raw, at)
            if number == wanted and length <= held:
                return raw[at + 16 : at + 16 + length].decode("utf-8", "replace")
            at += 16 + (held + 7) // 8 * 8
    raise InputError(f"{where} claims a text of {length:,} bytes; expected it in the file, and a short one")


def _values(data: h5py.Dataset, where: str) -> object:
    """Return an array's values, once it is known to lie in this file and to be as large as it says."""
    field = shown(str(data.name).lstrip("/"))
    if data.is_virtual or data.external:
        raise InputError(f"{where}: {field} is stored in other files; expected an array in this one")
    if not _chunks_are_whole(data, Path(data.file.filename).stat().st_size):
        raise InputError(f"{where}: {field} has chunks that are not of the size they claim")
    return data[()]


def _chunks_are_whole(data: h5py.Dataset, stored: int) -> bool:
    """Return whether each chunk unpacks to a chunk's size, which the HDF5 library takes on trust."""
    if not data.chunks:
        return True
    expected = math.prod((data.id.get_type().get_size(), *data.chunks))
    properties = data.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    count = math.prod(-(-length // chunk) for length, chunk in zip(data.shape, data.chunks))
    if filters not in PACKINGS or expected > FREE_BYTES or count > MOST_CHUNKS:
        return False
    chunks: list[Any] = []
    data.id.chunk_iter(chunks.append)
    for chunk in chunks:
        if not 0 < chunk.size <= stored or chunk.filter_mask:
            return False
        raw = data.id.read_direct_chunk(chunk.chunk_offset)[1]
        size = len(zlib.decompressobj().decompress(raw, expected + 1)) if GZIP in filters else len(raw)
        if size != expected:
            return False
    return True
