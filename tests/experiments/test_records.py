from __future__ import annotations

import json
import math

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate
from kmifqe.experiments.records import (
    MOST_POINTS,
    error_of,
    estimate_fields,
    experiment_record,
    is_done,
    read_records,
    thin_trajectory,
    write_record,
)


def estimate(records=130, seeds=10, seed=0):
    rng = np.random.default_rng(seed)
    trajectory = rng.standard_normal((records, seeds)).astype(np.float32)
    return Estimate(
        estimator="kmifqe",
        config={},
        gamma=0.95,
        seeds=tuple(range(seeds)),
        steps=records * 10,
        values=trajectory[-1].astype(np.float64),
        recorded_steps=10 * np.arange(1, records + 1),
        trajectory=trajectory,
        infos={"h": np.ones((records, seeds)), "ess": rng.uniform(1, 1e5, (records, seeds))},
        seconds=1.0,
        device="cpu",
    )


def record(row="hopper", method="kmifqe", **settings):
    return experiment_record(
        "table1",
        row,
        method,
        "smoke",
        settings=settings,
        wall_seconds=1.5,
        **estimate_fields(estimate(), {"population": 0.5}),
    )


def test_rmse_is_the_root_of_bias_squared_plus_the_seeds_variance():
    values = np.random.default_rng(1).normal(2.0, 0.7, 10)
    error = error_of(values, 1.5)
    assert error["rmse"] == pytest.approx(math.sqrt((values.mean() - 1.5) ** 2 + values.var()))
    assert error["bias"] == pytest.approx(values.mean() - 1.5)
    assert error["spread"] == pytest.approx(values.std(ddof=1))


def test_the_standard_error_of_the_rmse_is_its_spread_over_repeated_experiments():
    """Over 4,000 experiments of 400 seeds each, the RMSEs scatter by what the formula says of a single one."""
    errors = np.random.default_rng(2).normal(0.3, 1.0, (4_000, 400))
    rmse = np.sqrt((errors**2).mean(axis=1))
    told = np.mean([error_of(e, 0.0)["standard_error"] for e in errors[:200]])
    spread = rmse.std(ddof=1)
    assert abs(told - spread) < 4 * spread / math.sqrt(2 * len(rmse)) + 0.01 * spread


def test_equal_errors_leave_no_standard_error_and_one_seed_knows_none():
    assert error_of([1.0, 3.0], 2.0)["standard_error"] == 0.0
    assert error_of([2.0, 2.0], 2.0)["standard_error"] == 0.0
    assert error_of([1.0], 2.0)["standard_error"] is None


def test_a_seed_that_diverged_leaves_no_rmse_and_is_counted():
    error = error_of([1.0, np.nan, np.inf, 2.0], 1.0)
    assert (error["rmse"], error["standard_error"], error["diverged"]) == (None, None, 2)
    assert error["bias"] == pytest.approx(0.5)


@pytest.mark.parametrize("records", [1, 49, 50, 51, 100])
def test_a_trajectory_is_thinned_and_keeps_its_end(records):
    thin = thin_trajectory(estimate(records))
    assert len(thin["step"]) == min(records, MOST_POINTS)
    assert (np.diff(thin["step"]) > 0).all()
    assert thin["step"][-1] == 10 * records
    assert thin["value"].shape == (len(thin["step"]), 10)
    assert thin["h"].shape == thin["step"].shape


def test_a_record_comes_back_as_it_was_written_and_stays_small(tmp_path):
    given = record(steps=7, rate=3e-4)
    path = write_record(given, tmp_path)
    assert path == tmp_path / "smoke" / "table1" / "hopper" / "kmifqe.json"
    (read,) = read_records(tmp_path)
    assert read["settings"] == {"steps": 7, "rate": 3e-4}
    assert read["command"] == "kmifqe reproduce table1 --preset smoke --only hopper --method kmifqe"
    np.testing.assert_allclose(read["values"], given["values"], rtol=1e-5)
    assert {"created", "versions", "device", "wall_seconds"} <= set(read)
    assert path.stat().st_size < 30_000


def test_records_are_found_by_experiment_and_preset(tmp_path):
    for row in ("hopper", "ant"):
        write_record(record(row), tmp_path)
    write_record(record() | {"experiment": "loglik"}, tmp_path)
    assert [r["row"] for r in read_records(tmp_path, "table1", "smoke")] == ["ant", "hopper"]
    assert len(read_records(tmp_path)) == 3
    assert read_records(tmp_path, preset="fast") == []


def test_only_a_record_of_the_same_settings_counts_as_done(tmp_path):
    write_record(record(steps=7, clip=(1e-3, 2.0)), tmp_path)
    place = (tmp_path, "smoke", "table1", "hopper", "kmifqe")
    assert is_done(*place, {"steps": 7, "clip": (1e-3, 2.0)})
    assert not is_done(*place, {"steps": 8, "clip": (1e-3, 2.0)})
    assert not is_done(*place[:-1], "fqe", {"steps": 7})
    assert not is_done(*place, {"steps": 7, "clip": (1e-3, 2.0), "tau": 0.1})
    assert not is_done(*place, {"steps": 7})


def test_a_setting_that_came_later_counts_as_what_changed_nothing(tmp_path):
    write_record(record(config={"hidden": 8}), tmp_path)
    place = (tmp_path, "smoke", "table1", "hopper", "kmifqe")
    assert is_done(*place, {"config": {"hidden": 8, "average_step": 0, "start_at_mean": False}})
    assert not is_done(*place, {"config": {"hidden": 8, "average_step": 5}})
    assert not is_done(*place, {"config": {"hidden": 9, "average_step": 0}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a readable JSON record"),
        ("[]", "schema is None"),
        (json.dumps({"schema": "kmifqe.result/1"}), "schema is 'kmifqe.result/1'"),
        (json.dumps({"schema": "kmifqe.experiment/1", "row": 3}), "experiment is None"),
    ],
)
def test_what_is_no_record_is_refused_by_name(tmp_path, text, words):
    path = tmp_path / "fast" / "table1" / "hopper" / "kmifqe.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InputError, match=r"kmifqe\.json") as caught:
        read_records(tmp_path)
    assert words in str(caught.value)
