import struct

import h5py
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.archives import check_hdf5_array


def write(path, data=("one", "three", ""), dtype=None, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=list(data), dtype=dtype or h5py.string_dtype(), **options)
    return path


def check(path):
    with h5py.File(path) as file:
        check_hdf5_array(file["x"], "log.hdf5")


@pytest.mark.parametrize("options", [{}, {"chunks": (2,)}])
def test_texts_and_lists_as_h5py_writes_them_are_accepted(tmp_path, options):
    check(write(tmp_path / "a.hdf5", **options))
    lists = [np.arange(3.0), np.arange(5.0)]
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        dataset = file.create_dataset("x", (2,), h5py.vlen_dtype(np.float64), **options)
        for row, values in enumerate(lists):
            dataset[row] = values
    check(tmp_path / "b.hdf5")


def test_texts_that_were_never_written_are_accepted(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("x", (3,), h5py.string_dtype())
    check(tmp_path / "a.hdf5")


def test_numbers_are_no_concern(tmp_path):
    check(write(tmp_path / "a.hdf5", (1.0, 2.0), "f4"))


def test_a_text_that_claims_gigabytes_is_refused(tmp_path):
    path = write(tmp_path / "a.hdf5")
    with h5py.File(path) as file:
        offset = file["x"].id.get_offset()
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = struct.pack("<I", 2**32 - 1)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"x declares 4,294,967,\d+ bytes"):
        check(path)


@pytest.mark.parametrize(("at", "value"), [(0, b"NOPE"), (8, struct.pack("<Q", 2**40)), (24, bytes(8))])
def test_a_damaged_heap_is_refused(tmp_path, at, value):
    path = write(tmp_path / "a.hdf5")
    data = bytearray(path.read_bytes())
    heap = data.index(b"GCOL")
    if at == 24:  # the free rest of the heap, said to be of no size: the library would walk on the spot
        at = data.index(struct.pack("<HHI", 0, 0, 0), heap + 24 + 16) - heap + 8
    data[heap + at : heap + at + len(value)] = value
    path.write_bytes(data)
    with pytest.raises(InputError, match="lies in a damaged heap"):
        check(path)


def test_packed_texts_and_references_are_refused(tmp_path):
    with pytest.raises(InputError, match="expected numbers or plain text"):
        check(write(tmp_path / "a.hdf5", compression="gzip", chunks=(3,)))
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file.create_dataset("x", data=[file.ref], dtype=h5py.ref_dtype)
    with pytest.raises(InputError, match="expected numbers or plain text"):
        check(tmp_path / "b.hdf5")


@pytest.mark.parametrize("length", [2, 4])
def test_a_text_of_another_length_than_its_object_is_refused(tmp_path, length):
    """The library copies the whole object, however little memory the text's own length has asked for."""
    path = write(tmp_path / "a.hdf5")
    with h5py.File(path) as file:
        offset = file["x"].id.get_offset()
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = struct.pack("<I", length)
    path.write_bytes(data)
    with pytest.raises(InputError, match="lies in a damaged heap"):
        check(path)
