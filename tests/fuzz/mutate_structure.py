"""Files that their format's own library wrote, whose structure is hostile."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import h5py
import numpy as np

from fuzz.mutate_containers import HOSTILE_TEXT


def change_hdf5(rng: random.Random, path: Path) -> None:
    """Replace one or two members of an HDF5 file by something hostile under the same name."""
    with h5py.File(path, "r+") as file:
        for _ in range(rng.choice((1, 1, 2))):
            names: list[str] = []
            file.visit(names.append)
            if not names:
                return
            name = rng.choice(names)
            old = file[name]
            is_array = isinstance(old, h5py.Dataset) and old.shape is not None and old.nbytes < 2**20
            array = old[()] if is_array else np.zeros(3)
            del file[name]
            rng.choice(HDF5_CHANGES)(rng, file, name, np.asarray(array))


def _hdf5_link(rng: random.Random, file: h5py.File, name: str, array: np.ndarray) -> None:
    kind = rng.randrange(5)
    if kind == 0:
        file[name] = h5py.ExternalLink("/etc/passwd", "/x")
    elif kind == 1:
        file[name] = h5py.SoftLink(rng.choice(("/", "/nowhere", f"/{name}", "/x/y")))
        file["x"] = h5py.ExternalLink("../outside.hdf5", "/")
    elif kind == 2:
        file[name] = file["/"]  # a group that holds itself
    elif kind == 3:
        layout = h5py.VirtualLayout(array.shape or (1,), array.dtype)
        layout[:] = h5py.VirtualSource("../outside.hdf5", "observations", array.shape or (1,))
        file.create_virtual_dataset(name, layout)
    else:
        file.create_dataset(
            name, array.shape or (1,), "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
        )


def _hdf5_shape(rng: random.Random, file: h5py.File, name: str, array: np.ndarray) -> None:
    shapes = (
        (2**40,),
        (60, 2**30),
        (0,),
        (60, 0),
        (2**31, 3),
        (2**62, 2**62),
        (1,) * 20,
        (60, 1, 1),
        (6_000_000,),
        (),
    )
    shape = rng.choice(shapes)
    chunks = tuple(min(n, rng.choice((1, 64, 2**20))) or 1 for n in shape) if shape else None
    if chunks is not None and np.prod([float(n) for n in chunks]) * 8 >= 2**32:
        chunks = tuple(1 for _ in chunks)
    maximum = tuple(max(n, 1) for n in shape) if shape else None
    file.create_dataset(name, shape, rng.choice(("f4", "f8", "i1", "?")), chunks=chunks, maxshape=maximum)


def _hdf5_type(rng: random.Random, file: h5py.File, name: str, array: np.ndarray) -> None:
    kinds: tuple[object, ...] = (
        *(
            np.dtype([("a", "f4")]),
            h5py.string_dtype(),
            np.dtype("S5"),
            h5py.vlen_dtype(np.float32),
            "c8",
            "f2",
        ),
        *(
            h5py.enum_dtype({"A": 0, "B": 1}),
            h5py.ref_dtype,
            np.dtype("V7"),
            ">f8",
            "u8",
            np.dtype(("f4", (3,))),
        ),
        *(h5py.opaque_dtype(np.dtype("M8[s]")), "S1000000", np.dtype("f16"), h5py.regionref_dtype),
    )
    kind = rng.choice(kinds)
    if rng.random() < 0.1:
        file[name] = np.dtype("f4")  # a committed type where an array was
    elif rng.random() < 0.1:
        file[name] = h5py.Empty("f4")
    elif rng.random() < 0.1:
        file.create_group(name)
    else:
        file.create_dataset(name, array.shape, kind)


def _hdf5_filter(rng: random.Random, file: h5py.File, name: str, array: np.ndarray) -> None:
    rows = array.reshape(len(array), -1) if array.ndim else np.zeros((1, 1), np.float32)
    dataset = file.create_dataset(name, rows.shape, rows.dtype, chunks=rows.shape, compression="gzip")
    blobs = (
        _bomb(),
        b"\x00",
        b"\x78\x9c",
        rng.randbytes(64),
        zlib.compress(rows.tobytes())[:-5],
    )
    dataset.id.write_direct_chunk((0, 0), rng.choice(blobs), rng.choice((0, 0, 1)))


@cache
def _bomb() -> bytes:
    return zlib.compress(bytes(48 * 2**20))


HDF5_CHANGES = (_hdf5_link, _hdf5_shape, _hdf5_type, _hdf5_filter)


def change_table(rng: random.Random, path: Path) -> None:
    """Replace one column of a Parquet or Arrow table by one of another type, shape or name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    is_parquet = path.suffix == ".parquet"
    table = pq.read_table(path) if is_parquet else _read_ipc(path)
    at, rows = rng.randrange(table.num_columns), table.num_rows
    name = table.column_names[at]
    columns = (
        *(
            pa.nulls(rows),
            pa.array([None] * rows, pa.float32()),
            pa.array([[]] * rows, pa.list_(pa.float32())),
        ),
        *(
            pa.array([[1.0, None]] * rows),
            pa.array([[[1.0]]] * rows),
            pa.array([{"a": 1}] * rows),
            pa.array(["x"] * rows),
        ),
        *(
            pa.array([b"x"] * rows, pa.binary()),
            pa.array([True] * rows),
            pa.array([1] * rows, pa.timestamp("ns")),
        ),
        *(
            pa.array([1] * rows, pa.uint8()),
            pa.array([2**63] * rows, pa.uint64()),
            pa.array([1.0] * rows, pa.float16()),
        ),
        *(
            pa.array([1.0] * rows).dictionary_encode(),
            pa.array([[0.0] * 5000] * rows),
            pa.array([None] * rows),
        ),
        *(
            pa.array([None] * rows, pa.list_(pa.float32(), 3)),
            pa.array([[1.0] * (i % 3) for i in range(rows)]),
        ),
        *(pa.array([[1.0]] + [None] * (rows - 1)), pa.array([None] + [[1.0, 2.0, 3.0]] * (rows - 1))),
        pa.array([[None] * 3] * rows, pa.list_(pa.float32(), 3)),
        pa.array([[]] * rows, pa.list_(pa.float32(), 0)),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * rows, pa.binary(16))),
    )
    new_name = rng.choice((name, name, name, name, *HOSTILE_TEXT[:12], "observations_99999999999999"))
    new_name = new_name.replace("\ud7ff", "")
    table = table.set_column(at, new_name, rng.choice(columns))
    if rng.random() < 0.2:
        table = table.append_column(rng.choice(table.column_names), table.column(0))
    if rng.random() < 0.1:
        table = table.slice(0, rng.choice((0, 1)))
    if is_parquet:
        pq.write_table(table, path)
        return
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rng.choice((1, 25, 100)))


def _read_ipc(path: Path) -> object:
    import pyarrow as pa

    data = path.read_bytes()
    return (pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream)(data).read_all()


STRUCTURES: dict[str, Callable[[random.Random, Path], None]] = {
    ".hdf5": change_hdf5,
    ".parquet": change_table,
    ".arrow": change_table,
}
