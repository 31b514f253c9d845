"""Is a density calibrated on held-out rows? Coverage and Kolmogorov–Smirnov distance per dimension."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LARGEST_KS = 0.05  # the largest gap between stated and observed probabilities that we let pass


@dataclass(frozen=True)
class Calibration:
    """How the probability integral transform of held-out actions differs from uniform, per dimension."""

    coverage_50: np.ndarray  # (d,) share of rows inside the central 50 % interval; 0.5 if calibrated
    coverage_90: np.ndarray  # (d,) the same for 90 %
    ks: np.ndarray  # (d,) largest gap between the empirical and the uniform distribution function
    rows: int

    @property
    def threshold(self) -> float:
        """The distance above which a dimension is flagged: LARGEST_KS plus the 95 % point of chance."""
        return LARGEST_KS + 1.36 / np.sqrt(self.rows)

    @property
    def miscalibrated(self) -> np.ndarray:
        """Which dimensions are flagged, shape (d,), bool."""
        return self.ks > self.threshold


def calibration(pit: np.ndarray) -> Calibration:
    """Return the calibration seen in `pit`, shape (n, d), values in [0, 1]."""
    away = np.abs(pit - 0.5)
    return Calibration(
        coverage_50=(away <= 0.25).mean(axis=0),
        coverage_90=(away <= 0.45).mean(axis=0),
        ks=np.array([ks_distance(column) for column in pit.T]),
        rows=len(pit),
    )


def ks_distance(values: np.ndarray) -> float:
    """Return the Kolmogorov–Smirnov distance of `values` from the uniform distribution on [0, 1]."""
    ordered = np.sort(values)
    n = len(ordered)
    above = np.arange(1, n + 1) / n - ordered
    below = ordered - np.arange(n) / n
    return float(max(above.max(), below.max()))
