"""`fit`: what it refuses, when it records, and what it tells a watcher."""

from __future__ import annotations

import json

import numpy as np
import pytest

from estimators.small import RECORD_EVERY, SEEDS, lqr_problem, quick, run
from kmifqe.errors import InputError
from kmifqe.estimators import Progress, fit
from kmifqe.estimators.fit import _record_ends


@pytest.mark.parametrize("seeds", [0, []])
def test_no_seed_is_refused(seeds) -> None:
    with pytest.raises(InputError, match="seeds is empty; expected at least one"):
        fit(quick("fqe"), lqr_problem()[0], seeds=seeds, steps=1)


@pytest.mark.parametrize("steps", [0, -3])
def test_no_step_is_refused(steps: int) -> None:
    with pytest.raises(InputError, match=f"steps is {steps}; expected at least 1"):
        fit(quick("fqe"), lqr_problem()[0], steps=steps)


@pytest.mark.parametrize("name", ["fqe", "kmifqe"])
@pytest.mark.parametrize("record_every", [0, -5])
def test_recording_never_is_refused(name: str, record_every: int) -> None:
    with pytest.raises(InputError, match=f"record_every is {record_every}; expected at least 1"):
        fit(quick(name), lqr_problem()[0], steps=10, record_every=record_every)


def test_seeds_may_be_a_count_a_list_or_an_array_and_keep_their_order() -> None:
    problem, _, _ = lqr_problem()
    every = {"steps": RECORD_EVERY, "record_every": RECORD_EVERY}
    count = fit(quick("fqe"), problem, seeds=SEEDS, **every)
    listed = fit(quick("fqe"), problem, seeds=list(range(SEEDS)), **every)
    backwards = fit(quick("fqe"), problem, seeds=np.arange(SEEDS)[::-1], **every)
    assert count.seeds == listed.seeds == backwards.seeds[::-1] == tuple(range(SEEDS))
    np.testing.assert_array_equal(count.values, listed.values)
    np.testing.assert_allclose(count.values, backwards.values[::-1], rtol=1e-5)
    json.dumps(backwards.to_dict(), allow_nan=False)


def test_a_watcher_is_told_after_every_record() -> None:
    problem, _, _ = lqr_problem()
    told: list[Progress] = []
    result = run(quick("kmifqe"), problem, steps=2 * RECORD_EVERY, on_progress=told.append)
    assert [p.step for p in told] == result.recorded_steps.tolist() == [RECORD_EVERY, 2 * RECORD_EVERY]
    for p, values in zip(told, result.trajectory):
        assert (p.estimator, p.steps) == ("kmifqe", 2 * RECORD_EVERY)
        assert p.steps_per_second > 0
        np.testing.assert_array_equal(p.values, values)
        assert set(p.infos) == {"loss", "h", "mean_weight", "ess"}
        assert all(series.shape == (SEEDS,) for series in p.infos.values())
        assert ((p.infos["ess"] >= 1) & (p.infos["ess"] <= problem.counts.in_sample)).all()


@pytest.mark.parametrize(
    "steps, every, period, ends",
    [
        (10, 4, 0, [4, 8, 10]),
        (10, 5, 0, [5, 10]),
        (3, 5, 0, [3]),
        (100, 30, 50, [25, 50, 75, 100]),  # the largest divisor of the period
        (300, 130, 50, [100, 200, 300]),  # the largest multiple of it
        (120, 50, 50, [50, 100, 120]),
    ],
)
def test_records_fit_into_the_refresh_period(steps: int, every: int, period: int, ends: list[int]) -> None:
    assert _record_ends(steps, every, period) == ends


def test_the_target_is_copied_after_every_period_and_not_before() -> None:
    problem, _, _ = lqr_problem()
    estimator = quick("kmifqe")
    assert estimator.refresh_every == 50
    runs = (fit(estimator, problem, seeds=SEEDS, steps=n, record_every=10) for n in (40, 50, 60))
    before, copied, after = (np.asarray(result.final_state.next_value) for result in runs)
    assert (before != copied).any()
    np.testing.assert_array_equal(copied, after)
