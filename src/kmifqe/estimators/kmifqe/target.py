"""What a frozen target network says of every row: computed once per copy, read at every step."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.estimators.base import action_scale, scaled, standardized
from kmifqe.maths.batches import metric_distances, state_part, taylor_terms, values, values_and_hessians
from kmifqe.maths.mlp import QParams
from kmifqe.mdp.host_rows import HostRows
from kmifqe.mdp.problem import Problem

CHUNK = {"cpu": 1_024}  # rows whose Hessians are in flight at once: what a core's cache holds
DEVICE_CHUNK = 16_384  # elsewhere: enough to fill the device


class Reading(NamedTuple):
    """How a network reads rows."""

    precision: str
    cut_actions: bool = False  # to the action box


class Ahead(NamedTuple):
    """Arrays over the in-sample rows; the rows that terminated come last and have no next step: zeros."""

    squared: Float[Array, "going_on k"]  # z² per dimension (k = d) or ‖z‖² (k = 1), z = Lᵀ(a' − π̃(s'))
    laplacian: Float[Array, " n"]  # tr ∇²ₐQ̄ at (s', π̃(s'))
    next_value: Float[Array, " n"]  # Q̄(s', a')
    target_value: Float[Array, " n"]  # Q̄(s', π̃(s'))
    bend: Float[Array, " n"] | None  # Q̄(s', a') − Q̄(s', π̃(s')): `bends`, or `changes`; None: nobody asked


def look_ahead(
    params: QParams,
    problem: Problem,
    factors: int,
    metric_floor: float | None,
    reading: Reading,
) -> Ahead:
    """Return what the target network `params` says of every row; `metric_floor=None`: the identity metric."""

    def chunk(rows: _Rows) -> tuple[Array, ...]:
        target_value, H = values_and_hessians(
            params, rows.from_states, rows.target_actions, reading.precision
        )
        z = rows.distance
        if metric_floor is not None:
            z = metric_distances(H, z, metric_floor, reading.precision)
        squared = z**2 if factors > 1 else jnp.sum(z**2, axis=1, keepdims=True)
        next_value = values(params, rows.from_states, rows.next_actions, reading.precision)
        return squared, jnp.trace(H, axis1=1, axis2=2), next_value, target_value

    n = problem.counts.in_sample
    nothing = jnp.zeros((problem.counts.going_on, factors)), jnp.zeros(n), jnp.zeros(n), jnp.zeros(n)
    squared, laplacian, next_value, target_value = _over_rows(chunk, nothing, params, problem, reading)
    return Ahead(squared, laplacian, next_value, target_value, bend=None)


def changes(params: QParams, problem: Problem, reading: Reading) -> Float[Array, " n"]:
    """Return what a' in place of π̃(s') changes of the network's value at every row."""

    def chunk(rows: _Rows) -> tuple[Array, ...]:
        at = partial(values, params, rows.from_states, precision=reading.precision)
        return (at(rows.next_actions) - at(rows.target_actions),)

    return _over_rows(chunk, (jnp.zeros(problem.counts.in_sample),), params, problem, reading)[0]


def bends(params: QParams, problem: Problem, reading: Reading) -> Float[Array, " n"]:
    """Return the same up to second order: ∇ₐQ̄ᵀδ + ½ δᵀ∇²ₐQ̄ δ at π̃(s'), δ = a' − π̃(s')."""

    def chunk(rows: _Rows) -> tuple[Array, ...]:
        moved = rows.next_actions - rows.target_actions
        return (taylor_terms(params, rows.from_states, rows.target_actions, moved, reading.precision),)

    return _over_rows(chunk, (jnp.zeros(problem.counts.in_sample),), params, problem, reading)[0]


def new_values(params: QParams, problem: Problem, ahead: Ahead, reading: Reading) -> Ahead:
    """Return `ahead` with the bootstrap values of the target network `params`, and the rest as it was.

    What is left shapes the kernel: metric, and the Laplacian and value at the target action inside h.
    """

    def chunk(rows: _Rows) -> tuple[Array, ...]:
        return (values(params, rows.from_states, rows.next_actions, reading.precision),)

    (new,) = _over_rows(chunk, (ahead.next_value,), params, problem, reading)
    return ahead._replace(next_value=new)


class _Rows(NamedTuple):
    """A chunk of rows, in the network's units."""

    from_states: Float[Array, "chunk hidden"]  # what the next states give the first layer
    next_actions: Float[Array, "chunk d"]
    target_actions: Float[Array, "chunk d"]
    distance: Float[Array, "chunk d"]  # a' − π̃(s'), in half action ranges, whatever the network reads


def _over_rows(function, outputs: tuple, params: QParams, problem: Problem, reading: Reading) -> tuple:  # type: ignore[no-untyped-def,type-arg]
    """Return `outputs` with function(chunk of rows) written over the rows that go on, chunk by chunk.

    The last chunk reaches back over rows of the one before, so that every chunk has one size.
    """
    n = problem.counts.going_on
    if n == 0:
        return tuple(outputs)
    size = min(n, CHUNK.get(jax.default_backend(), DEVICE_CHUNK))
    _, half = action_scale(problem)

    def body(i: Array, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
        start = jnp.minimum(i * size, n - size)
        next_states, next_actions, target_actions = (
            _part(field, start, size)
            for field in (problem.next_states, problem.next_actions, problem.target_actions)
        )
        rows = _Rows(
            state_part(params, standardized(problem, next_states), reading.precision),
            scaled(problem, next_actions, cut=reading.cut_actions),
            scaled(problem, target_actions, cut=reading.cut_actions),
            (next_actions - target_actions) / half,
        )
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(output, part, start, axis=0)
            for output, part in zip(outputs, function(rows), strict=True)
        )

    return jax.lax.fori_loop(0, -(-n // size), body, tuple(outputs))


def _part(field: Array | HostRows, start: Array, size: int) -> Array:
    if isinstance(field, HostRows):
        return field[start + jnp.arange(size)]
    return jax.lax.dynamic_slice_in_dim(field, start, size, axis=0)
