"""What a run will take, before it begins: memory, and time; and where its data should be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from kmifqe.estimators.base import Estimator, State
from kmifqe.estimators.fit import Plan, _init, _refresh, _run_steps, make_plan, seeded
from kmifqe.mdp.host_rows import free_device_bytes, free_host_bytes
from kmifqe.mdp.problem import Problem

MARGIN = 0.9  # share of the free memory that a forecast may fill: allocators leave gaps
TIMED_STEPS = 50
TIMED_SECONDS = 0.5  # of calls to a program whose time is taken
TIMED_ROWS = 32_768  # rows of a timed initialisation and refresh, which are linear in rows
FETCH_SECONDS = 5e-4  # one minibatch of one field from host memory, on two CPU cores (docs/memory.md)
FETCHES = 4  # of them in a step of any estimator here

Result = TypeVar("Result")


@dataclass(frozen=True)
class Forecast:
    """Memory in bytes and time in seconds that a run will take."""

    estimator: str
    seeds: int
    steps: int
    data_on_device: int
    data_on_host: int
    state: int  # of all seeds
    working: int  # what the largest compiled program needs besides its inputs and results
    free: int  # memory that is left on the device beside the data
    device_is_host: bool  # a CPU: there is no other memory to put the data in
    seconds: float | None = None  # without compilation; None: not timed

    @property
    def device(self) -> int:
        """Bytes of device memory at the peak, data included."""
        return self.data_on_device + self.needed

    @property
    def needed(self) -> int:
        """Bytes that the run takes besides the data."""
        return self.state + self.working

    @property
    def fits(self) -> bool:
        """Whether what is needed is there, with a margin."""
        return self.needed <= MARGIN * self.free

    def __str__(self) -> str:
        host = f", {size(self.data_on_host)} of data in host memory" if self.data_on_host else ""
        lasts = "" if self.seconds is None else f", about {duration(self.seconds)}"
        return (
            f"{self.estimator}, {self.seeds} seed{'s' * (self.seeds > 1)}, {self.steps:,} steps: "
            f"{size(self.device)} of memory (data {size(self.data_on_device)}, seeds {size(self.state)}, "
            f"working space {size(self.working)}){host}{lasts}"
        )

    @property
    def shortage(self) -> str:
        """What is missing and what can be done, in a sentence or two; empty where the run fits."""
        if self.fits:
            return ""
        lacking = (
            f"{self.estimator} needs about {size(self.needed)} of memory besides its data, "
            f"and {size(self.free)} is free"
        )
        return f"{lacking}; take fewer seeds at a time, or fewer rows"


def foresee(
    estimator: Estimator,
    problem: Problem,
    *,
    seeds: int | Sequence[int] = 10,
    steps: int | None = None,
    timed: bool = True,
    bootstrap: bool = False,
) -> Forecast:
    """Return what `fit` with these arguments will take.

    Memory is read off the programs that `fit` will run: they are compiled here, and not again there. Time is
    measured: a few steps, and an initialisation and a refresh of a few thousand rows.
    """
    plan = make_plan(estimator, problem, seeds=seeds, steps=steps, bootstrap=bootstrap)
    keys, problem = seeded(plan, problem)
    state = jax.eval_shape(partial(_init, estimator), keys, problem)
    free_on_device = free_device_bytes()
    forecast = Forecast(
        estimator=estimator.name,
        seeds=len(plan.seeds),
        steps=plan.steps,
        data_on_device=problem.device_bytes,
        data_on_host=problem.host_bytes,
        state=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
        working=_working_bytes(estimator, plan, keys, state, problem),
        free=free_host_bytes() if free_on_device is None else free_on_device,
        device_is_host=free_on_device is None,
    )
    if timed and forecast.fits:
        return replace(forecast, seconds=_seconds(estimator, plan, keys, state, problem))
    return forecast


def placed(
    estimator: Estimator,
    problem: Problem,
    *,
    seeds: int | Sequence[int] = 10,
    steps: int | None = None,
    timed: bool = False,
    bootstrap: bool = False,
) -> tuple[Problem, Forecast, str]:
    """Return the problem with its data where the run fits, the forecast for it, and what is to be said of it.

    Where data and seeds together exceed the device's memory, the wide fields move to host memory; the
    problem given is then of no more use. The sentence is empty where nothing need be said.
    """
    ask = partial(foresee, estimator, seeds=seeds, steps=steps, timed=timed, bootstrap=bootstrap)
    said: list[str] = []
    # Compiling tries kernels out on the device, beside the data: its memory may give out here already.
    forecast, problem = with_fallback(ask, problem, said.append)
    if forecast.fits or forecast.device_is_host or problem.is_on_host:
        return problem, forecast, " ".join((*said, forecast.shortage)).strip()
    problem = problem.on_host(release=True)
    there = ask(problem)
    return problem, there, f"{_moved(forecast.needed, forecast.free, there)} {there.shortage}".rstrip()


def with_fallback(
    run: Callable[[Problem], Result], problem: Problem, say: Callable[[str], None]
) -> tuple[Result, Problem]:
    """Return run(problem) and the problem to go on with; where device memory gives out, both from host memory.

    The problem given is then of no more use.
    """
    try:
        return run(problem), problem
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or problem.is_on_host:
            raise
    on_host = problem.on_host(release=True)
    say(
        f"the device's memory gave out: {size(on_host.host_bytes)} of data move to host memory and reach the "
        f"device by minibatch, {_slower()}"
    )
    return run(on_host), on_host


def size(bytes_: int) -> str:
    """Return an amount of memory as a person says it."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if bytes_ >= scale:
            return f"{bytes_ / scale:.1f} {unit}"
    return f"{bytes_ / 2**10:.0f} KiB"


def duration(seconds: float) -> str:
    """Return a length of time as a person says it."""
    for unit, scale in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds:.0f} s"


def _moved(needed: int, free: int, there: Forecast) -> str:
    return (
        f"{there.estimator} needs about {size(needed)} on the device besides its data, and {size(free)} is free: "
        f"{size(there.data_on_host)} of data move to host memory and reach the device by minibatch, {_slower()}"
    )


def _slower() -> str:
    return f"which adds about {1e3 * FETCHES * FETCH_SECONDS:.0f} ms to every step."


def _steps_at_once(estimator: Estimator, plan: Plan) -> int:
    """Return how many steps `fit` scans in one program."""
    return min(plan.record_every, estimator.refresh_every or plan.steps, plan.steps)


def _working_bytes(estimator: Estimator, plan: Plan, keys: Array, state: State, problem: Problem) -> int:
    """Return the most that a program of the run holds beyond the problem and one state."""
    count, t = _steps_at_once(estimator, plan), jax.ShapeDtypeStruct((), jnp.int32)
    working = [_beyond_inputs(_init.lower(estimator, keys, problem), makes_the_state=True)]
    working.append(_beyond_inputs(_run_steps.lower(estimator, count, keys, state, problem, t)))
    if estimator.refresh is not None:
        for kind in _refreshes(estimator, plan):
            working.append(_beyond_inputs(_refresh.lower(estimator.refresh, kind, state, problem)))
    return max(working)


def _refreshes(estimator: Estimator, plan: Plan) -> Counter[str]:
    """Return how many refreshes of each kind the run will have."""
    every = estimator.refresh_every
    return Counter(
        estimator.refresh_kind(step) for step in range(every, plan.steps + 1, every or plan.steps + 1)
    )


def _beyond_inputs(lowered: Any, *, makes_the_state: bool = False) -> int:
    """Return a program's temporary memory, and what it returns without reusing its input's memory."""
    memory = lowered.compile().memory_analysis()
    if memory is None:  # a device that does not tell
        return 0
    returned = 0 if makes_the_state else memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.temp_size_in_bytes + returned)


def _seconds(estimator: Estimator, plan: Plan, keys: Array, state: State, problem: Problem) -> float:
    """Return how long the run will last, from the time of its parts."""
    refresh = estimator.refresh
    # Without a refresh nothing is computed for every row, and the program for all rows is compiled already.
    some = problem if refresh is None else problem.head(TIMED_ROWS)
    share = 1.0 if some is problem else problem.counts.in_sample / some.counts.in_sample
    timed, init_seconds = _mean_time(lambda _: _init(estimator, keys, some), None)
    total = share * init_seconds
    if refresh is not None:
        for kind, times in _refreshes(estimator, plan).items():
            timed, seconds = _mean_time(partial(_renew, refresh, kind, some), timed)
            total += times * share * seconds
    timed = _as_large(timed, state)
    count = min(_steps_at_once(estimator, plan), TIMED_STEPS)
    _, seconds = _mean_time(
        lambda kept: _run_steps(estimator, count, keys, kept, problem, jnp.int32(0))[0], timed
    )
    return total + plan.steps / count * seconds


def _renew(
    refresh: Callable[[str, State, Problem], State], kind: str, problem: Problem, state: State
) -> State:
    return _refresh(refresh, kind, state, problem)


def _as_large(timed: State, real: State) -> State:
    """Return a state as large as the real one, without the time to compute it: what a step costs, it costs here.

    Of many rows the tree that draws them has levels that it lacks of a few: they hold ones.
    """
    known = dict(jax.tree_util.tree_leaves_with_path(timed))

    def grown(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> Array:
        value = known.get(path)
        if value is None:
            return jnp.ones(leaf.shape, leaf.dtype)
        return value if value.shape == leaf.shape else _repeated(value, leaf.shape)

    return jax.tree_util.tree_map_with_path(grown, real)


def _repeated(value: Array, shape: tuple[int, ...]) -> Array:
    """Return each seed's values over and over, until the shape is full."""
    return jnp.stack([jnp.resize(one, shape[1:]) for one in value])


def _mean_time(advance: Callable[[State], State], state: State) -> tuple[State, float]:
    """Return the state after some calls, and the mean time of all but the first, which may compile."""
    state = jax.block_until_ready(advance(state))
    calls, started = 0, time.perf_counter()
    while (taken := time.perf_counter() - started) < TIMED_SECONDS:
        state = jax.block_until_ready(advance(state))
        calls += 1
    return state, taken / calls
