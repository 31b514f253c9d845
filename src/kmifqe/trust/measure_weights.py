"""KMIFQE's importance weights at the end of a run, over every row that goes on: whole, clipped, and what was lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from kmifqe.estimators.base import action_scale
from kmifqe.estimators.kmifqe import KMIFQEConfig, KMIFQEState
from kmifqe.maths.kernel import LOG_TWO_PI
from kmifqe.problem import Problem
from kmifqe.trust.measure_overlap import mean_and_error

EDGES = np.linspace(-6.0, 4.0, 41)  # log10 of the weight
LARGEST = 80.0  # of a weight's logarithm: sums of squares stay finite


def weight_facts(config: KMIFQEConfig, state: KMIFQEState, problem: Problem) -> dict[str, Any]:
    """Return shares, means and effective rows, each averaged over the seeds that have a finite bandwidth."""
    n, h = problem.counts.going_on, np.asarray(state.h, np.float64)
    seeds = np.flatnonzero(np.isfinite(h))
    if n == 0 or not len(seeds):
        return {}
    episode = np.asarray(problem.episode)[:n]
    log_mu = log_mu_of(config, problem, slice(n))
    per_seed = [
        _of_seed(log_ratios(state, int(i), slice(n), log_mu, problem.action_dim), config, episode)
        for i in seeds
    ]
    facts = {name: np.mean([one[name] for one in per_seed], axis=0).tolist() for name in per_seed[0]}
    return {"bandwidth": h[seeds].tolist(), "weight_edges": EDGES.tolist(), **facts}


def log_mu_of(config: KMIFQEConfig, problem: Problem, rows: slice | np.ndarray) -> np.ndarray:
    """Return log μ(a'|s') of rows that go on, in the kernel's units, (rows, factors of the weight)."""
    assert problem.log_mu is not None
    half = np.asarray(action_scale(problem)[1], np.float64)
    columns = np.asarray(problem.log_mu[rows], np.float64)
    if config.clip_per_dimension:
        return np.asarray(columns + np.log(half))
    return columns.sum(axis=1, keepdims=True) + np.sum(np.log(half))


def log_ratios(
    state: KMIFQEState, seed: int, rows: slice | np.ndarray, log_mu: np.ndarray, action_dim: int
) -> np.ndarray:
    """Return the logarithm of every factor of the rows' weights, unclipped, for the seed at this position."""
    squared, h = np.asarray(state.ahead.squared[seed][rows], np.float64), float(state.h[seed])
    dims = action_dim // squared.shape[1]
    return np.asarray(-0.5 * squared / h**2 - dims * (np.log(h) + 0.5 * LOG_TWO_PI) - log_mu)


def clipped(log_ratios: np.ndarray, clip: tuple[float, float]) -> np.ndarray:
    """Return the weights with every factor clipped, as training sees them."""
    return np.asarray(np.exp(np.minimum(np.clip(log_ratios, *_logs(clip)).sum(axis=1), LARGEST)))


def _logs(clip: tuple[float, float]) -> np.ndarray:
    with np.errstate(divide="ignore"):  # log 0 = −inf: not clipped from below
        return np.asarray(np.log(np.asarray(clip, np.float64)))


def _of_seed(log_ratios: np.ndarray, config: KMIFQEConfig, episode: np.ndarray) -> dict[str, Any]:
    log_low, log_high = _logs(config.clip)
    log_raw = log_ratios.sum(axis=1)
    raw, used = np.exp(np.minimum(log_raw, LARGEST)), clipped(log_ratios, config.clip)
    low, high = (log_ratios < log_low).any(axis=1), (log_ratios > log_high).any(axis=1)
    raw_mean, raw_error, raw_rows = mean_and_error(raw, episode)
    mean, _, rows = mean_and_error(used, episode)
    total, raw_total = max(float(used.sum()), 1e-300), max(float(raw.sum()), 1e-300)
    histogram, _ = np.histogram(np.clip(log_raw / np.log(10.0), EDGES[0], EDGES[-1]), EDGES)
    return {
        "mean_weight": mean,
        "effective_rows": rows,
        "clipped_low": float(low.mean()),
        "clipped_high": float(high.mean()),
        "floor_weight_share": float(used[low & ~high].sum() / total),
        "weight_cut_off": float(np.maximum(raw - used, 0.0).sum() / raw_total),
        "raw_mean_weight": raw_mean,
        "raw_mean_weight_error": raw_error,
        "raw_effective_rows": raw_rows,
        "largest_weight_share": float(raw.max() / raw_total),
        "weight_histogram": histogram / len(log_raw),
    }
