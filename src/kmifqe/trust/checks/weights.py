"""Checks of an estimator with a kernel: too few rows, too much clipped, an unsteady bandwidth, the kernel's bias."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np

from kmifqe.estimators.base import Estimate, Estimator, Kernel, action_scale, state_of_seed
from kmifqe.io.format import digits, percent
from kmifqe.maths.kernel import value_bias
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.base import Check, Reach, Thresholds, half_widths, unjudged
from kmifqe.trust.checks.overlap import ENOUGH_ROWS, ENOUGH_ROWS_BELOW, MISFIT, SIGNIFICANT, mean_and_error
from kmifqe.trust.checks.training import LAST

EDGES = np.linspace(-6.0, 4.0, 41)  # of the weights' histogram, log10 of the weight
LARGEST = 80.0  # of a weight's logarithm: sums of squares stay finite
LOOKED_AT = 1_000  # rows: the mean of a share is then known to 2 %
CLIP_ROWS = 20_000  # rows at which Q is asked for what the clip costs
DRAWS = 16  # actions drawn from the kernel at each
QUANTILES = (0.1, 0.5, 0.9)

# A row far in the tail of the density weighs thousands. The clip takes that away, and what is left of the other rows
# does not depend on it: so no row counts more than this where the clip is no higher.
COUNTED = 100.0
ROWS = Thresholds(
    100, 30, "averages over 100 rows are off by a tenth, over 30 by a fifth, at every step", below=True
)
CUT_OFF = Thresholds(
    0.8,
    4.0,
    "the clip takes weight from the rows most like the target; that costs nothing where Q is alike at the others; "
    "where it is not, the difference is bias, and an interval does not show it",
)
FLOOR = Thresholds(
    0.1, 0.5, "rows at the least weight are unlike the target: they pull V̂ towards the behaviour's value"
)
OUTSIDE = Thresholds(
    0.6, 0.9, "beyond the bounds the kernel is one-sided: its bias grows from h² to h; one bound makes a half"
)
BANDWIDTH_MOVED = Thresholds(
    0.2, math.inf, "V̂'s kernel bias goes with h²: h must be steady to a fifth before that is steady to half"
)
KERNEL_BIAS = Thresholds(
    0.8, 4.0, "an interval shows chance, not bias: a bias beyond its half-width puts the truth outside of it"
)
BIAS_REMOVED = Thresholds(
    2.0,
    4.0,
    "what is removed is what Q says of actions that few rows show, added up over 1/(1 − γ) steps: it can be wrong "
    "by as much as it moves V̂, and no interval shows it",
)


class WeightFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Importance weights at the end of a fit, averaged over the seeds; "raw" ones are not clipped."""

    bandwidth: list[float]  # h of each seed, in half action ranges
    bandwidth_bounds: list[float] | None  # between which h is chosen; None where it is fixed
    clip: list[float | None]  # least and largest value of every factor of a weight; None: not clipped
    factors: int  # of a weight: 1, or one for each action dimension
    rows: int  # that have a weight: the nonterminal ones of the in-sample rows
    weight_edges: list[float]  # of the histogram, log10 of the raw weight
    weight_histogram: list[float]  # shares
    mean_weight: float
    effective_rows: float
    clipped_low: float  # share of the rows
    clipped_high: float  # share of the rows
    floor_weight_share: float  # of all weight, held by rows at the least weight
    weight_cut_off: float  # share of all raw weight that the clip takes away
    clip_bias: float | None  # units of V̂: what the upper clip moves, beyond chance; None without a Q
    raw_mean_weight: float
    raw_mean_weight_error: float  # standard error, with whole episodes as units
    raw_effective_rows: float
    widest_bandwidth: float | None = None  # that the log allows; None where h is fixed


class KernelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's shape, its mass outside box and log, and its leading-order bias of V̂."""

    metric_condition_quantiles: list[float]  # of the metric's condition number, at QUANTILES
    kernel_outside: float  # share of the kernel's mass
    kernel_bias: float  # units of V̂
    bias_removed: float | None = None  # how far V̂ moved because a bias was subtracted; None where it was not


def weight_facts(estimator: Estimator, estimate: Estimate, problem: Problem) -> WeightFacts | None:
    """Return what the weights are like; None without a kernel, a final state, a finite h or a nonterminal row.

    `estimator` made the `estimate` of the `problem`; its kernel computes the weights.
    """
    kernel, n = estimator.kernel, problem.counts.nonterminal
    h = {} if kernel is None else _bandwidths(kernel, estimate)
    if kernel is None or n == 0 or not h:
        return None
    episode, rows = np.asarray(problem.episode)[:n], jnp.arange(n)
    looked_at = np.unique(np.linspace(0, n - 1, min(n, CLIP_ROWS)).astype(int))
    per_seed: list[dict[str, Any]] = []
    clip_biases: list[float] = []
    widest: list[float] = []
    for position in h:
        state = state_of_seed(estimate.final_state, position)
        if kernel.widest_bandwidth is not None:
            widest.append(float(kernel.widest_bandwidth(state)))
        factors = np.asarray(kernel.log_weight_factors(state, problem, rows), np.float64)
        used = np.asarray(kernel.importance_weights(state, problem, rows), np.float64)
        per_seed.append(_of_seed(factors, np.minimum(used, math.exp(LARGEST)), kernel.clip, episode))
        if estimator.q is not None:
            gains = _gain_over_target(estimator.q, state, problem, looked_at)
            clip_biases.append(_clip_bias(factors[looked_at], kernel.clip[1], gains, episode[looked_at]))
    bounds = kernel.bandwidth_bounds
    return WeightFacts(
        factors=factors.shape[1],
        rows=n,
        bandwidth=list(h.values()),
        bandwidth_bounds=None if bounds is None else list(bounds),
        widest_bandwidth=float(np.mean(widest)) if widest else None,
        clip=[limit if math.isfinite(limit) else None for limit in kernel.clip],
        weight_edges=EDGES.tolist(),
        clip_bias=float(_value_bias(problem, np.mean(clip_biases))) if clip_biases else None,
        **{name: np.mean([one[name] for one in per_seed], axis=0).tolist() for name in per_seed[0]},
    )


def _bandwidths(kernel: Kernel, estimate: Estimate) -> dict[int, float]:
    """Return h of the seeds that have a finite one, by their positions; none without a final state."""
    if estimate.final_state is None:
        return {}
    h = (float(kernel.bandwidth(state_of_seed(estimate.final_state, i))) for i in range(len(estimate.seeds)))
    return {i: one for i, one in enumerate(h) if math.isfinite(one)}


def _of_seed(
    log_factors: np.ndarray, used: np.ndarray, clip: tuple[float, float], episode: np.ndarray
) -> dict[str, Any]:
    with np.errstate(divide="ignore"):  # log 0 = −inf: not clipped from below
        log_low, log_high = np.log(np.asarray(clip, np.float64))
    log_raw = log_factors.sum(axis=1)
    raw = np.exp(np.minimum(log_raw, LARGEST))
    low, high = (log_factors < log_low).any(axis=1), (log_factors > log_high).any(axis=1)
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
        "weight_cut_off": float(np.maximum(raw - used, 0.0)[high].sum() / raw_total),
        "raw_mean_weight": raw_mean,
        "raw_mean_weight_error": raw_error,
        "raw_effective_rows": raw_rows,
        "weight_histogram": histogram / len(log_raw),
    }


def _gain_over_target(q: Any, state: Any, problem: Problem, rows: np.ndarray) -> np.ndarray:
    """Return Q(s', a') − Q(s', π̃(s')) of the logged next actions at some rows."""
    next_states = jnp.asarray(problem.next_states[rows])
    logged, target = (jnp.asarray(each[rows]) for each in (problem.next_actions, problem.target_actions))
    here, there = (np.asarray(q(state, problem, next_states, actions)) for actions in (logged, target))
    return np.asarray(here - there, np.float64)


def _clip_bias(log_factors: np.ndarray, clip: float, gains: np.ndarray, episode: np.ndarray) -> float:
    """Return how far the upper clip moves the weighted mean of `gains`, less two standard errors of the move."""
    raw, held = log_factors.sum(axis=1), np.minimum(log_factors, math.log(clip)).sum(axis=1)
    shares = [np.exp(each - each.max()) for each in (held, raw)]
    held, raw = (share / share.sum() for share in shares)
    means = float(held @ gains), float(raw @ gains)
    influence = held * (gains - means[0]) - raw * (gains - means[1])
    error = float(np.sqrt(np.sum(np.bincount(episode, weights=influence) ** 2)))
    moved = means[0] - means[1]
    return math.copysign(max(0.0, abs(moved) - 2.0 * error), moved)


def _value_bias(problem: Problem, per_step: Any) -> Any:
    """Return the bias of V̂ where every bootstrap value is off by `per_step`."""
    return value_bias(per_step, float(problem.gamma), problem.counts.terminated / problem.counts.in_sample)


def kernel_facts(estimator: Estimator, estimate: Estimate, problem: Problem) -> KernelFacts | None:
    """Return the kernel's shape and bias; None without a kernel, a final state, a finite h or a nonterminal row.

    `estimator` made the `estimate` of the `problem`; its kernel gives the Hessians of Q and the metrics. The bias is
    that of Theorem 2, ½h²·tr(A⁻¹H) averaged over logged next states and added up over the steps of an episode: the
    fixed point's where Q is quadratic in the action, the first term of its expansion elsewhere.
    """
    kernel, n = estimator.kernel, problem.counts.nonterminal
    bandwidths = {} if kernel is None else _bandwidths(kernel, estimate)
    if kernel is None or n == 0 or not bandwidths:
        return None
    rows = np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(int))
    next_states, targets = jnp.asarray(problem.next_states[rows]), jnp.asarray(problem.target_actions[rows])
    states = [state_of_seed(estimate.final_state, position) for position in bandwidths]
    both = [kernel.hessians_and_metrics(state, problem, next_states, targets) for state in states]
    H, A = (np.stack([np.asarray(each, np.float64) for each in column]) for column in zip(*both))
    usable = np.isfinite(H).all(axis=(1, 2, 3)) & np.isfinite(A).all(axis=(1, 2, 3))
    if not usable.any():
        return None
    H, A, h = H[usable], A[usable], np.array(list(bandwidths.values()))[usable]
    inverse = np.linalg.inv(A)
    per_step = 0.5 * h**2 * np.einsum("snij,snji->sn", inverse, H).mean(axis=1)
    bias = _value_bias(problem, per_step)
    return KernelFacts(
        metric_condition_quantiles=np.quantile(np.linalg.cond(A), QUANTILES).tolist(),
        kernel_outside=_outside_share(problem, np.asarray(targets, np.float64), inverse, h),
        kernel_bias=float(bias.mean()),
        bias_removed=kernel.bias_removed(estimate),
    )


def _outside_share(problem: Problem, targets: np.ndarray, inverse: np.ndarray, h: np.ndarray) -> float:
    """Return the kernel's mass beyond the action box and the logged actions, which may leave the box too."""
    actions = np.asarray(problem.actions)
    low = np.minimum(np.asarray(problem.action_low), actions.min(axis=0))
    high = np.maximum(np.asarray(problem.action_high), actions.max(axis=0))
    half = np.asarray(action_scale(problem)[1], np.float64)
    root = np.linalg.cholesky(inverse)  # h·root·z has the kernel's covariance h² A⁻¹
    z = np.random.default_rng(0).standard_normal((DRAWS, *inverse.shape[:-1], 1))
    drawn = targets + half * h[:, None, None] * (root @ z)[..., 0]
    return float(np.mean(((drawn < low) | (drawn > high)).any(axis=-1)))


def weight_checks(
    estimate: Estimate, weights: WeightFacts | None, kernel: KernelFacts | None, reach: Reach | None
) -> list[Check]:
    """Return the checks of an estimator with a kernel.

    The recorded h and mean weight of the `estimate` are judged, and `weights` and `kernel` where they could be
    measured. `reach` is that of V̂'s interval, None where there is no interval.
    """
    found = [_bandwidth(estimate, weights)] if "h" in estimate.infos else []
    if weights is not None:
        outside = 0.0 if kernel is None else kernel.kernel_outside
        found += [_rows(weights), _mean_weight(weights, 1.0 - outside)]
        found += [_cut_off(weights, reach), _floor(weights), *_flat_weights(estimate, weights)]
    if kernel is not None:
        found += [_outside(kernel), _metric(kernel)]
        if reach is not None:
            found.append(_bias(kernel, reach))
    return found


def _flat_weights(estimate: Estimate, weights: WeightFacts) -> list[Check]:
    """Say when no row's importance weight tells it from another: the log holds nothing near the target's actions."""
    means, least, finite = estimate.infos.get("mean_weight"), weights.clip[0], np.isfinite(estimate.values)
    if means is None or least is None or weights.factors > 1 or not finite.any():
        return []
    mean = float(np.max(means[-1][finite]))
    if mean > least * (1.0 + 1e-3):
        return []
    thresholds = unjudged("weights that tell no row from another make V̂ the behaviour's value")
    finding = f"Every importance weight is at its least, {least:g}: no logged action is near the target's."
    advice = "Log rows near the target's actions; this log cannot tell what the target policy is worth."
    return [
        thresholds.check("flat_weights", mean, finding, advice, level="bad", threshold=f"bad at {least:g}")
    ]


def _rows(facts: WeightFacts) -> Check:
    largest = facts.clip[1]
    if largest is None or largest > COUNTED:
        rows, how = facts.raw_effective_rows, "Before they are clipped"
    else:
        rows, how = _counted_rows(facts), f"Where none counts more than {COUNTED:g}"
    finding = f"{how}, the weights leave {digits(rows)} effective rows of {facts.rows:,}."
    advice = "Log more rows near the target's actions; a larger bandwidth uses more rows at the price of more bias."
    return ROWS.check("effective_rows", rows, finding, advice, shown="{:.0f}".format)


def _counted_rows(facts: WeightFacts) -> float:
    """Return the effective sample size of raw weights that are cut at COUNTED, read off their histogram."""
    edges, shares = np.asarray(facts.weight_edges), np.asarray(facts.weight_histogram)
    weights = np.minimum(10.0 ** (0.5 * (edges[:-1] + edges[1:])), COUNTED)
    total, squares = float(shares @ weights), float(shares @ weights**2)
    return facts.rows * total**2 / max(squares, 1e-300)


def _mean_weight(facts: WeightFacts, expected: float) -> Check:
    """Hold the unclipped mean weight against the kernel's mass where actions can be: equal if μ is right."""
    mean = facts.raw_mean_weight
    ratio = mean / max(expected, 1e-30)
    level = MISFIT.level(max(ratio, 1.0 / max(ratio, 1e-30)) - 1.0)
    advice = "Use a better density: the probabilities that the controller logged, or one fitted to this log."
    if facts.raw_effective_rows < (ENOUGH_ROWS if mean > expected else ENOUGH_ROWS_BELOW):
        level, judged = "ok", "; over so few effective rows that proves nothing"
    elif abs(mean - expected) <= SIGNIFICANT * facts.raw_mean_weight_error:
        level, judged = "ok", ": no sign of a wrong density"
    elif mean > expected:
        judged = ": the behaviour density is too low where the target acts"
    else:
        judged = ": the log lacks rows that the kernel asks for, or the density is too high there"
        advice = "Log more rows near the target's actions, and check the behaviour density there."
    finding = (
        f"Unclipped weights average {digits(mean)}, where a right density and enough rows give "
        f"{digits(expected)}{judged}."
    )
    threshold = f"off by: {MISFIT.text(percent)}"
    return unjudged(MISFIT.reason).check(
        "mean_weight", mean, finding, advice, level=level, threshold=threshold
    )


def _cut_off(facts: WeightFacts, reach: Reach | None) -> Check:
    """Judge the upper clip by what it costs: how far it moves V̂."""
    largest = "infinity" if facts.clip[1] is None else digits(facts.clip[1])
    rows, cut_off = percent(facts.clipped_high), percent(facts.weight_cut_off)
    finding = f"The clip at {largest} holds {rows} of the rows down and takes {cut_off} of all weight"
    advice = (
        "Raise the second number of --set clip=0.001,10, or log more rows near the target's actions, which makes "
        "weights smaller."
    )
    if facts.clip_bias is None or reach is None:
        thresholds = unjudged("without a Q or an interval nobody knows what the clip costs")
        return thresholds.check("clipped_high", 0.0, f"{finding}.", advice, threshold="none")
    finding += f", which moves V̂ by about {facts.clip_bias:+.2g}; {reach.said}."
    ratio = reach.held_against(facts.clip_bias)
    return CUT_OFF.check("clipped_high", ratio, finding, advice, shown=half_widths)


def _floor(facts: WeightFacts) -> Check:
    rows, held = percent(facts.clipped_low), percent(facts.floor_weight_share)
    finding = f"{rows} of the rows sit at the least weight, {facts.clip[0]:g}, and hold {held} of all weight."
    advice = "Log more rows near the target's actions, or lower the first number of --set clip=0.001,10."
    return FLOOR.check("clipped_low", facts.floor_weight_share, finding, advice)


def _outside(facts: KernelFacts) -> Check:
    share = facts.kernel_outside
    finding = f"{percent(share)} of the kernel lies beyond the action bounds and every logged action."
    advice = (
        "Log more rows near the target's actions. Where the system cuts actions to bounds, kmifqe takes account of "
        "it: its cut_actions is on by default."
    )
    return OUTSIDE.check("kernel_outside", share, finding, advice)


def _metric(facts: KernelFacts) -> Check:
    low, median, high = facts.metric_condition_quantiles
    finding = (
        f"The kernel is typically {digits(median**0.5)} times as long as wide (metric condition number "
        f"{digits(median)}; {digits(low)} to {digits(high)} at most states)."
    )
    reason = (
        "any shape is a right answer: actions that do not matter are averaged over; shown to be looked at"
    )
    return unjudged(reason).check("metric", median, finding, "", threshold="none")


def _bias(facts: KernelFacts, reach: Reach) -> Check:
    """Judge the bias that is in V̂, or, where it was subtracted, how far that moved V̂."""
    removed = facts.bias_removed
    ratio = reach.held_against(facts.kernel_bias if removed is None else removed)
    if removed is None:
        finding = f"Averaging over nearby actions moves V̂ by about {facts.kernel_bias:+.2g}; {reach.said}."
        advice = "Use kmifqe, which subtracts the bias, or log more rows near the target's actions."
        return KERNEL_BIAS.check("kernel_bias", ratio, finding, advice, shown=half_widths)
    finding = f"To correct for averaging over nearby actions V̂ was moved by {removed:+.2g}; {reach.said}."
    advice = "Compare V̂ with fqe, which has no kernel, or log more rows near the target's actions."
    return BIAS_REMOVED.check("bias_removed", ratio, finding, advice, shown=half_widths)


def _bandwidth(estimate: Estimate, weights: WeightFacts | None) -> Check:
    """Compare the mean log h of the last quarter's two halves; a bandwidth at one of its bounds is named too."""
    h = np.asarray(estimate.infos["h"], np.float64)
    log_h = np.log(np.maximum(np.nanmean(np.where(np.isfinite(h), h, np.nan), axis=1), 1e-30))
    late = log_h[min(int(np.searchsorted(estimate.recorded_steps, LAST * estimate.steps)), len(log_h) - 1) :]
    first, second = late[: (len(late) + 1) // 2], late[len(late) // 2 :]
    moved, end = abs(float(second.mean() - first.mean())), float(np.exp(late[-1]))
    bounds = None if weights is None else weights.bandwidth_bounds
    if bounds is not None and not bounds[0] * 1.01 < end < bounds[1] / 1.01:
        finding = f"The bandwidth ended at its bound, {digits(end)} half action ranges: no optimum was found."
        advice = (
            "Log more rows near the target's actions, or set the bandwidth yourself (--set bandwidth=0.2)."
        )
        at_bound, threshold = unjudged(BANDWIDTH_MOVED.reason), f"care at {bounds[0]:g} or {bounds[1]:g}"
        return at_bound.check("bandwidth", end, finding, advice, level="care", threshold=threshold)
    widest = None if weights is None else weights.widest_bandwidth
    at_widest = widest is not None and end > widest / 1.05
    allowed = ", the widest that the log's actions allow," if at_widest else ","
    finding = (
        f"The bandwidth, {digits(end)} half ranges{allowed} moved by {percent(moved)} over the last quarter of the "
        "steps."
    )
    advice = "Train for more steps, until the bandwidth stays where it is."
    return BANDWIDTH_MOVED.check("bandwidth", moved, finding, advice)
