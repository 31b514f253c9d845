"""Arrays and JSON come back as they were, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from kmifqe.store.archive import DamagedError, read_archive, write_archive

ARRAYS = {
    "number": np.float32(1.5),
    "nan": np.array([np.nan, np.inf, -0.0], np.float32),
    "turned": np.arange(6.0).reshape(2, 3).T,
    "counts": np.arange(3, dtype=np.int64),
    "nothing": np.zeros((0, 2), np.float32),
    "flags": np.array([True, False]),
}


def test_arrays_and_words_come_back_bit_for_bit(tmp_path):
    described = {"name": "<π̃>", "nested": {"a": [1, None, "b"]}}
    write_archive(tmp_path / "file", ARRAYS, described)
    arrays, read = read_archive(tmp_path / "file")
    assert read == described
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == np.asarray(array).dtype
        assert arrays[name].shape == np.shape(array)
        assert arrays[name].tobytes() == np.asarray(array).tobytes()


def test_any_cut_is_noticed(tmp_path):
    path = tmp_path / "file"
    write_archive(path, ARRAYS, {})
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedError, match=str(path)):
            read_archive(path)


def test_any_flipped_bit_of_the_arrays_is_noticed(tmp_path):
    path = tmp_path / "file"
    write_archive(path, ARRAYS, {})
    content = path.read_bytes()
    for place in range(8 + int.from_bytes(content[:8], "little"), len(content)):
        spoilt = bytearray(content)
        spoilt[place] ^= 0x10
        path.write_bytes(spoilt)
        with pytest.raises(DamagedError, match="checksum"):
            read_archive(path)


def test_a_safetensors_file_of_others_is_damaged(tmp_path):
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(2)}, tmp_path / "file")
    with pytest.raises(DamagedError):
        read_archive(tmp_path / "file")
