import zlib

import h5py
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.archives import check_hdf5_array

NUMBERS = np.concatenate([np.zeros(300), np.random.default_rng(0).standard_normal(700)]).astype(np.float32)


def checked(path, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=NUMBERS, **options)
    with h5py.File(path) as file:
        check_hdf5_array(file["x"], "log.hdf5")


def with_chunk(path, blob, mask=0, **options):
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (1000,), "f4", chunks=(1000,), **options)
        dataset.id.write_direct_chunk((0,), blob, mask)
    with h5py.File(path) as file:
        check_hdf5_array(file["x"], "log.hdf5")


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fletcher32", [False, True])
@pytest.mark.parametrize("chunks", [(1000,), (130,), (4000,)])
def test_what_h5py_writes_is_accepted(tmp_path, compression, shuffle, fletcher32, chunks):
    maximum = (None,) if chunks[0] > 1000 else None
    checked(
        tmp_path / "a.hdf5",
        **{"compression": compression, "shuffle": shuffle, "fletcher32": fletcher32},
        **{"chunks": chunks, "maxshape": maximum},
    )


def test_contiguous_and_unwritten_arrays_are_accepted(tmp_path):
    checked(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        check_hdf5_array(file.create_dataset("x", (1000,), "f4", chunks=(10,)), "log.hdf5")


@pytest.mark.parametrize("size", [0, 3999, 4001, 100_000])
def test_a_chunk_that_unpacks_to_another_size_is_refused(tmp_path, size):
    with pytest.raises(InputError, match=r"log\.hdf5: x has a chunk at \(0,\) .* 4,000 bytes"):
        with_chunk(tmp_path / "a.hdf5", zlib.compress(bytes(size)), compression="gzip")
    with_chunk(tmp_path / "a.hdf5", zlib.compress(bytes(4000)), compression="gzip")


@pytest.mark.parametrize(
    ("blob", "mask", "options"),
    [
        (zlib.compress(bytes(4000))[:-1], 0, {"compression": "gzip"}),  # cut off
        (b"no stream", 0, {"compression": "gzip"}),
        (bytes(3999), 1, {"compression": "gzip"}),  # said to be unpacked
        (b"ab", 0, {"fletcher32": True}),  # shorter than its checksum
        (b"\x1f" + bytes(32), 0, {"compression": "lzf"}),  # 32 bytes
        (b"\x1f" + bytes(30), 0, {"compression": "lzf"}),  # cut off
        (b"\xe0", 0, {"compression": "lzf"}),
    ],
)
def test_a_damaged_chunk_is_refused(tmp_path, blob, mask, options):
    with pytest.raises(InputError, match="does not unpack to 4,000 bytes"):
        with_chunk(tmp_path / "a.hdf5", blob, mask, **options)


def test_other_filters_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"packed by the HDF5 filters \[6\]; expected gzip or lzf"):
        checked(tmp_path / "a.hdf5", scaleoffset=3)


def test_dust_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        dataset = file.create_dataset("x", (6_000_000,), "i1", chunks=(1,))
        with pytest.raises(InputError, match="cut into 6,000,000 chunks of 1 bytes"):
            check_hdf5_array(dataset, "log.hdf5")
