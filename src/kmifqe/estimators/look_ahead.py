"""What a frozen target network says of every row: computed once per copy, read at every step."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.estimators.base import action_scale, scaled, standardized
from kmifqe.maths.hessians import (
    metric_distances,
    state_part,
    taylor_terms,
    values,
    values_and_hessians,
)
from kmifqe.maths.mlp import QParams
from kmifqe.problem import HostRows, Problem

CHUNK = {"cpu": 1_024}  # rows whose Hessians are in flight at once: what a core's cache holds
DEVICE_CHUNK = 16_384  # elsewhere: enough to fill the device


class Ahead(NamedTuple):
    """Arrays over the in-sample rows; the rows that terminated come last and have no next step: zeros."""

    squared: Float[Array, "going_on k"]  # z² per dimension (k = d) or ‖z‖² (k = 1), z = Lᵀ(a' − π̃(s'))
    laplacian: Float[Array, " n"]  # tr ∇²ₐQ̄ at (s', π̃(s'))
    next_value: Float[Array, " n"]  # Q̄(s', a')
    target_value: Float[Array, " n"]  # Q̄(s', π̃(s'))
    bend: Float[Array, " n"] | None  # ∇ₐQ̄ᵀδ + ½ δᵀ∇²ₐQ̄ δ at π̃(s'), δ = a' − π̃(s'); None: nobody asked


def nothing_ahead(problem: Problem, factors: int, *, bends: bool = False) -> Ahead:
    """Return zeros in the shapes of `Ahead`."""
    n = problem.counts.in_sample
    squared = jnp.zeros((problem.counts.going_on, factors))
    return Ahead(squared, jnp.zeros(n), jnp.zeros(n), jnp.zeros(n), jnp.zeros(n) if bends else None)


def look_ahead(
    params: QParams,
    problem: Problem,
    factors: int,
    metric_floor: float | None,
    precision: str,
    *,
    bends: bool = False,
) -> Ahead:
    """Return what the target network `params` says of every row; `metric_floor=None`: the identity metric."""

    def chunk(rows: _Rows) -> tuple[Array, ...]:
        target_value, H = values_and_hessians(params, rows.from_states, rows.target_actions, precision)
        z = rows.distance
        if metric_floor is not None:
            z = metric_distances(H, z, metric_floor, precision)
        squared = z**2 if factors > 1 else jnp.sum(z**2, axis=1, keepdims=True)
        next_value = values(params, rows.from_states, rows.next_actions, precision)
        found = squared, jnp.trace(H, axis1=1, axis2=2), next_value, target_value
        return (*found, _bend(params, rows, precision)) if bends else found

    zeros = [each for each in nothing_ahead(problem, factors, bends=bends) if each is not None]
    found = list(_over_rows(chunk, tuple(zeros), params, problem, precision))
    return Ahead(*(found if bends else [*found, None]))


def new_values(params: QParams, problem: Problem, ahead: Ahead, precision: str) -> Ahead:
    """Return `ahead` with the bootstrap values of the target network `params`, and the rest as it was.

    What is left shapes the kernel: metric, and the Laplacian and value at the target action inside h.
    """

    def chunk(rows: _Rows) -> tuple[Array, ...]:
        found = values(params, rows.from_states, rows.next_actions, precision)
        if ahead.bend is None:
            return (found,)
        return found, _bend(params, rows, precision)

    old = (ahead.next_value,) if ahead.bend is None else (ahead.next_value, ahead.bend)
    new = _over_rows(chunk, old, params, problem, precision)
    return ahead._replace(**dict(zip(("next_value", "bend"), new)))


class _Rows(NamedTuple):
    """A chunk of rows, in the network's units."""

    from_states: Float[Array, "chunk hidden"]  # what the next states give the first layer
    next_actions: Float[Array, "chunk d"]
    target_actions: Float[Array, "chunk d"]
    distance: Float[Array, "chunk d"]  # a' − π̃(s'), in half action ranges


def _bend(params: QParams, rows: _Rows, precision: str) -> Float[Array, " chunk"]:
    return taylor_terms(params, rows.from_states, rows.target_actions, rows.distance, precision)


def _over_rows(function, outputs: tuple, params: QParams, problem: Problem, precision: str) -> tuple:  # type: ignore[no-untyped-def,type-arg]
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
            state_part(params, standardized(problem, next_states), precision),
            scaled(problem, next_actions),
            scaled(problem, target_actions),
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
