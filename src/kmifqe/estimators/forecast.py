"""How much memory and time a fit will take, before it begins, and where its data should be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from kmifqe.estimators.base import Estimator, Refresh, State
from kmifqe.estimators.fit import Plan, _init, _refresh, _run_steps, seeded
from kmifqe.io.format import duration, size
from kmifqe.mdp.host_rows import free_device_bytes
from kmifqe.mdp.memory import free_host_bytes
from kmifqe.mdp.problem import OF_POLICY, Problem

MARGIN = 0.9  # share of the free memory that a forecast may fill: allocators leave gaps
PROCESS = (
    640 * 2**20
)  # bytes that Python, the libraries and the compiler take on a CPU, at most (docs/guides/memory.md)
TIMED_STEPS = 50
TIMED_SECONDS = 0.5  # for which a program is called again and again to measure its time
TIMED_ROWS = 32_768  # rows of a timed initialisation and refresh, which are linear in rows
FETCH_SECONDS = 5e-4  # one minibatch of one field from host memory, on two CPU cores (docs/guides/memory.md)
WORKING_STATES = 3  # sizes of a policy's state that its share of a program takes, at most
FETCHES = 4  # of them in a step of any estimator here

Result = TypeVar("Result")


@dataclass(frozen=True)
class Forecast:
    """Memory in bytes and time in seconds that a fit will take."""

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
    data_mapped: int = 0  # in files, beside the other data: needs no memory, and is faster where some is free

    @property
    def device(self) -> int:
        """Bytes of device memory at the peak, data included."""
        return self.data_on_device + self.needed

    @property
    def process(self) -> int:
        """Bytes of host memory that the process takes at its peak; mapped data are not counted."""
        return PROCESS + self.data_on_host + (self.device if self.device_is_host else 0)

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
        host += f", {size(self.data_mapped)} of data mapped from disk" if self.data_mapped else ""
        own = f", {size(PROCESS)} more for Python and the compiler" if self.device_is_host else ""
        lasts = "" if self.seconds is None else f", about {duration(self.seconds)}"
        return (
            f"{self.estimator}, {self.seeds} seed{'s' * (self.seeds > 1)}, {self.steps:,} steps: "
            f"{size(self.device)} of memory (data {size(self.data_on_device)}, seeds {size(self.state)}, "
            f"working space {size(self.working)}){host}{own}{lasts}"
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


def make_forecast(estimator: Estimator, problem: Problem, plan: Plan, *, timed: bool = True) -> Forecast:
    """Return how much memory and time the fit of a plan will take.

    Memory is read off the programs that `fit` will run: they are compiled here, and not again there. Time is
    measured: a few steps, and an initialisation and a refresh of a few thousand rows.

    `estimator`, `problem` and `plan` are those of the fit. `timed`: whether time is measured, by default yes; it
    takes about a second for each program.
    """
    keys, problem = seeded(plan, problem)
    state = jax.eval_shape(partial(_init, estimator), keys, problem)
    free_on_device = free_device_bytes()
    forecast = Forecast(
        estimator=estimator.name,
        seeds=len(plan.seeds),
        steps=plan.steps,
        data_on_device=problem.device_bytes - problem.mapped_bytes,
        data_mapped=problem.mapped_bytes,
        data_on_host=problem.host_bytes,
        state=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
        working=_working_bytes(estimator, plan, keys, state, problem),
        free=free_host_bytes() if free_on_device is None else free_on_device,
        device_is_host=free_on_device is None,
    )
    if timed and forecast.fits:
        return replace(forecast, seconds=_seconds(estimator, plan, keys, state, problem))
    return forecast


def policies_at_once(estimator: Estimator, problem: Problem, plan: Plan, policies: int) -> int:
    """Return how many of so many `policies` to train side by side: as many as memory holds, in turns of one size.

    `estimator`, `problem` and `plan` are those of the fits; the problem has one policy. On a CPU it is one: its
    networks fill the cores, five policies at a time saved a fifth of the time at most, and a program for one policy
    has the same bits wherever it runs, as a task on a cluster or here.
    """
    free = free_device_bytes()
    if free is None or problem.is_on_host:
        return 1
    keys, seeded_problem = seeded(plan, problem)
    state = jax.eval_shape(partial(_init, estimator), keys, seeded_problem)
    own = sum(getattr(problem, name).nbytes for name in OF_POLICY if getattr(problem, name) is not None)
    # A program may hold a second state while it makes the next one; what else it needs is its working space.
    needed = own + WORKING_STATES * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    most = max(1, min(policies, int(MARGIN * free / max(needed, 1))))
    turns = -(-policies // most)
    return -(-policies // turns)


def placed(
    estimator: Estimator, problem: Problem, plan: Plan, *, timed: bool = False
) -> tuple[Problem, Forecast, str]:
    """Return the problem with its data where the fit has room, the forecast for it, and a warning.

    Where data and seeds together exceed the device's memory, the wide fields move to host memory; the `problem`
    given is then of no more use. The warning is empty where there is nothing to warn of. `estimator`, `plan` and
    `timed` are those of `make_forecast`; by default no time is measured.
    """
    forecast_for = partial(make_forecast, estimator, plan=plan, timed=timed)
    warnings: list[str] = []
    # Compiling tries kernels out on the device, beside the data: its memory may give out here already.
    forecast, problem = with_fallback(forecast_for, problem, warnings.append)
    if forecast.fits or forecast.device_is_host or problem.is_on_host:
        return problem, forecast, " ".join((*warnings, forecast.shortage)).strip()
    problem = problem.on_host(release=True)
    from_host = forecast_for(problem)
    warning = (
        f"{estimator.name} needs about {size(forecast.needed)} on the device besides its data, and "
        f"{size(forecast.free)} is free: {_moves(from_host.data_on_host)} {from_host.shortage}"
    )
    return problem, from_host, warning.rstrip()


def with_fallback(
    run: Callable[[Problem], Result], problem: Problem, say: Callable[[str], None]
) -> tuple[Result, Problem]:
    """Return run(problem) and the problem to go on with; where device memory gives out, both from host memory.

    `run`: what is to be done, once or twice. `problem`: its argument; of no more use once its data has moved.
    `say`: called with a sentence when the data moves.
    """
    try:
        return run(problem), problem
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or problem.is_on_host:
            raise
    on_host = problem.on_host(release=True)
    say(f"the device's memory gave out: {_moves(on_host.host_bytes)}")
    return run(on_host), on_host


def _moves(data: int) -> str:
    return (
        f"{size(data)} of data move to host memory and reach the device by minibatch, which adds about "
        f"{1e3 * FETCHES * FETCH_SECONDS:.0f} ms to every step."
    )


def _steps_at_once(estimator: Estimator, plan: Plan) -> int:
    """Return how many steps `fit` scans in one program."""
    every = plan.steps if estimator.refresh is None else estimator.refresh.every
    return min(plan.record_every, every, plan.steps)


def _working_bytes(estimator: Estimator, plan: Plan, keys: Array, state: State, problem: Problem) -> int:
    """Return the most that a program of the run holds beyond the problem and one state."""
    count, t = _steps_at_once(estimator, plan), jax.ShapeDtypeStruct((), jnp.int32)
    working = [_beyond_inputs(_init.lower(estimator, keys, problem), makes_the_state=True)]
    working.append(_beyond_inputs(_run_steps.lower(estimator, count, keys, state, problem, t)))
    if estimator.refresh is not None:
        for kind in _refreshes(estimator.refresh, plan.steps):
            working.append(_beyond_inputs(_refresh.lower(estimator.refresh.run, kind, state, problem)))
    return max(working)


def _refreshes(refresh: Refresh, steps: int) -> Counter[Hashable]:
    """Return how many refreshes of each kind a run of `steps` steps has."""
    return Counter(refresh.kind(step) for step in range(refresh.every, steps + 1, refresh.every))


def _beyond_inputs(lowered: Any, *, makes_the_state: bool = False) -> int:
    """Return a program's temporary memory, and what it returns without reusing its input's memory."""
    memory = lowered.compile().memory_analysis()
    if memory is None:  # a device that does not know
        return 0
    returned = 0 if makes_the_state else memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.temp_size_in_bytes + returned)


def _seconds(estimator: Estimator, plan: Plan, keys: Array, state: State, problem: Problem) -> float:
    """Return how long the run will last, from the time of its parts."""
    refresh = estimator.refresh
    # Without a refresh nothing is computed for every row, and the program for all rows is compiled already.
    some = problem if refresh is None else problem.head(TIMED_ROWS)
    share = 1.0 if some is problem else problem.counts.in_sample / some.counts.in_sample
    small_state, init_seconds = _mean_time(lambda _: _init(estimator, keys, some), None)
    total = share * init_seconds
    if refresh is not None:
        for kind, count in _refreshes(refresh, plan.steps).items():
            renew = partial(_renew, refresh, kind, some)
            small_state, seconds = _mean_time(renew, small_state)
            total += count * share * seconds
    count = min(_steps_at_once(estimator, plan), TIMED_STEPS)
    _, seconds = _mean_time(
        lambda kept: _run_steps(estimator, count, keys, kept, problem, jnp.int32(0))[0],
        _enlarged(small_state, state),
    )
    return total + plan.steps / count * seconds


def _renew(refresh: Refresh, kind: Hashable, problem: Problem, state: State) -> State:
    return _refresh(refresh.run, kind, state, problem)


def _enlarged(small: State, real: State) -> State:
    """Return a state with the shapes of `real`, filled with the values of one that was made from fewer rows.

    The time of a step depends on the shapes and hardly on the values, and computing the real state could take
    minutes. The tree that rows are drawn from is deeper for many rows than for few: levels that the small state
    does not have are filled with ones.
    """
    known = dict(jax.tree_util.tree_leaves_with_path(small))

    def grown(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> Array:
        value = known.get(path)
        if value is None:
            return jnp.ones(leaf.shape, leaf.dtype)
        if value.shape == leaf.shape:
            return value
        return jnp.stack([jnp.resize(of_seed, leaf.shape[1:]) for of_seed in value])

    return jax.tree_util.tree_map_with_path(grown, real)


def _mean_time(advance: Callable[[State], State], state: State) -> tuple[State, float]:
    """Return the state after some calls, and the mean time of all but the first, which may compile."""
    state = jax.block_until_ready(advance(state))
    calls, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < TIMED_SECONDS:
        state = jax.block_until_ready(advance(state))
        calls += 1
    return state, elapsed / calls
