from __future__ import annotations

import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy

from encoded_log import read_here
from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.mdp import columns as fill


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", "f2"])
def test_every_numpy_layout_gives_the_same_arrays(
    monkeypatch, tmp_path, encoded, log, same_log, save, order, kind
):
    monkeypatch.setattr(fill, "CHUNK_BYTES", 24)
    arrays = {k: np.asarray(v, v.dtype if v.dtype == bool else kind, order=order) for k, v in encoded.items()}
    save(tmp_path / "log.npz", **arrays)
    same_log(read_here(tmp_path / "log.npz"), log)


def test_an_object_array_is_refused_and_nothing_is_unpickled(tmp_path, encoded):
    class Bomb:
        def __reduce__(self):
            return exec, ("raise SystemExit('unpickled')",)

    path = tmp_path / "log.npz"
    np.savez(path, **{**encoded, "rewards": np.array([Bomb()] * 16, object)})
    with pytest.raises(InputError, match=r"log\.npz: rewards has type object; expected numbers"):
        load_dataset(path)


def rewrite(
    path, member: str, shape: tuple[int, ...], payload: bytes, method: int = zipfile.ZIP_DEFLATED
) -> None:
    with zipfile.ZipFile(path, "a", method) as archive, archive.open(member, "w") as stream:
        npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
        stream.write(payload)


def test_a_header_that_lies_about_its_shape_is_refused(tmp_path, encoded):
    path = tmp_path / "log.npz"
    del encoded["rewards"]
    np.savez(path, **encoded)
    rewrite(path, "rewards.npy", (10**15,), b"\0" * 64)
    with pytest.raises(
        InputError, match=r"rewards declares shape \(1000000000000000,\) \(4,000,000,000,000,000 bytes\)"
    ):
        load_dataset(path)


def test_a_negative_shape_is_refused(tmp_path, encoded):
    path = tmp_path / "log.npz"
    del encoded["rewards"]
    np.savez(path, **encoded)
    rewrite(path, "rewards.npy", (-16,), b"\0" * 64)
    with pytest.raises(InputError, match=r"log\.npz: cannot be read as an \.npz archive \(.*negative"):
        load_dataset(path)


def test_a_zip_bomb_is_refused_by_its_ratio(tmp_path):
    path = tmp_path / "log.npz"
    n = 5_000_000
    zeros = np.zeros(n, np.float64)
    np.savez_compressed(
        path, observations=zeros, actions=zeros, rewards=zeros, terminals=zeros[:n] > 0, timeouts=zeros > 0
    )
    assert 130_000_000 / path.stat().st_size > 500
    with pytest.raises(
        InputError, match=r"the header declares 130,000,000 bytes, .* at most 100 times the file's size"
    ):
        load_dataset(path)


def test_methods_that_expand_without_bound_are_refused(tmp_path, encoded):
    path = tmp_path / "log.npz"
    rewards = encoded.pop("rewards")
    np.savez(path, **encoded)
    rewrite(path, "rewards.npy", (16,), rewards.tobytes(), zipfile.ZIP_LZMA)
    with pytest.raises(InputError, match=r"rewards\.npy is compressed by method 14; expected deflate"):
        load_dataset(path)


def test_truncated_and_damaged_archives_are_refused(tmp_path, encoded):
    path = tmp_path / "log.npz"
    np.savez(path, **encoded)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"log\.npz: cannot be read as a zip archive"):
        load_dataset(path)
    at = whole.index(encoded["rewards"].tobytes())
    path.write_bytes(whole[:at] + bytes(8) + whole[at + 8 :])
    with pytest.raises(
        InputError, match=r"log\.npz: cannot be read as an \.npz archive \(Bad CRC-32 for file .rewards"
    ):
        load_dataset(path)


def test_an_episode_column_delimits_episodes(tmp_path, encoded, log, same_log):
    path = tmp_path / "log.npz"
    del encoded["timeouts"]
    np.savez(path, **encoded, episode=log.episode * 7 - 3)
    same_log(load_dataset(path), log)
    np.savez(path, **encoded, episode=log.episode // 2)
    with pytest.raises(
        InputError, match="terminals is set at row 2, but the next row has the same episode id"
    ):
        load_dataset(path)
