from __future__ import annotations

import json
import math
from itertools import combinations

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.experiments.records import (
    Place,
    TableRecord,
    error_of,
    error_of_mean,
    is_done,
    kept,
    read_records,
    write_record,
)

PLACE = Place("smoke", "table1", "hopper", "kmifqe")
VALUES = [1.1, 0.7, 1.6, 0.9, 1.2, 1.4, 0.2]
TRUTH = 1.3


def record(place=PLACE, **settings):
    return place.record(
        settings,
        1.5,
        truth={"population": 0.5},
        policies={},
        counts={"rows": 9},
        values=np.array([*VALUES, np.nan]),
        discounted_return=math.nan,
        trajectory={"step": np.arange(3), "value": np.ones((3, 8))},
        errors={"population": error_of([*VALUES, np.nan], 0.5)},
    )


def written(root, given):
    place = Place(given.preset, given.experiment, given.row, given.method)
    return write_record(given, place.path(root))


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


def test_a_record_comes_back_as_it_was_written(tmp_path):
    given = record(steps=7, rate=3e-4)
    path = written(tmp_path, given)
    assert path == tmp_path / "smoke" / "table1" / "hopper" / "kmifqe.json"
    (read,) = read_records(tmp_path)
    assert isinstance(read, TableRecord)
    assert read.settings == {"steps": 7, "rate": 3e-4}
    assert read.command == "kmifqe reproduce table1 --preset smoke --only hopper --method kmifqe"
    np.testing.assert_allclose(read.values, given.values, rtol=1e-5)
    assert read.trajectory["step"].tolist() == [0, 1, 2]
    assert (read.errors["population"]["rmse"], read.errors["population"]["diverged"]) == (None, 1)
    assert (read.discounted_return, read.density) == (None, None)
    raw = json.loads(path.read_text())
    assert raw["schema"] == "kmifqe.experiment/1"
    assert {"created", "versions", "device", "wall_seconds"} <= set(raw)
    assert raw["values"][-1] is None


def test_records_are_found_by_experiment_and_preset(tmp_path):
    for row in ("hopper", "ant"):
        written(tmp_path, record(PLACE._replace(row=row)))
    written(tmp_path, record(PLACE._replace(preset="small")))
    assert [r.row for r in read_records(tmp_path, "table1", "smoke")] == ["ant", "hopper"]
    assert len(read_records(tmp_path)) == 3
    assert read_records(tmp_path, preset="fast") == read_records(tmp_path, "loglik") == []


def test_only_a_record_of_the_same_settings_counts_as_done(tmp_path):
    written(tmp_path, record(steps=7, clip=(1e-3, 2.0)))
    assert is_done(tmp_path, PLACE, {"steps": 7, "clip": (1e-3, 2.0)})
    assert not is_done(tmp_path, PLACE, {"steps": 8, "clip": (1e-3, 2.0)})
    assert not is_done(tmp_path, PLACE._replace(method="fqe"), {"steps": 7})
    assert not is_done(tmp_path, PLACE, {"steps": 7, "clip": (1e-3, 2.0), "tau": 0.1})
    assert not is_done(tmp_path, PLACE, {"steps": 7})


def test_a_setting_that_the_record_or_the_program_lacks_counts_as_what_changed_nothing(tmp_path):
    gone = {"bias_share": 1.0, "bias_step": 0, "average_step": 0, "half_fqe_at": 0.0, "start_at_mean": False}
    written(tmp_path, record(config={"hidden": 8, **gone}))
    assert is_done(tmp_path, PLACE, {"config": {"hidden": 8, "units": "rewards", "tau": 0.0}})
    assert not is_done(tmp_path, PLACE, {"config": {"hidden": 8, "tau": 0.5}})
    assert not is_done(tmp_path, PLACE, {"config": {"hidden": 9}})
    written(tmp_path, record(config={"hidden": 8, **gone, "half_fqe_at": 0.02}))
    assert not is_done(tmp_path, PLACE, {"config": {"hidden": 8}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "truncated"),
        ("[]", "expected the schema 'kmifqe.experiment/1'"),
        (json.dumps({"schema": "kmifqe.result/1"}), "kmifqe.result/1"),
        (json.dumps({"schema": "kmifqe.experiment/1", "row": 3}), "experiment"),
    ],
)
def test_what_is_no_record_is_refused_by_name(tmp_path, text, words):
    path = tmp_path / "fast" / "table1" / "hopper" / "kmifqe.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InputError, match=r"kmifqe\.json") as caught:
        read_records(tmp_path)
    assert words in str(caught.value)


def test_the_same_settings_are_worked_out_once(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return {"value": len(calls)}

    assert kept(tmp_path / "new", "x", {"a": 1}, dict[str, int], make) == {"value": 1}
    assert kept(tmp_path / "new", "x", {"a": 1}, dict[str, int], make) == {"value": 1}
    assert kept(tmp_path / "new", "x", {"a": 2}, dict[str, int], make) == {"value": 2}


def test_a_broken_file_is_named(tmp_path):
    kept(tmp_path, "x", {}, dict[str, int], lambda: {"value": 1})
    (path,) = tmp_path.iterdir()
    path.write_text("{")
    with pytest.raises(InputError, match=path.name):
        kept(tmp_path, "x", {}, dict[str, int], lambda: {"value": 2})


@pytest.mark.parametrize("count", range(1, len(VALUES) + 1))
def test_it_is_the_rmse_over_every_choice_of_so_many_seeds(count):
    means = [np.mean(chosen) for chosen in combinations(VALUES, count)]
    over_choices = math.sqrt(np.mean((np.array(means) - TRUTH) ** 2))
    assert error_of_mean(VALUES, TRUTH, count)[0] == pytest.approx(over_choices, rel=1e-12)


def test_the_standard_error_of_single_seeds_is_that_of_a_mean_of_squares():
    squares = (np.array(VALUES) - TRUTH) ** 2
    expected = squares.std(ddof=1) / math.sqrt(len(squares)) / (2.0 * math.sqrt(squares.mean()))
    assert error_of_mean(VALUES, TRUTH, 1)[1] == pytest.approx(expected, rel=1e-9)


def test_its_square_is_unbiased_and_its_standard_error_is_the_spread_over_repeated_experiments():
    rng = np.random.default_rng(0)
    bias, spread, seeds, count = 0.5, 0.4, 10, 4
    found = np.array([error_of_mean(rng.normal(bias, spread, seeds), 0.0, count) for _ in range(2_000)])
    squares = found[:, 0] ** 2
    standard_error = squares.std() / math.sqrt(len(squares))
    assert abs(squares.mean() - (bias**2 + spread**2 / count)) < 3 * standard_error
    assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.1)


def test_a_seed_that_diverged_leaves_no_error_and_more_seeds_than_there_are_is_refused():
    assert error_of_mean([1.0, math.nan, 1.2], 1.0, 2) == (math.inf, 0.0)
    with pytest.raises(ValueError, match="count is 4; expected 1 to 3"):
        error_of_mean([1.0, 1.1, 1.2], 1.0, 4)
