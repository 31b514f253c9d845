"""Forecasts against what runs really hold, and data that moves to the host when the device is too small."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import kmifqe.estimators.forecast as module
from estimators.small import TRAINED, logged, lqr_problem, quick
from kmifqe.estimators import Estimator, Refresh, fit
from kmifqe.estimators.fit import Plan, make_plan
from kmifqe.estimators.forecast import Forecast, make_forecast, placed, with_fallback
from kmifqe.io.format import duration, size
from kmifqe.mdp.problem import Problem

GIB = 2**30
SOME = Forecast("kmifqe", 3, 1_000_000, 2 * GIB, 0, GIB, GIB // 2, 40 * GIB, False, 7_200.0)


def fresh_problem() -> Problem:
    """Return a problem whose arrays no other test shares: it may be given up."""
    world, log = logged()
    return Problem.build(log, world.policy, world.behavior, 0.8)


class ToyState(NamedTuple):
    """A line fitted to rewards, and a number for every row that refreshes double."""

    line: Array
    per_row: Array


@dataclass(frozen=True)
class ToyConfig:
    batch: int = 4


@cache
def toy(batch: int = 4) -> Estimator:
    """Return an estimator that compiles in no time."""

    def init(key: Array, problem: Problem) -> ToyState:
        return ToyState(jnp.zeros(problem.state_dim), problem.rewards[: problem.counts.in_sample])

    def step(key: Array, t: Array, state: ToyState, problem: Problem) -> tuple[ToyState, dict[str, Array]]:
        rows = jax.random.randint(key, (batch,), 0, len(problem))
        error = problem.rewards[rows] - problem.states[rows] @ state.line
        line = state.line + 0.1 * error @ problem.states[rows] / batch
        return state._replace(line=line), {"loss": jnp.mean(error**2)}

    def refresh(kind: None, state: ToyState, problem: Problem) -> ToyState:
        return state._replace(per_row=2.0 * state.per_row)

    def value(state: ToyState, problem: Problem) -> Array:
        return jnp.mean(problem.first_states @ state.line)

    return Estimator("toy", ToyConfig(batch), init, step, value, 100, refresh=Refresh(refresh, every=10))


def forecast_of(
    estimator: Estimator, problem: Problem, seeds: int, steps: int, *, timed: bool = True
) -> Forecast:
    plan = make_plan(estimator, problem, seeds=seeds, steps=steps)
    return make_forecast(estimator, problem, plan, timed=timed)


def placed_of(estimator: Estimator, problem: Problem) -> tuple[Problem, Forecast, str]:
    return placed(estimator, problem, make_plan(estimator, problem, seeds=2, steps=4))


def bytes_of(tree: object) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def test_data_in_host_memory_changes_no_bit_of_the_estimate() -> None:
    problem, estimator = lqr_problem()[0], toy()
    resident, from_host = (
        fit(estimator, p, seeds=2, steps=6, record_every=3) for p in (problem, problem.on_host())
    )
    np.testing.assert_array_equal(resident.trajectory, from_host.trajectory)
    assert np.isfinite(from_host.values).all()


@pytest.mark.parametrize("name", TRAINED)
def test_every_estimator_can_read_its_data_from_host_memory(name: str) -> None:
    """Tracing is enough: it refuses all but row numbers."""
    estimator, problem = quick(name), lqr_problem()[0].on_host()
    key, t = jax.random.key(0), jnp.int32(0)
    state = jax.eval_shape(estimator.init, key, problem)
    stepped, _ = jax.eval_shape(estimator.step, key, t, state, problem)
    assert jax.tree.structure(stepped) == jax.tree.structure(state)
    assert jax.eval_shape(estimator.value, state, problem).shape == ()
    if estimator.refresh is not None:
        kinds = {estimator.refresh.kind(step) for step in range(0, 1_000, estimator.refresh.every)}
        for kind in kinds:
            refreshed = jax.eval_shape(partial(estimator.refresh.run, kind), state, problem)
            assert jax.tree.structure(refreshed) == jax.tree.structure(state)


def test_the_forecast_counts_the_states_that_the_run_ends_with() -> None:
    problem = lqr_problem()[0]
    forecast = forecast_of(toy(), problem, seeds=2, steps=20, timed=False)
    estimate = fit(toy(), problem, seeds=2, steps=20)
    assert forecast.state == bytes_of(estimate.final_state)
    assert forecast.data_on_device == bytes_of(problem)
    assert forecast.device == forecast.data_on_device + forecast.state + forecast.working
    assert (forecast.seeds, forecast.steps, forecast.seconds) == (2, 20, None)


def test_working_space_is_what_the_compiled_programs_say() -> None:
    problem = lqr_problem()[0]
    few, many = (
        forecast_of(toy(batch), problem, seeds=1, steps=4, timed=False).working for batch in (4, 100_004)
    )
    assert many - few >= 100_000 * 4 * 2  # at the least the row numbers and the errors


def test_a_timed_forecast_adds_up_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = lqr_problem()[0]
    rows = problem.counts.in_sample
    monkeypatch.setattr(module, "TIMED_ROWS", rows // 4)
    monkeypatch.setattr(module, "TIMED_STEPS", 5)
    calls = []

    def mean_time(advance, state):
        calls.append(advance)
        return advance(state), {1: 2.0, 2: 3.0, 3: 0.5}[len(calls)]  # init, refresh, 5 steps

    monkeypatch.setattr(module, "_mean_time", mean_time)
    forecast = forecast_of(toy(), problem, seeds=2, steps=1_000)
    share = rows / (rows // 4)
    assert forecast.seconds == pytest.approx(share * 2.0 + 100 * share * 3.0 + 1_000 / 5 * 0.5)


def test_a_forecast_is_timed_on_fewer_rows_than_the_logs_trees_are_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TIMED_ROWS", 1_024)  # a tree of two levels, where the log's 5,000 have three
    forecast = forecast_of(quick("kmifqe"), lqr_problem()[0], seeds=2, steps=600)
    assert forecast.seconds is not None
    assert forecast.seconds > 0


def test_a_forecast_reads_as_a_sentence() -> None:
    assert str(SOME) == (
        "kmifqe, 3 seeds, 1,000,000 steps: 3.5 GiB of memory (data 2.0 GiB, seeds 1.0 GiB, working space "
        "512.0 MiB), about 2.0 h"
    )
    on_host = replace(SOME, seeds=1, data_on_device=0, data_on_host=2 * GIB, seconds=None)
    assert str(on_host).endswith("working space 512.0 MiB), 2.0 GiB of data in host memory")


def test_what_does_not_fit_is_said_with_sizes() -> None:
    assert SOME.fits
    assert SOME.shortage == ""
    short = replace(SOME, free=GIB)
    assert not short.fits
    assert "needs about 1.5 GiB of memory besides its data, and 1.0 GiB is free" in short.shortage


@pytest.mark.parametrize(
    "seconds, said", [(0.4, "0 s"), (119, "119 s"), (120, "2.0 min"), (9_000, "2.5 h"), (2e5, "2.3 days")]
)
def test_durations_in_words(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize("amount, said", [(2048, "2 KiB"), (3 * 2**19, "1.5 MiB"), (5 * GIB, "5.0 GiB")])
def test_sizes_in_words(amount: int, said: str) -> None:
    assert size(amount) == said


def test_a_run_that_fits_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_device_bytes", lambda: 10 * GIB)
    problem = lqr_problem()[0]
    same, forecast, said = placed_of(toy(), problem)
    assert same is problem
    assert forecast.fits
    assert said == ""


def test_a_run_too_large_for_the_device_moves_its_data_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, estimator = fresh_problem(), toy()
    needed = forecast_of(estimator, problem, seeds=2, steps=4, timed=False).needed
    monkeypatch.setattr(module, "free_device_bytes", lambda: needed)  # the margin is missing
    moved, forecast, said = placed_of(estimator, problem)
    assert moved.is_on_host
    assert forecast.data_on_host == moved.host_bytes > 0
    for part in (f"needs about {size(needed)}", f"{size(moved.host_bytes)} of data", "ms to every step"):
        assert part in said
    assert np.isfinite(fit(estimator, moved, seeds=2, steps=4).values).all()


def test_on_a_cpu_there_is_nowhere_to_move_to_and_the_shortage_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "free_device_bytes", lambda: None)
    monkeypatch.setattr(module, "free_host_bytes", lambda: 1024)
    problem = lqr_problem()[0]
    same, forecast, said = placed_of(toy(), problem)
    assert same is problem
    assert forecast.seconds is None
    assert "and 1 KiB is free; take fewer seeds" in said


def test_a_device_that_runs_out_of_memory_is_tried_once_more_from_the_host() -> None:
    tried, said = [], []

    def run(problem: Problem) -> str:
        tried.append(problem.is_on_host)
        if not problem.is_on_host:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
        return "done"

    result, problem = with_fallback(run, fresh_problem(), said.append)
    assert result == "done"
    assert problem.is_on_host
    assert tried == [False, True]
    assert len(said) == 1
    assert "the device's memory gave out" in said[0]


def test_memory_that_gives_out_while_compiling_moves_the_data_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(estimator: Estimator, problem: Problem, *, plan: Plan, timed: bool) -> Forecast:
        if not problem.is_on_host:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Failed to get configs for 2 instructions")
        return make_forecast(estimator, problem, plan, timed=timed)

    monkeypatch.setattr(module, "make_forecast", compiled)
    problem, forecast, said = placed_of(toy(), fresh_problem())
    assert problem.is_on_host
    assert forecast.data_on_host == problem.host_bytes
    assert "the device's memory gave out" in said


@pytest.mark.parametrize(
    "message, on_host", [("INTERNAL: broken", False), ("RESOURCE_EXHAUSTED: again", True)]
)
def test_other_failures_and_a_second_shortage_are_not_hidden(message: str, on_host: bool) -> None:
    problem = lqr_problem()[0].on_host() if on_host else lqr_problem()[0]

    def run(problem: Problem) -> None:
        raise jax.errors.JaxRuntimeError(message)

    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        with_fallback(run, problem, lambda said: pytest.fail(said))
