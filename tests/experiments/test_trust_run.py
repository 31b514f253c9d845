"""The records of the family's problems: what is asked, kept and read back; the fits are replaced by a canned one."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kmifqe.experiments.trust_run as trust_run
from experiments.test_coverage import record
from kmifqe.errors import InputError
from kmifqe.experiments.trust_run import (
    PRESETS,
    part_of,
    preset_named,
    read_estimate,
    read_records,
    run_missing,
    shard_of,
)

SMOKE = PRESETS["smoke"]


@pytest.fixture
def runs(monkeypatch):
    """Return the problems that were run, in order; each run costs nothing."""
    asked = []

    def canned(item, preset):
        asked.append(item)
        told = record(0, [1.0, 2.0, float("nan")], 2.0, description=item.description)
        return {name: value for name, value in told.items() if name != "number"}

    monkeypatch.setattr(trust_run, "run_item", canned)
    return asked


def test_shards_share_the_problems_out_and_nothing_is_run_twice(tmp_path, runs):
    items = SMOKE.items()
    said = []
    half = len(items) // 2
    assert len(run_missing(SMOKE, tmp_path, (1, 2), said.append)) == half
    assert runs == list(items[:half])
    assert len(run_missing(SMOKE, tmp_path, (2, 2))) == len(items)
    assert len(run_missing(SMOKE, tmp_path)) == len(items) == len(runs)
    assert [r["number"] for r in read_records(tmp_path, SMOKE)] == list(range(len(items)))
    assert said[0].startswith(f"1 of {len(items)}: {items[0].description}")


def test_records_are_strict_json_and_estimates_read_back(tmp_path, runs):
    (first, *_) = run_missing(SMOKE, tmp_path)
    estimate = read_estimate(first["judged"][0])
    np.testing.assert_array_equal(estimate.values, [1.0, 2.0, np.nan])
    assert estimate.trajectory.shape == (1, 3)
    assert (estimate.diverged, estimate.bootstrap, estimate.episodes) == (1, True, 1000)


def test_a_file_that_is_no_record_is_refused(tmp_path, runs):
    for text in ("{", json.dumps({"schema": "other"}), "[]"):
        (tmp_path / "smoke-0000.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"smoke-0000\.json"):
            read_records(tmp_path, SMOKE)


def test_presets_hold_problems_told_a_wrong_density_and_200_told_the_right_one():
    full = preset_named("full").items()
    right = [item for item in full if item.told_width == 1.0]
    assert len(right) >= 200
    assert {item.told_width for item in full} == {1.0, 0.6, 1.6}
    with pytest.raises(InputError, match="expected one of smoke, full"):
        preset_named("huge")


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "a/b", "1/"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="expected I/N"):
        shard_of(text)
    assert shard_of("2/8") == (2, 8)


def test_a_shard_has_neighbours_in_shape_and_all_shards_together_have_everything():
    items = PRESETS["full"].items()
    parts = [part_of(items, (i, 15)) for i in range(1, 16)]
    assert sorted(number for part in parts for number in part) == list(range(len(items)))
    assert max(len({items[number].shape for number in part}) for part in parts) <= 2
