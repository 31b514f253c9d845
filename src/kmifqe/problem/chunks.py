"""Arrays filled row block by row block, where the device may use them without a copy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike

CHUNK = 65_536  # rows handed to a policy or density at a time
_ALIGNMENT = 64  # bytes: from here on XLA's CPU device uses a NumPy array in place instead of copying it


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> np.ndarray:
    """Return an array, not yet filled, that `jax.device_put` need not copy on a CPU."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def row_chunks(n: int) -> Iterator[slice]:
    """Yield consecutive slices that cover n rows."""
    for start in range(0, n, CHUNK):
        yield slice(start, min(start + CHUNK, n))


def taken(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return `values[order]`, aligned; values are cast to float32 unless they are flags or whole numbers."""
    dtype = values.dtype if values.dtype.kind in "bi" else np.dtype(np.float32)
    result = aligned_empty((len(order), *values.shape[1:]), dtype)
    for rows in row_chunks(len(order)):
        result[rows] = values[order[rows]]
    return result


def mean_and_std(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and standard deviation of every column, in float64 without a float64 copy."""
    mean = values.mean(axis=0, dtype=np.float64)
    squares = np.zeros_like(mean)
    for rows in row_chunks(len(values)):
        squares += np.square(values[rows] - mean).sum(axis=0)
    return mean, np.sqrt(squares / len(values))
