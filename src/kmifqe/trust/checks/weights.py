"""Checks of KMIFQE's weights and kernel: too few rows, too much clipped, an unsteady bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kmifqe.estimators.base import Estimate, action_scale, network_input
from kmifqe.estimators.kmifqe.algorithm import KMIFQEConfig, KMIFQEState
from kmifqe.maths.kernel import LOG_TWO_PI
from kmifqe.maths.metric import optimal_metric
from kmifqe.maths.mlp import QParams, action_hessian
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.base import Diagnostic, Limit, digits, graded, percent
from kmifqe.trust.checks.overlap import ENOUGH_ROWS, MISFIT, SIGNIFICANT, mean_and_error

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


LOOKED_AT = 1_000  # rows: the mean of a share is then known to 2 %
DRAWS = 16  # actions drawn from the kernel at each
QUANTILES = (0.1, 0.5, 0.9)


def kernel_facts(config: KMIFQEConfig, state: KMIFQEState, problem: Problem) -> dict[str, Any]:
    """Return metric condition numbers, the kernel's mass outside box and log, and its leading-order bias of V̂.

    The bias is that of Theorem 2, γ/(1−γ)·½h²·tr(A⁻¹H), averaged over logged next states: the fixed point's where
    Q is quadratic in the action, the first term of its expansion elsewhere.
    """
    n = problem.counts.going_on
    seeds = np.flatnonzero(np.isfinite(np.asarray(state.h)))
    if n == 0 or not len(seeds):
        return {}
    rows = np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(int))
    next_states, targets = jnp.asarray(problem.next_states[rows]), jnp.asarray(problem.target_actions[rows])
    params = jax.tree.map(lambda part: part[seeds], state.params)
    floor = config.metric_floor if config.metric == "learned" else None
    x = network_input(problem, next_states, targets, "standardized")
    H, A = (np.asarray(m, np.float64) for m in _hessians_and_metrics(params, x, problem.action_dim, floor))
    usable = np.isfinite(H).all(axis=(1, 2, 3)) & np.isfinite(A).all(axis=(1, 2, 3))
    if not usable.any():
        return {}
    H, A, h = H[usable], A[usable], np.asarray(state.h, np.float64)[seeds][usable]
    inverse = np.linalg.inv(A)
    curvature = np.einsum("snij,snji->sn", inverse, H).mean(axis=1)
    gamma, unit = float(problem.gamma), np.asarray(state.reward_scale, np.float64)[seeds][usable]
    bias = gamma / (1.0 - gamma) * 0.5 * h**2 * curvature * unit
    return {
        "metric_condition_quantiles": np.quantile(np.linalg.cond(A), QUANTILES).tolist(),
        "kernel_outside": _outside_share(problem, np.asarray(targets, np.float64), inverse, h),
        "kernel_bias": float(bias.mean()),
        "kernel_bias_spread": float(bias.std(ddof=1)) if len(bias) > 1 else None,
    }


@partial(jax.jit, static_argnums=(2, 3))
def _hessians_and_metrics(
    params: QParams, x: Array, action_dim: int, floor: float | None
) -> tuple[Array, Array]:
    """Return ∇²ₐQ and A of every seed (axis 0 of the parameters) and row."""

    def at(params: QParams, x: Array) -> tuple[Array, Array]:
        H = action_hessian(params, x, action_dim)
        H = 0.5 * (H + H.T)
        return H, jnp.eye(action_dim) if floor is None else optimal_metric(H, floor)

    return jax.vmap(jax.vmap(at, (None, 0)), (0, None))(params, x)


def _outside_share(problem: Problem, targets: np.ndarray, inverse: np.ndarray, h: np.ndarray) -> float:
    """Return the kernel's mass beyond both the action box and the range of logged actions.

    Where actions are logged as drawn they leave the box, and the kernel may follow them there.
    """
    actions = np.asarray(problem.actions)
    low = np.minimum(np.asarray(problem.action_low), actions.min(axis=0))
    high = np.maximum(np.asarray(problem.action_high), actions.max(axis=0))
    half = np.asarray(action_scale(problem)[1], np.float64)
    root = np.linalg.cholesky(inverse)  # h·root·z has the kernel's covariance h² A⁻¹
    z = np.random.default_rng(0).standard_normal((DRAWS, *inverse.shape[:-1], 1))
    drawn = targets + half * h[:, None, None] * (root @ z)[..., 0]
    return float(np.mean(((drawn < low) | (drawn > high)).any(axis=-1)))


LAST = 0.75  # where the last quarter of a run begins

ROWS = Limit(
    100,
    30,
    "an average over 100 rows is off by a tenth of what it averages, over 30 by a fifth, and such averages are "
    "chained over 1/(1 − γ) steps",
    below=True,
)
CUT_OFF = Limit(
    0.3,
    0.9,
    "the clip takes weight from the rows that are most like the target; what it takes is bias, and no interval "
    "shows it",
)
FLOOR = Limit(
    0.1,
    0.5,
    "the least weight is given to rows that are nothing like the target; once they hold a tenth of the weight they "
    "pull V̂ towards the behaviour's value",
)
OUTSIDE = Limit(
    0.6,
    0.9,
    "beyond the bound there is nothing to average: the kernel becomes one-sided and its bias grows from h² to h; a "
    "target on one bound of one dimension makes a half",
)
SETTLED = Limit(
    0.2,
    float("inf"),
    "V̂'s kernel bias goes with h²: h must be steady to a fifth before that is steady to half",
)
KERNEL_BIAS = Limit(
    1.0,
    5.0,
    "an interval shows chance, not bias: a bias beyond its half-width puts the truth outside of it",
)
TAKEN_OFF = Limit(
    1.0,
    5.0,
    "what is taken off is what Q says of actions that few rows show, added up over 1/(1 − γ) steps: it can be wrong "
    "by as much as it moves V̂, and no interval shows it",
)


def weight_diagnostics(
    estimate: Estimate, facts: Mapping[str, Any], half_width: float | None
) -> list[Diagnostic]:
    """Return the diagnostics of a kernel estimator; `half_width` is that of V̂'s interval, where there is one."""
    found = [_bandwidth(estimate)] if "h" in estimate.infos else []
    if "raw_effective_rows" in facts:
        found += [_rows(facts), _mean_weight(facts), _cut_off(estimate, facts), _floor(estimate, facts)]
    if "kernel_outside" in facts:
        found += [_outside(facts), _metric(facts)]
        if half_width is not None:
            moved = _moved_by_bias(estimate)
            found.append(_kernel_bias(facts, half_width) if moved is None else _taken_off(moved, half_width))
    return found


def _rows(facts: Mapping[str, Any]) -> Diagnostic:
    rows, of = facts["raw_effective_rows"], facts["rows_in_sample"]
    line = f"the weights leave as much as {digits(rows)} of {of:,} rows (effective sample size, unclipped)"
    return graded("effective_rows", rows, ROWS, line, "{:.0f}".format)


def _mean_weight(facts: Mapping[str, Any]) -> Diagnostic:
    """Hold the unclipped mean weight against the kernel's mass where actions can be: equal if μ is right."""
    mean, error = facts["raw_mean_weight"], facts["raw_mean_weight_error"]
    expected = 1.0 - facts.get("kernel_outside", 0.0)
    ratio = mean / max(expected, 1e-30)
    off = max(ratio, 1.0 / max(ratio, 1e-30)) - 1.0
    told = f"unclipped weights average {digits(mean)}, where a right density and enough rows give {digits(expected)}"
    level = MISFIT.level(off)
    if facts["raw_effective_rows"] < ENOUGH_ROWS:
        level, line = "ok", f"{told}; over so few effective rows that proves nothing"
    elif abs(mean - expected) <= SIGNIFICANT * error:
        level, line = "ok", f"{told}: no sign of a wrong density"
    elif mean > expected:
        line = f"{told}: the behaviour density is too low where the target acts"
    else:
        line = f"{told}: the log lacks rows that the kernel asks for, or the density is too high there"
    return Diagnostic("mean_weight", mean, level, line, f"off by: {MISFIT.words(percent)}", MISFIT.reason)


def _cut_off(estimate: Estimate, facts: Mapping[str, Any]) -> Diagnostic:
    cut, share, top = facts["weight_cut_off"], facts["clipped_high"], estimate.config["clip"][1]
    line = f"the clip at {digits(top)} holds {percent(share)} of the rows down and takes {percent(cut)} of all weight"
    return graded("clipped_high", cut, CUT_OFF, line)


def _floor(estimate: Estimate, facts: Mapping[str, Any]) -> Diagnostic:
    held, share, least = facts["floor_weight_share"], facts["clipped_low"], estimate.config["clip"][0]
    line = (
        f"{percent(share)} of the rows are unlike anything the target does and sit at the least weight, "
        f"{least:g}; they hold {percent(held)} of all weight"
    )
    return graded("clipped_low", held, FLOOR, line)


def _outside(facts: Mapping[str, Any]) -> Diagnostic:
    share = facts["kernel_outside"]
    line = f"{percent(share)} of the kernel lies beyond the action bounds and every logged action"
    return graded("kernel_outside", share, OUTSIDE, line)


def _metric(facts: Mapping[str, Any]) -> Diagnostic:
    low, median, high = facts["metric_condition_quantiles"]
    line = (
        f"the kernel is typically {digits(median**0.5)} times as long as wide (metric condition number "
        f"{digits(median)}; {digits(low)} to {digits(high)} at most states)"
    )
    reason = (
        "any shape is a right answer: actions that do not matter are averaged over; shown to be looked at"
    )
    return Diagnostic("metric", median, "ok", line, "none", reason)


def _kernel_bias(facts: Mapping[str, Any], half_width: float) -> Diagnostic:
    bias = facts["kernel_bias"]
    ratio = abs(bias) / max(half_width, 1e-30)
    line = (
        f"smoothing over nearby actions moves V̂ by about {bias:+.2g}, {digits(ratio)} times the interval's "
        "half-width"
    )
    return graded("kernel_bias", ratio, KERNEL_BIAS, line, digits)


def _moved_by_bias(estimate: Estimate) -> float | None:
    """Return how far V̂ moved by taking the kernel's bias off; None where it was not, or not yet."""
    finite = np.isfinite(estimate.values)
    bias, begins = estimate.config.get("bias"), estimate.config.get("bias_step", 0)
    if bias == "subtracted":
        return -estimate.config.get("bias_share", 1.0) * float(np.mean(estimate.infos["bias"][-1][finite]))
    before = int(np.searchsorted(estimate.recorded_steps, begins, side="right")) - 1
    if bias != "held" or not 0 <= before < len(estimate.recorded_steps) - 1:
        return None
    return float(np.mean(estimate.values[finite] - estimate.trajectory[before][finite]))


def _taken_off(moved: float, half_width: float) -> Diagnostic:
    ratio = abs(moved) / max(half_width, 1e-30)
    line = f"taking the kernel's bias off moved V̂ by {moved:+.2g}, {digits(ratio)} times the interval's half-width"
    return graded("bias_taken_off", ratio, TAKEN_OFF, line, digits)


def _bandwidth(estimate: Estimate) -> Diagnostic:
    """Compare the mean log h of the last quarter's two halves; a bandwidth at one of its bounds is told too."""
    h = np.asarray(estimate.infos["h"], np.float64)
    log_h = np.log(np.maximum(np.nanmean(np.where(np.isfinite(h), h, np.nan), axis=1), 1e-30))
    late = log_h[min(int(np.searchsorted(estimate.recorded_steps, LAST * estimate.steps)), len(log_h) - 1) :]
    first, second = late[: (len(late) + 1) // 2], late[len(late) // 2 :]
    moved = abs(float(second.mean() - first.mean()))
    end = float(np.exp(late[-1]))
    low, high = estimate.config.get("bandwidth_bounds", (0.0, np.inf))
    if estimate.config.get("bandwidth") is None and not low * 1.01 < end < high / 1.01:
        line = (
            f"the bandwidth ended at its bound, {digits(end)} half action ranges: the rule found no optimum"
        )
        return Diagnostic("bandwidth", end, "care", line, f"care at {low:g} or {high:g}", SETTLED.reason)
    line = f"the bandwidth is {digits(end)} half action ranges and moved by {percent(moved)} over the last quarter"
    return graded("bandwidth", moved, SETTLED, line)
