"""Run any estimator: steps scanned, seeds under one vmap, progress reported, one compiled program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate, Estimator, State, config_dict
from kmifqe.problem import Problem

RECORDS = 100  # points of the trajectory, when the caller does not say


class Progress(NamedTuple):
    """What a watcher is told after every record."""

    estimator: str
    step: int
    steps: int
    steps_per_second: float  # since the record before
    values: np.ndarray  # V̂ per seed
    infos: dict[str, np.ndarray]  # each per seed


def fit(
    estimator: Estimator,
    problem: Problem,
    *,
    seeds: int | Sequence[int] = 10,
    steps: int | None = None,
    record_every: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Estimate:
    """Return the estimate after `steps` steps of every seed, with the trajectory that led there.

    The same seeds on the same machine and versions give the same bits, however often progress is recorded.
    `record_every` is rounded to a divisor or multiple of the estimator's refresh period.
    """
    seeds = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(seed) for seed in seeds)
    steps = estimator.default_steps if steps is None else steps
    if not seeds:
        raise InputError("seeds is empty; expected at least one")
    if steps < 1:
        raise InputError(f"steps is {steps}; expected at least 1")
    if record_every is not None and record_every < 1:
        raise InputError(f"record_every is {record_every}; expected at least 1")
    started = time.perf_counter()
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    state = _init(estimator, keys, problem)
    recorded, trajectory, infos = [], [], []
    ends = _record_ends(steps, record_every or -(-steps // RECORDS), estimator.refresh_every)
    done = 0
    for end in ends:
        clock = time.perf_counter()
        state, info = _advance(estimator, keys, state, problem, done, end)
        values = np.asarray(_values(estimator, state, problem))
        rate = (end - done) / (time.perf_counter() - clock)
        recorded.append(end)
        trajectory.append(values)
        infos.append({name: np.asarray(series) for name, series in info.items()})
        done = end
        if on_progress is not None:
            on_progress(Progress(estimator.name, end, steps, rate, values, infos[-1]))
    return Estimate(
        estimator=estimator.name,
        config=config_dict(estimator.config),
        gamma=round(float(problem.gamma), 7),
        seeds=seeds,
        steps=steps,
        values=trajectory[-1].astype(np.float64),
        recorded_steps=np.asarray(recorded),
        trajectory=np.stack(trajectory),
        infos={name: np.stack([info[name] for info in infos]) for name in infos[0]},
        seconds=time.perf_counter() - started,
        device=str(jax.devices()[0].device_kind),
        final_state=state,
    )


def _record_ends(steps: int, every: int, period: int) -> list[int]:
    """Return the step counts after which to record: multiples or divisors of the period, and the last.

    So the scan between two records or refreshes has one length, and is compiled once.
    """
    if period and every > period:
        every = every // period * period
    elif period:
        every = max(divisor for divisor in range(1, every + 1) if period % divisor == 0)
    return [*range(every, steps, every), steps]


@partial(jax.jit, static_argnums=0)
def _init(estimator: Estimator, keys: Array, problem: Problem) -> State:
    # fold_in(-1): the initial networks must not share randomness with step 0.
    init_keys = jax.vmap(lambda key: jax.random.fold_in(key, 2**31 - 1))(keys)
    return jax.vmap(estimator.init, in_axes=(0, None))(init_keys, problem)


@partial(jax.jit, static_argnums=0)
def _values(estimator: Estimator, state: State, problem: Problem) -> Array:
    return jax.vmap(estimator.value, in_axes=(0, None))(state, problem)


def _advance(
    estimator: Estimator, keys: Array, state: State, problem: Problem, done: int, end: int
) -> tuple[State, dict[str, Array]]:
    """Take the steps done..end, refreshing wherever a period ends; return the state and mean infos."""
    sums: dict[str, Any] = {}
    start = done
    while start < end:
        period = estimator.refresh_every
        stop = min(end, (start // period + 1) * period) if period else end
        state, info = _run_steps(estimator, stop - start, keys, state, problem, jnp.int32(start))
        if estimator.refresh is not None and stop % period == 0:
            state = _refresh(estimator.refresh, jnp.int32(stop), state, problem)
        for name, total in info.items():
            sums[name] = sums.get(name, 0.0) + total
        start = stop
    return state, {name: total / (end - done) for name, total in sums.items()}


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _run_steps(
    estimator: Estimator, count: int, keys: Array, state: State, problem: Problem, start: Array
) -> tuple[State, dict[str, Array]]:
    """Scan `count` steps of all seeds; return the state and the sum of each info."""

    def one(state: State, t: Array) -> tuple[State, dict[str, Array]]:
        step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, t)
        return jax.vmap(estimator.step, in_axes=(0, None, 0, None))(step_keys, t, state, problem)

    state, infos = jax.lax.scan(one, state, start + jnp.arange(count))
    return state, jax.tree.map(lambda series: series.sum(axis=0), infos)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _refresh(
    refresh: Callable[[Array, State, Problem], State], t: Array, state: State, problem: Problem
) -> State:
    return jax.vmap(refresh, in_axes=(None, 0, None))(t, state, problem)
