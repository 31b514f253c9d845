"""Arrays made in chunks: the numbers NumPy gives in one go, at a place the device can use."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from kmifqe.mdp import ask as chunks


@pytest.mark.parametrize("shape", [(1000, 11), (7,), (0, 3)])
def test_an_aligned_array_is_not_copied_to_a_cpu(shape: tuple[int, ...]) -> None:
    array = chunks.aligned_empty(shape)
    array[:] = 1.0
    assert array.shape == shape
    assert array.dtype == np.float32
    if array.size and jax.default_backend() == "cpu":
        assert jax.device_put(array).unsafe_buffer_pointer() == array.ctypes.data


@pytest.mark.parametrize("chunk", [1, 3, 10, 100])
def test_rows_are_gathered_in_order_whatever_the_chunk(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    order = np.array([9, 0, 5, 5, 3, 1, 2])
    for values in (np.arange(20.0).reshape(10, 2), np.arange(10, dtype=np.int32), np.arange(10) % 2 == 0):
        result = chunks.gathered(values, order)
        np.testing.assert_array_equal(result, values[order])
        assert result.dtype == (np.float32 if values.dtype == np.float64 else values.dtype)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_mean_and_deviation_are_numpys(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    values = np.random.default_rng(0).normal(1e4, [1.0, 1e-2, 0.0], (50, 3)).astype(np.float32)
    mean, std = chunks.mean_and_std(values)
    np.testing.assert_allclose(mean, values.mean(axis=0, dtype=np.float64), rtol=1e-14)
    np.testing.assert_allclose(std, values.std(axis=0, dtype=np.float64), rtol=1e-10, atol=1e-9)
