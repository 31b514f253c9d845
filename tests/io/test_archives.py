import io
import zipfile
import zlib

import h5py
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io import archives
from kmifqe.io.archives import Archive, check_hdf5_array, read_npz, read_safetensors


def write_npy_member(path, blob):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w0.npy", blob)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_numpy_wrote_them(tmp_path, save):
    arrays = {
        "c": np.arange(6.0).reshape(2, 3), "f": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "scalar": np.float32(3), "text": np.array("relu"), "empty": np.zeros((0, 4)),
        "big_endian": np.arange(3, dtype=">f8"),
    }  # fmt: skip
    save(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz")
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
        assert found[name].shape == np.shape(array)


def test_an_object_array_is_refused_unread(tmp_path, canary, hostile):
    header = npy(np.zeros(1, np.float64)).replace(b"'<f8'", b"'|O' ")
    write_npy_member(tmp_path / "a.npz", header[:128] + hostile)
    with pytest.raises(InputError, match="pickled Python objects"):
        read_npz(tmp_path / "a.npz")
    assert not canary.exists()


@pytest.mark.parametrize("claim", [b"(9999999999999,), }", b"(-1,), }", b"(3,), }"])
def test_a_header_that_lies_about_its_size_allocates_nothing(tmp_path, claim):
    blob = npy(np.zeros(2))
    lie = blob.replace(b"(2,), }" + b" " * (len(claim) - 7), claim)
    assert lie != blob
    assert len(lie) == len(blob)
    write_npy_member(tmp_path / "a.npz", lie)
    with pytest.raises(InputError, match=r"claims shape|not a readable array"):
        read_npz(tmp_path / "a.npz")


def test_a_decompression_bomb_is_refused_before_it_unpacks(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MEMBER_LIMIT", 10_000)
    np.savez_compressed(tmp_path / "bomb.npz", w0=np.zeros(100_000))
    assert (tmp_path / "bomb.npz").stat().st_size < 10_000
    with pytest.raises(InputError, match="unpacks to 800,128 bytes; expected at most 10,000"):
        read_npz(tmp_path / "bomb.npz")


def test_many_small_members_share_one_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MEMBER_LIMIT", 10_000)
    np.savez_compressed(tmp_path / "bomb.npz", **{f"w{i}": np.zeros(500) for i in range(10)})
    with pytest.raises(InputError, match="in all"):
        read_npz(tmp_path / "bomb.npz")


def test_a_member_name_is_never_a_path(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../../escaped", b"x")
    (tmp_path / "in").mkdir()
    assert Archive(tmp_path / "a.zip", "a").read("../../escaped") == b"x"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.zip", "in"]


def test_damage_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", w0=np.arange(100.0))
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be read as a zip archive"):
        read_npz(tmp_path / "cut.npz")
    (tmp_path / "flipped.npz").write_bytes(whole[:300] + b"\xff" + whole[301:])
    with pytest.raises(InputError, match="damaged"):
        read_npz(tmp_path / "flipped.npz")
    with pytest.raises(InputError, match=r"member w9 is missing; found w0\.npy"):
        Archive(tmp_path / "a.npz", "a.npz").read("w9")


def test_letters_that_do_not_exist_are_refused(tmp_path):
    write_npy_member(tmp_path / "a.npz", npy(np.array("relu"))[:-4] + b"\xff\xff\xff\xff")
    with pytest.raises(InputError, match="w0 holds letters that are none"):
        read_npz(tmp_path / "a.npz")


def test_only_the_methods_that_numpy_uses_are_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("w0.npy", npy(np.zeros(9)))
    with pytest.raises(InputError, match=r"member w0\.npy is compressed by method 12; expected deflate"):
        read_npz(tmp_path / "a.npz")


def test_a_small_archive_may_unpack_to_little(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", w0=np.zeros(5_000_000))
    with pytest.raises(InputError, match="unpacks to 40,000,128 bytes; expected at most"):
        read_npz(tmp_path / "bomb.npz")


def test_the_header_of_a_safetensors_file_is_bounded(tmp_path):
    path = tmp_path / "a.safetensors"
    most = archives.SAFETENSORS_HEADER_LIMIT
    for length, is_refused_unread in ((most, False), (most + 1, True)):
        path.write_bytes(length.to_bytes(8, "little") + b'{"x":'.ljust(length))
        with pytest.raises(InputError) as refused:
            read_safetensors(path)
        assert ("declares a header" in str(refused.value)) == is_refused_unread


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"fletcher32": True}, {"shuffle": True, "fletcher32": True}]
)
def test_whatever_hdf5_packs_with_gzip_is_taken(tmp_path, options):
    """Also chunks of noise, which HDF5 leaves unpacked since packing makes them longer, and rows beyond the last."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, array in (("noise", rng.integers(0, 256, 1000, np.uint8)), ("zeros", np.zeros(1000))):
            check_hdf5_array(
                file.create_dataset(name, data=array, chunks=(64,), compression="gzip", **options), "a"
            )


@pytest.mark.parametrize("options", [{}, {"fletcher32": True}])
@pytest.mark.parametrize(
    ("blob", "mask"),
    [
        (zlib.compress(bytes(4)), 0),
        (zlib.compress(bytes(10_000)), 0),
        (zlib.compress(zlib.compress(bytes(256))), 0),
        (zlib.compress(bytes(256))[:-8], 0),
        (b"no gzip", 0),
        (bytes(4), 1),
        (bytes(300), 1),
    ],
)
def test_a_chunk_of_another_length_is_refused(tmp_path, options, blob, mask):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        array = file.create_dataset("x", (100,), "f4", chunks=(64,), compression="gzip", **options)
        array.id.write_direct_chunk((64,), blob, mask)
        with pytest.raises(InputError, match="chunk"):
            check_hdf5_array(array, "a.hdf5")
