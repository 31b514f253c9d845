"""What KMIFQE reads of the log's rows, and what a copy of the target network gives for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kmifqe.errors import InputError
from kmifqe.estimators.base import action_scale, network_input, scaled, standardized
from kmifqe.estimators.kmifqe.config import KMIFQEConfig
from kmifqe.maths import kernel
from kmifqe.maths.batches import metric_distances, state_part, taylor_terms, values, values_and_hessians
from kmifqe.maths.mlp import QParams
from kmifqe.mdp.host_rows import HostRows
from kmifqe.mdp.problem import Problem

CHUNK = {"cpu": 1_024}  # rows whose Hessians are in flight at once: what a core's cache holds
DEVICE_CHUNK = 16_384  # elsewhere: enough to fill the device
RANGE_ROWS = 65_536  # whose weights say which bandwidths the log allows: shares are known to a hundredth
ENOUGH_ROWS = 300.0  # of a pilot bandwidth's effective sample: its mean weight is known to a twentieth
RANGE_POINTS = 56  # bandwidths tried, a tenth apart over the default bounds


def check_problem(config: KMIFQEConfig, problem: Problem) -> None:
    """Refuse a problem without next actions or without the density that the weights need."""
    if problem.counts.in_sample == 0:
        raise InputError(
            "KMIFQE learns from logged next actions, and no row has one: every episode is cut after one step; "
            "FQE and SR-DICE need none"
        )
    if problem.is_stochastic:
        raise InputError(
            "KMIFQE relaxes a deterministic target by a kernel, and this target draws its actions; in-sample weights "
            "by the true ratio, or judge the target's deterministic action without --stochastic"
        )
    if problem.log_mu is None:
        raise InputError("KMIFQE needs a behaviour density; give one with --behavior (behavior=)")
    if config.clip_per_dimension and problem.log_mu.shape[1] != problem.action_dim:
        raise InputError(
            "clip_per_dimension needs a behaviour density that factorises over action dimensions"
        )


def inputs(config: KMIFQEConfig, problem: Problem, states: Array, actions: Array) -> Array:
    """Return [s, a] as the network of `config` takes it, from `states` and `actions` in the units of `problem`.

    With `cut_actions` actions are cut to the box first (docs/estimators/kmifqe.md, "cut_actions").
    """
    return network_input(problem, states, actions, "standardized", cut_actions=config.cut_actions)


def weight_factors(config: KMIFQEConfig, problem: Problem) -> int:
    """Return how many factors of a weight are clipped one by one."""
    return problem.action_dim if config.clip_per_dimension else 1


def log_mu(config: KMIFQEConfig, problem: Problem, rows: Array | slice) -> Float[Array, "rows k"]:
    """Return log μ(a'|s') of the `rows` of `problem` per half action range, a column for each factor of a weight.

    `config` says whether each action dimension is a factor.
    """
    _, half = action_scale(problem)
    assert problem.log_mu is not None  # by check_problem
    columns = problem.log_mu[rows]
    if config.clip_per_dimension:
        return columns + jnp.log(half)
    return columns.sum(axis=1, keepdims=True) + jnp.sum(jnp.log(half))


class Chunk(NamedTuple):
    """Some rows, in the network's units."""

    from_states: Float[Array, "chunk hidden"]  # what the next states give the first layer
    next_actions: Float[Array, "chunk d"]
    target_actions: Float[Array, "chunk d"]
    distance: Float[Array, "chunk d"]  # a' − π̃(s'), in half action ranges, never cut


class BandwidthRange(NamedTuple):
    """What the log's own weights say about bandwidths, in half action ranges."""

    pilot: Float[Array, ""]  # narrow, and still wide enough that many rows have weight: v is estimated there
    widest: Float[Array, ""]  # of the largest effective sample: beyond, variance and bias both grow


class TargetTable(NamedTuple):
    """What the target network gives for the in-sample rows; 0 for terminal rows, which come last."""

    squared: Float[Array, "nonterminal k"]  # z² per dimension (k = d) or ‖z‖² (k = 1), z = Lᵀ(a' − π̃(s'))
    laplacian: Float[Array, " n"]  # tr ∇²ₐQ̄ at (s', π̃(s'))
    bootstrap_value: Float[Array, " n"] | None = (
        None  # Q̄(s', a'); None where every step has another target network
    )
    target_value: Float[Array, " n"] | None = None  # Q̄(s', π̃(s')); None where the metric outlives a copy
    bandwidths: BandwidthRange | None = None  # None where the bandwidth is fixed
    bias: Float[Array, " n"] | None = None  # the kernel's bias of the bootstrap value; None: it is ignored


def build_table(config: KMIFQEConfig, params: QParams, problem: Problem, *, metric: bool) -> TargetTable:
    """Return the table of the target network `params` for every row of `problem`: Algorithm 1, after a copy.

    `config` says how actions are read and weights clipped. `metric`: whether distances are measured in the metric
    that the Hessians give (Prop. 3); otherwise L = I.
    """
    factors = weight_factors(config, problem)

    def chunk(rows: Chunk) -> tuple[Array, ...]:
        target_value, H = values_and_hessians(params, rows.from_states, rows.target_actions, config.precision)
        z = rows.distance
        if metric:
            z = metric_distances(H, z, config.metric_floor, config.precision)
        squared = z**2 if factors > 1 else jnp.sum(z**2, axis=1, keepdims=True)
        parts = [squared, jnp.trace(H, axis1=1, axis2=2)]
        if not config.tau:
            parts.append(bootstrap_value(config, params, rows))
        if config.has_target_values:
            parts.append(target_value)
        return tuple(parts)

    n = problem.counts.in_sample
    columns = 1 + (not config.tau) + config.has_target_values
    zeros = jnp.zeros((problem.counts.nonterminal, factors)), *[jnp.zeros(n)] * columns
    squared, laplacian, *values_of_rows = _over_rows(config, chunk, zeros, params, problem)
    bandwidths = _bandwidth_range(config, squared, problem)
    columns_of_rows = dict(zip(("bootstrap_value", "target_value"), values_of_rows, strict=False))
    return TargetTable(squared, laplacian, bandwidths=bandwidths, **columns_of_rows)


def _bandwidth_range(
    config: KMIFQEConfig, squared: Float[Array, "nonterminal k"], problem: Problem
) -> BandwidthRange | None:
    """Return what the weights of rows at these distances allow; None where the bandwidth is fixed.

    Only bandwidths count at which the log still holds half of the kernel's mass: beyond, the rows that would show
    how small the effective sample is are not in the log.
    """
    if config.bandwidth is not None:
        return None
    low, high = config.bandwidth_bounds
    n, d = problem.counts.nonterminal, problem.action_dim
    if n == 0:
        return BandwidthRange(jnp.float32(high), jnp.float32(high))
    rows = jnp.asarray(np.unique(np.linspace(0, n - 1, min(n, RANGE_ROWS)).astype(np.int32)))
    distance, log_density = squared[rows].sum(axis=1), log_mu(config, problem, rows).sum(axis=1)
    grid = jnp.asarray(np.geomspace(low, high, RANGE_POINTS), jnp.float32)

    def at(h: Array) -> tuple[Array, Array]:
        log_w = kernel.log_kernel(distance, h, d) - log_density
        largest = jnp.max(log_w)
        w = jnp.exp(log_w - largest)
        return kernel.effective_sample_size(w), largest + jnp.log(jnp.mean(w))

    effective, log_mean = jax.lax.map(at, grid)
    most = jnp.minimum(jnp.max(jnp.nan_to_num(log_mean, nan=-jnp.inf)), 0.0)  # a right density has mean 1
    effective = jnp.where(log_mean >= most + jnp.log(0.5), jnp.nan_to_num(effective), 0.0)
    best = jnp.argmax(effective)
    enough = jnp.minimum(0.5 * effective[best], jnp.maximum(0.1 * effective[best], ENOUGH_ROWS))
    pilot = jnp.argmax(effective >= enough)
    found = effective[best] > 0.0
    return BandwidthRange(*(jnp.where(found, grid[i], high) for i in (pilot, best)))


def bootstrap_value(config: KMIFQEConfig, params: QParams, rows: Chunk) -> Float[Array, " chunk"]:
    """Return Q̄(s', a') of `rows` by the network `params` of `config`."""
    return values(params, rows.from_states, rows.next_actions, config.precision)


def taylor_bias(config: KMIFQEConfig, params: QParams, rows: Chunk) -> Float[Array, " chunk"]:
    """Return Q̄(s', a') − Q̄(s', π̃(s')) of `rows` up to second order, by the network `params` of `config`.

    ∇ₐQ̄ᵀδ + ½ δᵀ∇²ₐQ̄ δ at π̃(s'), δ = a' − π̃(s').
    """
    delta = rows.next_actions - rows.target_actions
    return taylor_terms(params, rows.from_states, rows.target_actions, delta, config.precision)


def for_rows(config: KMIFQEConfig, params: QParams, problem: Problem, rows: Int[Array, " chunk"]) -> Chunk:
    """Return what the network `params` of `config` reads of the `rows` of `problem`, given by their numbers."""
    fields = problem.next_states[rows], problem.next_actions[rows], problem.target_actions[rows]
    return _chunk(config, params, problem, *fields)


def _chunk(
    config: KMIFQEConfig,
    params: QParams,
    problem: Problem,
    next_states: Array,
    next_actions: Array,
    target_actions: Array,
) -> Chunk:
    _, half = action_scale(problem)
    return Chunk(
        state_part(params, standardized(problem, next_states), config.precision),
        scaled(problem, next_actions, cut=config.cut_actions),
        scaled(problem, target_actions, cut=config.cut_actions),
        (next_actions - target_actions) / half,
    )


def for_every_row(
    config: KMIFQEConfig,
    params: QParams,
    problem: Problem,
    term: Callable[[KMIFQEConfig, QParams, Chunk], Float[Array, " chunk"]],
) -> Float[Array, " n"]:
    """Return `term` (`bootstrap_value` or `taylor_bias`) of every in-sample row of `problem`.

    `config` says how actions are read, `params` is the network. Terminal rows, which come last, have 0.
    """
    zeros = jnp.zeros(problem.counts.in_sample)
    return _over_rows(config, lambda rows: (term(config, params, rows),), (zeros,), params, problem)[0]


def _over_rows(
    config: KMIFQEConfig,
    function: Callable[[Chunk], tuple[Array, ...]],
    outputs: tuple[Array, ...],
    params: QParams,
    problem: Problem,
) -> tuple[Array, ...]:
    """Return `outputs` with function(chunk of rows) written over the rows that go on, chunk by chunk.

    The last chunk reaches back over rows of the one before, so that every chunk has one size.
    """
    n = problem.counts.nonterminal
    if n == 0:
        return outputs
    size = min(n, CHUNK.get(jax.default_backend(), DEVICE_CHUNK))

    def body(i: Array, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
        start = jnp.minimum(i * size, n - size)
        fields = problem.next_states, problem.next_actions, problem.target_actions
        rows = _chunk(config, params, problem, *(_part(field, start, size) for field in fields))
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(output, part, start, axis=0)
            for output, part in zip(outputs, function(rows), strict=True)
        )

    return jax.lax.fori_loop(0, -(-n // size), body, outputs)


def _part(field: Array | HostRows, start: Array, size: int) -> Array:
    if isinstance(field, HostRows):
        return field[start + jnp.arange(size)]
    return jax.lax.dynamic_slice_in_dim(field, start, size, axis=0)
