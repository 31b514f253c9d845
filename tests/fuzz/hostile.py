"""Hostile files made by code: what fuzzing or reading found, each once, kept so that it stays refused."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from fuzz.hostile_archives import ARCHIVE_CASES
from fuzz.seeds import SEEDS, make_log
from kmifqe.io.logs.save import flat_fields

Case = tuple[str, Callable[[Path], Path]]  # the target that loads it, and what writes it into a folder
BOMB = 64 * 2**20  # bytes, unpacked


def zeros_packed(size: int = BOMB) -> bytes:
    """Return zeros as a zlib stream, a thousandth of their size."""
    packer, block = zlib.compressobj(1), bytes(2**20)
    return b"".join(packer.compress(block) for _ in range(size // len(block))) + packer.flush()


def hdf5_with(change: Callable[[h5py.File], None]) -> Callable[[Path], Path]:
    """Return a writer of a D4RL log in which `rewards` is replaced."""

    def write(folder: Path) -> Path:
        with h5py.File(folder / "outside.hdf5", "w") as other:
            other["rewards"] = np.full(60, 7.0, np.float32)
        path = folder / "log.hdf5"
        with h5py.File(path, "w") as file:
            for field, array in flat_fields(make_log()).items():
                if field != "rewards":
                    file[field] = array
            change(file)
        return path

    return write


def hdf5_chunk(make: Callable[[], bytes], mask: int = 0, **options: object) -> Callable[[h5py.File], None]:
    """Return a change that writes `rewards` as one chunk of these very bytes."""

    def change(file: h5py.File) -> None:
        dataset = file.create_dataset(
            "rewards", (60,), "f4", chunks=(2_000_000,), maxshape=(None,), **options
        )
        dataset.id.write_direct_chunk((0,), make(), mask)

    return change


def soft_to_external(file: h5py.File) -> None:
    """Reach another file by a soft link to an external one."""
    file["way"] = h5py.ExternalLink("outside.hdf5", "/")
    file["rewards"] = h5py.SoftLink("/way/rewards")


def external_storage(file: h5py.File) -> None:
    """Take an array's bytes from another file."""
    file.create_dataset("rewards", (60,), "f4", external=[("/etc/passwd", 0, 240)])


def packed_twice(file: h5py.File) -> None:
    """Pack a chunk twice: a thousand times a thousand."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((60,))
    properties.set_deflate(1)
    properties.set_deflate(1)
    space = h5py.h5s.create_simple((60,))
    dataset = h5py.h5d.create(file.id, b"rewards", h5py.h5t.NATIVE_FLOAT, space, properties)
    dataset.write_direct_chunk((0,), zlib.compress(zeros_packed()), 0)


def policy_with(change: Callable[[h5py.Group, Path], None]) -> Callable[[Path], Path]:
    """Return a writer of a D4RL policy whose first weight is replaced."""

    def write(folder: Path) -> Path:
        (path,) = SEEDS["hdf5_policy"](folder)
        with h5py.File(path, "r+") as file:
            del file["metadata/policy/fc0/weight"]
            change(file["metadata/policy/fc0"], folder)
        return path

    return write


def policy_link(group: h5py.Group, folder: Path) -> None:
    """Take a weight from another file."""
    with h5py.File(folder / "outside.hdf5", "w") as other:
        other["w"] = np.ones((8, 3), np.float32)
    group["weight"] = h5py.ExternalLink("outside.hdf5", "/w")


def policy_bomb(group: h5py.Group, _: Path) -> None:
    """Hide a bomb in a weight's only chunk."""
    dataset = group.create_dataset("weight", (8, 3), "f4", chunks=(8, 3), compression="gzip")
    dataset.id.write_direct_chunk((0, 0), zeros_packed(), 0)


def policy_crowd(folder: Path) -> Path:
    """Let two hundred layers be one and the same, allowed by itself."""
    (path,) = SEEDS["hdf5_policy"](folder)
    with h5py.File(path, "r+") as file:
        group = file["metadata/policy"]
        del group["fc0/weight"]
        group.create_dataset("fc0/weight", (1000, 1000), "f4", chunks=(1000, 1000))
        for number in range(1, 200):
            group[f"fc{number}"] = group["fc0"]
    return path


def minari_with(change: Callable[[Path], None], kind: int = 0) -> Callable[[Path], Path]:
    """Return a writer of a Minari dataset (storage number `kind`) that is changed afterwards."""

    def write(folder: Path) -> Path:
        path = SEEDS["minari"](folder)[kind]
        change(path / "data")
        return path

    return write


def minari_space(**changes: object) -> Callable[[Path], None]:
    """Return a change of the observation space in the metadata."""

    def change(data: Path) -> None:
        metadata = json.loads((data / "metadata.json").read_text())
        space = json.loads(metadata["observation_space"]) | changes
        metadata["observation_space"] = json.dumps(space)
        (data / "metadata.json").write_text(json.dumps(metadata))

    return change


def minari_outside(data: Path) -> None:
    """Make the metadata a link to somewhere else."""
    moved = data.parents[1] / "elsewhere.json"
    (data / "metadata.json").rename(moved)
    (data / "metadata.json").symlink_to(moved)


def minari_folder_outside(data: Path) -> None:
    """Make an episode's folder a link to somewhere else."""
    moved = data.parents[1] / "elsewhere"
    (data / "1").rename(moved)
    (data / "1").symlink_to(moved, target_is_directory=True)


def minari_pipe(data: Path) -> None:
    """Put a pipe where the data should be: opening it waits for ever."""
    (data / "main_data.hdf5").unlink()
    os.mkfifo(data / "main_data.hdf5")


def minari_maze(data: Path) -> None:
    """Let thirty groups hold each the next one twice: a billion ways to walk."""
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        group = file["episode_0"].create_group("infos_maze")
        for _ in range(30):
            inner = group.create_group("a")
            group["b"] = inner
            group = inner


def minari_crowd(data: Path) -> None:
    """Name one array, allowed by itself, a hundred times: all would be read at once."""
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        group = file["episode_0"].require_group("infos")
        group.create_dataset("a", (4_000_000,), "f4", chunks=(1000,))
        for number in range(100):
            group[f"b{number}"] = group["a"]


def minari_empty_table(data: Path) -> None:
    """Leave the first episode's table without a row."""
    import pyarrow as pa

    (path,) = (data / "0").glob("*.arrow")
    with pa.OSFile(str(path), "rb") as source:
        schema = pa.ipc.open_file(source).schema
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema):
        pass


def table_with_false_offsets(folder: Path) -> Path:
    """Write an Arrow list column whose offsets point far beyond its values."""
    import pyarrow as pa

    offsets = np.arange(61, dtype=np.int32) * 3
    lists = pa.ListArray.from_arrays(offsets, pa.array(make_log().states.reshape(-1)))
    path = _write_arrow(folder, lists, None)
    false = offsets + np.where(np.arange(61) < 30, 0, 2**28).astype(np.int32)
    data = path.read_bytes()
    assert data.count(offsets.tobytes()) == 1
    path.write_bytes(data.replace(offsets.tobytes(), false.tobytes()))
    return path


def packed_arrow(folder: Path) -> Path:
    """Write an Arrow column that unpacks ten thousand times its size."""
    import pyarrow as pa

    values = pa.array(np.zeros(BOMB // 4, np.float32))
    lists = pa.FixedSizeListArray.from_arrays(values, len(values) // 64)
    return _write_arrow(folder, lists, "zstd", rows=64)


def _write_arrow(folder: Path, observations: object, compression: str | None, rows: int = 60) -> Path:
    import pyarrow as pa

    path = folder / "log.arrow"
    columns = {"observations": observations, "actions_0": np.zeros(rows), "rewards": np.zeros(rows)}
    columns |= {"terminals": np.arange(rows) % 10 == 9, "timeouts": np.zeros(rows, bool)}
    batch = pa.RecordBatch.from_pydict(columns)
    with pa.OSFile(str(path), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
    return path


def long_lists(folder: Path) -> Path:
    """Write two Parquet rows of four million equal numbers each: a few kilobytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.array(np.zeros(BOMB // 8, np.float32))
    lists = pa.ListArray.from_arrays([0, len(values) // 2, len(values)], values)
    columns = {"observations": lists, "actions": [0.0, 1.0], "rewards": [0.0, 1.0]}
    columns |= {"terminals": [False, True], "timeouts": [False, False]}
    pq.write_table(pa.table(columns), folder / "log.parquet")
    return folder / "log.parquet"


def page_that_lies(folder: Path) -> Path:
    """Let one Parquet page claim a value more than the file says its column has."""
    import pyarrow.parquet as pq

    path = SEEDS["parquet"](folder)[0]
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    count = struct.pack("<B", 0x15) + _varint(2 * chunk.num_values)
    at = data.index(count, chunk.data_page_offset)
    data[at : at + len(count)] = struct.pack("<B", 0x15) + _varint(2 * chunk.num_values + 2)
    path.write_bytes(data)
    return path


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def odd_digits(folder: Path) -> Path:
    """Name a file with a digit that is no number: it was taken for one when sorting."""
    (folder / "logs").mkdir()
    for name in ("²1.npz", "2.npz"):
        (folder / "logs" / name).write_bytes(b"PK")
    return folder / "logs"


def behavior_with(**changes: object) -> Callable[[Path], Path]:
    """Return a writer of a fitted density with other arrays or metadata."""

    def write(folder: Path) -> Path:
        from safetensors import safe_open
        from safetensors.numpy import save_file

        (path,) = SEEDS["behavior"](folder)
        with safe_open(path, framework="numpy") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            settings = dict(file.metadata())
        for key, value in changes.items():
            (settings if isinstance(value, str) else arrays)[key] = value  # type: ignore[assignment]
        save_file(arrays, path, metadata=settings)
        return path

    return write


GZIP = {"compression": "gzip"}
CASES: dict[str, Case] = {
    "a soft link that leads to an external one": ("hdf5", hdf5_with(soft_to_external)),
    "an array in another file's bytes": ("hdf5", hdf5_with(external_storage)),
    "a gzip chunk that unpacks to 64 MiB": ("hdf5", hdf5_with(hdf5_chunk(zeros_packed, **GZIP))),
    "a gzip chunk that unpacks to 4 bytes": (
        "hdf5",
        hdf5_with(hdf5_chunk(lambda: zlib.compress(b"abcd"), **GZIP)),
    ),
    "a chunk of 4 bytes said to be unpacked": ("hdf5", hdf5_with(hdf5_chunk(lambda: b"abcd", 1, **GZIP))),
    "a chunk shorter than its checksum": ("hdf5", hdf5_with(hdf5_chunk(lambda: b"ab", fletcher32=True))),
    "an lzf chunk that ends early": ("hdf5", hdf5_with(hdf5_chunk(lambda: b"\x1fabc", compression="lzf"))),
    "a chunk packed twice": ("hdf5", hdf5_with(packed_twice)),
    "a policy weight in another file": ("hdf5_policy", policy_with(policy_link)),
    "a policy weight that is a bomb": ("hdf5_policy", policy_with(policy_bomb)),
    "a policy of one layer with 200 names": ("hdf5_policy", policy_crowd),
    "a Minari space of 10^12 columns": ("minari", minari_with(minari_space(shape=[10**12], low=0, high=1))),
    "a Minari space of gigabyte strings": ("minari", minari_with(minari_space(dtype="S1000000000"))),
    "a Minari space of 10^12 bits": ("minari", minari_with(minari_space(type="MultiBinary", n=10**12))),
    "a Minari file that is a link outside": ("minari", minari_with(minari_outside)),
    "a Minari folder that is a link outside": ("minari", minari_with(minari_folder_outside, kind=1)),
    "a Minari file that is a pipe": ("minari", minari_with(minari_pipe)),
    "Minari groups with 2^30 ways through": ("minari", minari_with(minari_maze)),
    "a Minari array with a hundred names": ("minari", minari_with(minari_crowd)),
    "a Minari episode without a row": ("minari", minari_with(minari_empty_table, kind=1)),
    "Arrow offsets beyond the values": ("arrow", table_with_false_offsets),
    "an Arrow buffer that unpacks to 64 MiB": ("arrow", packed_arrow),
    "Parquet lists of 4 million equal numbers": ("parquet", long_lists),
    "a Parquet page that holds more than its column": ("parquet", page_that_lies),
    "a directory with a file named by a superscript": ("npz", odd_digits),
    "a density over no actions": (
        "behavior",
        behavior_with(**dict.fromkeys(("low", "high", "centre", "scale"), np.zeros(0))),
    ),
    "a density whose low is a single number": ("behavior", behavior_with(low=np.array(0.0))),
    "a density of no width": ("behavior", behavior_with(scale=np.zeros(2))),
    "a density of a layer that is no number": ("behavior", behavior_with(layer="nan")),
    "a density of whole numbers": ("behavior", behavior_with(low=np.array([-1, -1]))),
    **ARCHIVE_CASES,
}
