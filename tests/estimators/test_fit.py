"""`fit`: what it refuses, when it records, and what it tells a watcher."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest

from estimators.small import RECORD_EVERY, SEEDS, lqr_problem, quick, run
from kmifqe.errors import InputError
from kmifqe.estimators import Progress, fit
from kmifqe.estimators.fit import Plan, Snapshot, _record_every
from kmifqe.io.serialize import plain
from kmifqe.mdp.problem import Problem


@pytest.mark.parametrize("seeds", [0, [], -3, 10**9, 10**30, [2**70]])
def test_no_seed_and_more_seeds_than_anybody_can_mean_are_refused(seeds) -> None:
    with pytest.raises(InputError, match="seed"):
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
    json.dumps(plain(backwards.without_state()), allow_nan=False)


def test_a_watcher_is_told_after_every_record() -> None:
    problem, _, _ = lqr_problem()
    told: list[Progress] = []
    result = run(quick("kmifqe"), problem, steps=2 * RECORD_EVERY, on_progress=told.append)
    assert [p.step for p in told] == result.recorded_steps.tolist() == [RECORD_EVERY, 2 * RECORD_EVERY]
    for p, values in zip(told, result.trajectory):
        assert (p.estimator, p.steps) == ("kmifqe", 2 * RECORD_EVERY)
        assert p.steps_per_second > 0
        np.testing.assert_array_equal(p.values, values)
        assert set(p.infos) >= {"loss", "h", "mean_weight", "ess"}
        assert all(series.shape == (SEEDS,) for series in p.infos.values())
        assert ((p.infos["ess"] >= 1) & (p.infos["ess"] <= problem.counts.in_sample)).all()


@pytest.mark.parametrize(
    "every, periods, kept",
    [
        (4, (0, 0), 4),
        (30, (50, 0), 25),  # a divisor of the period
        (50, (50, 50), 50),
        (130, (50, 0), 100),  # a multiple
        (9900, (50, 1000), 9000),
        (700, (50, 1000), 500),  # a multiple of one and a divisor of the other
        (1, (50, 1000), 1),
    ],
)
def test_records_fit_into_the_periods(every: int, periods: tuple[int, int], kept: int) -> None:
    assert _record_every(every, *periods) == kept


def test_the_last_step_is_recorded_too() -> None:
    result = run(quick("fqe"), lqr_problem()[0], steps=2 * RECORD_EVERY + 30)
    assert result.recorded_steps.tolist() == [50, 100, 130]


def test_the_target_is_copied_after_every_period_and_not_before() -> None:
    problem, _, _ = lqr_problem()
    estimator = quick("kmifqe-paper")
    assert estimator.refresh.every == 50
    runs = (fit(estimator, problem, seeds=SEEDS, steps=n, record_every=10) for n in (40, 50, 60))
    before, copied, after = (np.asarray(result.final_state.table.bootstrap_value) for result in runs)
    assert (before != copied).any()
    np.testing.assert_array_equal(copied, after)


def test_a_rule_ends_the_fit_after_a_record() -> None:
    problem, _, _ = lqr_problem()
    asked: list[list[int]] = []

    def rule(steps: np.ndarray, values: np.ndarray) -> bool:
        assert values.shape == (len(steps), SEEDS)
        asked.append(steps.tolist())
        return len(steps) == 2

    result = run(quick("fqe"), problem, stop=rule)
    assert asked == [[50], [50, 100]]
    assert result.steps == 100
    assert result.recorded_steps.tolist() == [50, 100]
    np.testing.assert_array_equal(result.values, result.trajectory[-1])
    shorter = run(quick("fqe"), problem, steps=100)
    np.testing.assert_array_equal(result.values, shorter.values)


class Memory:
    """Keeps every snapshot, and gives back the last it was made with."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.snapshots = list(snapshots)

    def restore(self, plan: Plan, problem: Problem) -> Snapshot | None:
        return self.snapshots[-1] if self.snapshots else None

    def due(self, step: int) -> bool:
        return True

    def save(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def stop_if_asked(self, last: Snapshot | None) -> None:
        pass


# Besides the network a copy brings the bias of every row, and the target network itself.
SUBTRACTS_ITS_BIAS = {"bias": "subtracted", "target_period": 25, "metric_period": 2}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("kmifqe", {}),
        ("kmifqe-paper", {}),
        ("kmifqe-paper", SUBTRACTS_ITS_BIAS),
        ("fqe", {}),
        ("fqe-paper", {}),
    ],
)
def test_a_fit_goes_on_from_any_snapshot_with_the_same_bits(name: str, settings: dict[str, Any]) -> None:
    problem, _, _ = lqr_problem()
    memory = Memory()
    whole = run(quick(name, **settings), problem, steps=3 * RECORD_EVERY, checkpoints=memory)
    assert [snapshot.step for snapshot in memory.snapshots] == [50, 100, 150]
    for snapshot in memory.snapshots[:2]:
        told: list[Progress] = []
        again = run(
            quick(name, **settings),
            problem,
            steps=3 * RECORD_EVERY,
            checkpoints=Memory(snapshot),
            on_progress=told.append,
        )
        assert (told[0].begun, told[0].step) == (snapshot.step, snapshot.step + RECORD_EVERY)
        for a, b in zip(jax.tree.leaves(whole.final_state), jax.tree.leaves(again.final_state), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(whole.trajectory, again.trajectory)
        np.testing.assert_array_equal(whole.values, again.values)
        for info, series in whole.infos.items():
            np.testing.assert_array_equal(series, again.infos[info])
        assert again.seconds > snapshot.seconds
