"""What a behaviour fit reports: held-out likelihoods, atoms on the bounds, calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kmifqe.io.serialize import plain

LARGEST_KS = 0.05  # the largest gap between stated and observed probabilities that we let pass


SHARE_OF_CLIPPED = 5e-4  # of the actions on a bound, from which on the log is said to be clipped


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


@dataclass(frozen=True)
class FitReport:
    """How well each component count explains held-out actions, and whether to believe the chosen density."""

    components: tuple[int, ...]
    log_likelihood: np.ndarray  # (counts, restarts) nats a row on held-out episodes
    standard_error: np.ndarray  # (counts,) of the best restart's likelihood, over held-out episodes
    chosen: int  # the count with the best mean likelihood
    held_out_rows: int
    held_out_episodes: int
    train_rows: int
    steps: int
    low: np.ndarray  # (d,) the box of the density
    high: np.ndarray
    widened: np.ndarray  # (d,) bool: logged actions crossed the given bounds
    on_bound: np.ndarray  # (d,) share of rows exactly on a bound: atoms that no density has
    in_layer: np.ndarray  # (d,) share of rows in a boundary layer, atoms included
    calibration: Calibration
    seconds: float = 0.0  # how long the fit took

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences a person should read before trusting the density; empty if there is nothing to say."""
        found = []
        if (self.on_bound >= SHARE_OF_CLIPPED).any():
            found.append(
                f"up to {self.on_bound.max():.1%} of the actions sit exactly on a bound: the log was "
                "clipped, and the density there is that share over the width of the boundary layer"
            )
        if self.widened.any():
            found.append(
                f"actions of dimension {_listed(self.widened)} cross the given bounds: the density's box was "
                "widened"
            )
        if self.calibration.miscalibrated.any():
            found.append(
                f"the density is miscalibrated in dimension {_listed(self.calibration.miscalibrated)}: "
                f"KS distance {self.calibration.ks.max():.3f}, above {self.calibration.threshold:.3f}"
            )
        if self.held_out_episodes < 10:
            found.append(
                f"only {self.held_out_episodes} episode(s) held out: likelihoods and their errors are rough"
            )
        return tuple(found)

    def as_record(self) -> dict[str, Any]:
        """Return the report as plain values for JSON, the counts as rows of a table."""
        check = self.calibration
        rows = zip(self.components, self.log_likelihood, self.standard_error)
        in_table = ("components", "log_likelihood", "standard_error", "seconds")
        record = {name: value for name, value in vars(self).items() if name not in in_table}
        return plain(
            {
                "table": [
                    {
                        "components": count,
                        "log_likelihood": values.mean(),
                        "standard_error": error,
                        "restarts": values,
                        "restart_standard_error": restart_standard_error(values),
                    }
                    for count, values, error in rows
                ],
                **record,
                "calibration": vars(check)
                | {"threshold": check.threshold, "miscalibrated": check.miscalibrated},
                "warnings": self.warnings,
            }
        )


def episode_standard_error(values: np.ndarray, episode: np.ndarray) -> float:
    """Return the standard error of the mean of `values` when rows of one episode may depend on one another.

    The mean is a ratio of sums over episodes; its error is that of the episodes' summed deviations. NaN for
    one episode.
    """
    _, index = np.unique(episode, return_inverse=True)
    sums = np.bincount(index, values - values.mean())
    count = len(sums)
    if count < 2:
        return float("nan")
    return float(np.sqrt(count / (count - 1) * (sums**2).sum()) / len(values))


def restart_standard_error(values: np.ndarray) -> float | None:
    """Return the standard error over restarts, or None for a single one."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def _listed(flags: np.ndarray) -> str:
    return ", ".join(str(j) for j in np.flatnonzero(flags))
