"""Bias, variance and RMSE of repeated trials, with standard errors: trials on one log are not independent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

MOMENTS: dict[str, Callable[[np.ndarray], float]] = {
    "rmse": lambda errors: math.sqrt(float(np.mean(errors**2))),
    "bias": lambda errors: float(np.mean(errors)),
    "bias_squared": lambda errors: float(np.mean(errors)) ** 2,
    "variance": lambda errors: variance(errors),
}


def trial_errors(errors: np.ndarray) -> dict[str, Any]:
    """Return RMSE, bias, bias² and variance of errors (logs × seeds), each with a standard error over logs.

    The standard errors are the jackknife's, leaving out a log at a time; None for fewer than three logs, as is
    the variance for fewer than two. A trial without a finite value leaves nothing but the count of those.
    """
    errors = np.asarray(errors, np.float64)
    diverged = int((~np.isfinite(errors)).sum())
    told: dict[str, Any] = {"diverged": diverged, "training_variance": None}
    logs, seeds = errors.shape
    if diverged == 0 and seeds > 1:
        told["training_variance"] = float(np.mean(np.var(errors, axis=1, ddof=1)))
    for name, moment in MOMENTS.items():
        known = diverged == 0 and (name != "variance" or logs > 1)
        told[name] = moment(errors) if known else None
        told[f"{name}_error"] = jackknife(moment, errors) if known and logs > 2 else None
    told["standard_error"] = told["rmse_error"]
    return told


def variance(errors: np.ndarray) -> float:
    """Return the variance of one trial, its log and its training drawn anew; unbiased, errors logs × seeds.

    The means over a log's seeds vary by σ²_log + σ²_training/seeds, so (1 − 1/seeds) σ²_training is added.
    """
    seeds = errors.shape[1]
    between = float(np.var(errors.mean(axis=1), ddof=1))
    within = float(np.mean(np.var(errors, axis=1, ddof=1))) if seeds > 1 else 0.0
    return between + (1.0 - 1.0 / seeds) * within


def jackknife(moment: Callable[[np.ndarray], float], errors: np.ndarray) -> float:
    """Return the standard error of a moment of errors (logs × seeds): logs are what is independent."""
    logs = len(errors)
    without = np.array([moment(np.delete(errors, k, axis=0)) for k in range(logs)])
    return math.sqrt((logs - 1) / logs * float(np.sum((without - without.mean()) ** 2)))
