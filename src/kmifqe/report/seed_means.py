"""The error of an estimate that is the mean of several seeds, from the seeds of one record."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def error_of_mean(values: Sequence[float] | np.ndarray, truth: float, count: int) -> tuple[float, float]:
    """Return the RMSE of the mean of `count` of these seeds, over every choice of so many, and its standard error.

    With the errors' mean e and variance s² (n − 1): RMSE² = e² − s²/n + s²/count, which is unbiased for the squared
    error of a mean of `count` seeds. `count` = 1 is the RMSE over seeds. The standard error is the jackknife's, of
    the square, carried through the root.
    """
    errors = np.asarray(values, np.float64) - truth
    n = len(errors)
    if not 1 <= count <= n:
        raise ValueError(f"count is {count}; expected 1 to {n}, the number of seeds")
    if not np.isfinite(errors).all():
        return math.inf, 0.0  # as in Table 1: an average over the other seeds would flatter the method
    rmse = math.sqrt(_squared(errors, count))
    if n == 1 or rmse == 0.0:
        return rmse, 0.0
    without = np.array([_squared(np.delete(errors, i), count) for i in range(n)])
    return rmse, math.sqrt((n - 1) * float(np.var(without))) / (2.0 * rmse)


def _squared(errors: np.ndarray, count: int) -> float:
    n = len(errors)
    variance = float(np.var(errors, ddof=1)) if n > 1 else 0.0
    return float(np.mean(errors)) ** 2 + variance * (1.0 / count - 1.0 / n)
