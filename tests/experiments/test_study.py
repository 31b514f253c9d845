"""The studies: which problems are run, by which settings, in which process, and what is kept of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from experiments.study_records import record
from kmifqe.errors import InputError
from kmifqe.experiments import study
from kmifqe.experiments.problems_gym import SHIPPED
from kmifqe.experiments.study import (
    PRESETS,
    ProblemRecord,
    Selection,
    Study,
    collect_data,
    part_of,
    preset_named,
    run_missing,
    shard_of,
)

SMOKE = replace(PRESETS["smoke"], gym=())  # what every machine can run
FULL = PRESETS["full"].items()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the problems that were run, in order; each run costs nothing."""
    asked = []

    def canned(whole: Study, number: int) -> ProblemRecord:
        asked.append(number)
        item = whole.preset.items()[number]
        return record(number, [1.0, 2.0, float("nan")], 2.0, settings=item, description=item.description)

    monkeypatch.setattr(study, "run_problem", canned)
    return asked


def test_shards_share_the_problems_out_and_nothing_is_run_twice(tmp_path, runs):
    items, said = SMOKE.items(), []
    whole = Study(SMOKE, tmp_path)
    first = run_missing(whole, (1, 2), said.append)
    assert 0 < len(first) == len(runs) < len(items)
    assert len(run_missing(whole, (2, 2))) == len(items)
    assert len(run_missing(whole)) == len(items) == len(runs)
    assert sorted(runs) == list(range(len(items)))
    assert [r.number for r in run_missing(whole)] == list(range(len(items)))
    assert items[runs[0]].description in said[0]


def test_a_selection_is_run_and_read_alone(tmp_path, runs):
    items = SMOKE.items()
    half = Study(SMOKE, tmp_path, selection=Selection(half="report"))
    there = run_missing(half)
    expected = [number for number, item in enumerate(items) if item.half == "report"]
    assert sorted(runs) == [r.number for r in there] == expected
    run_missing(Study(SMOKE, tmp_path))
    assert [r.number for r in half.records()] == expected


def test_a_selection_names_a_family_a_task_or_a_half():
    assert all(item.family == "lqr" for item in FULL if Selection.of("lqr", None).holds(item))
    tasks = {item.kind for item in FULL if Selection.of("mujoco", None).holds(item)}
    assert tasks == {"hopper", "walker2d", "halfcheetah", "swimmer"}
    assert {item.kind for item in FULL if Selection.of("swimmer", "choose").holds(item)} == {"swimmer"}
    for wrong in (("pendulums", None), ("lqr", "both")):
        with pytest.raises(InputError, match="expected one of"):
            Selection.of(*wrong)


def test_problems_without_their_actors_are_left_out_unless_their_records_are_there(tmp_path, runs):
    pytest.importorskip("mujoco")
    alone = Study(PRESETS["full"], tmp_path, selection=Selection(only="mujoco"))
    able = alone.numbers()
    assert all({FULL[number].target, FULL[number].behavior} <= set(SHIPPED) for number in able)
    left_out = alone.left_out()
    assert len(left_out) + len(able) == sum(item.family == "mujoco" for item in FULL)
    number = min(left_out)
    alone.path(number).write_text("{}", encoding="utf-8")
    assert number in alone.numbers()


def test_records_are_strict_json_and_estimates_read_back(tmp_path, runs):
    (first, *_) = run_missing(Study(SMOKE, tmp_path))
    (estimate,) = first.estimates
    np.testing.assert_array_equal(estimate.values, [1.0, 2.0, np.nan])
    assert estimate.trajectory.shape == (1, 3)
    assert (estimate.diverged, estimate.bootstrap, estimate.episodes) == (1, True, 1000)
    assert first.facts.settings.shape == SMOKE.items()[0].shape


def test_a_file_that_is_no_record_is_refused(tmp_path, runs):
    for text in ("{", '{"schema": "other"}', "[]"):
        (tmp_path / "smoke-0000.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"smoke-0000\.json"):
            run_missing(Study(SMOKE, tmp_path))


def test_the_full_study_has_300_problems_of_all_families_in_equal_halves():
    right = [item for item in FULL if item.told_width == 1.0]
    assert len(right) >= 300
    assert sum(item.family == "mujoco" for item in right) >= 60
    assert {item.action_dim for item in right if item.family == "lqr"} == {1, 2, 3, 4, 5}
    assert {item.end_rate for item in right if item.family == "lqr"} == {0.0, 0.02, 0.05}
    assert {item.told_width for item in FULL} == {1.0, 0.6, 1.6}
    counts = Counter((item.kind, item.half) for item in right)
    for kind in {item.kind for item in right}:
        assert abs(counts[kind, "choose"] - counts[kind, "report"]) <= 2
    with pytest.raises(InputError, match="expected one of smoke, full"):
        preset_named("huge")


def test_a_problem_told_a_wrong_density_is_in_the_half_of_the_same_problem_told_the_right_one():
    halves = {(item.kind, item.seed, item.gamma): item.half for item in FULL if item.told_width == 1.0}
    wrong = [item for item in FULL if item.told_width != 1.0]
    assert wrong
    assert all(halves[item.kind, item.seed, item.gamma] == item.half for item in wrong)


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "a/b", "1/"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="expected I/N"):
        shard_of(text)
    assert shard_of("2/8") == (2, 8)


def test_every_shard_gets_its_share_of_each_family_and_compiles_for_few_programs():
    numbers = range(len(FULL))
    parts = [part_of(FULL, numbers, (i, 16)) for i in range(1, 17)]
    assert sorted(number for part in parts for number in part) == list(numbers)
    for family in ("lqr", "pendulum", "mujoco"):
        weights = [sum(FULL[n].weight for n in part if FULL[n].family == family) for part in parts]
        assert min(weights) > 0
        assert max(weights) < 2 * np.mean(weights)
    assert max(len({FULL[number].program for number in part}) for part in parts) <= 8


def test_the_data_of_simulators_are_collected_once(tmp_path):
    pytest.importorskip("mujoco")
    gym = tuple(
        msgspec.structs.replace(item, transitions=30, truth_episodes=1) for item in PRESETS["smoke"].gym
    )
    tiny = Study(replace(SMOKE, per_shape=0, gym=gym), tmp_path)
    said = []
    made = collect_data(tiny, workers=1, say=said.append)
    assert len(made) == len(said) == 2  # a log and a truth, which the misled problem shares
    assert all(path.is_file() for path in made)
    assert collect_data(tiny) == []
