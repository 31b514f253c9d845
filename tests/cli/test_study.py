"""`kmifqe study`: what it counts, writes and refuses, and once from nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.study_records import record
from experiments.test_study_tables import GOOD
from kmifqe.experiments import faults, study
from kmifqe.experiments.records import write_record

SMOKE = study.preset_named("smoke")


def write(folder: Path, number: int) -> None:
    told = record(number, [1.0, 2.0, 4.0], 2.0 if number else 90.0, settings=SMOKE.items()[number])
    write_record(told, folder / f"smoke-{number:04d}.json")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Return a directory with a record of every problem of the smoke preset but the last."""
    folder = tmp_path / "records"
    folder.mkdir()
    for number in range(len(SMOKE.items()) - 1):
        write(folder, number)
    return folder


@pytest.fixture
def no_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_problem(whole: study.Study, number: int) -> study.ProblemRecord:
        return record(number, GOOD, 2.1, settings=whole.preset.items()[number])

    monkeypatch.setattr(study, "run_problem", run_problem)


def test_the_study_is_written_once_every_problem_is_there(kmifqe_command, tmp_path, records, no_fits):
    items = SMOKE.items()
    arguments = ("study", "coverage", "--preset", "smoke", "--out", tmp_path / "out", "--records", records)
    last = len(items) - 1
    mine = next(i for i in range(1, 9) if last not in study.part_of(items, range(len(items)), (i, 8)))
    waiting = kmifqe_command(*arguments, "--shard", f"{mine}/8")
    assert waiting.code == 0, waiting.err
    assert f"1 of {len(items)} problems are not run yet" in waiting.err
    assert not (tmp_path / "out").exists()
    write(records, last)
    done = kmifqe_command(*arguments)
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "out" / "coverage.json").read_text(encoding="utf-8"))
    assert told["command"] == list(map(str, arguments))
    right = [i for i, item in enumerate(items) if item.told_width == 1.0]
    for half, tables in told["tables"].items():
        mine = [number for number in right if items[number].half == half]
        everything = tables["kmifqe"]["all"][-1]
        assert (everything["problems"], everything["covered"]) == (len(mine), len([n for n in mine if n]))
    assert (tmp_path / "out" / "coverage.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "wrong, said",
    [
        (("--preset", "huge"), "preset 'huge' is unknown; expected one of smoke, full"),
        (("--shard", "3"), "shard is '3'; expected I/N with 1 <= I <= N"),
        (("--shard", "4/3"), "shard is '4/3'; expected I/N with 1 <= I <= N"),
        (("--only", "ant"), "--only is 'ant'; expected one of lqr, pendulum, mujoco"),
        (("--half", "third"), "--half is 'third'; expected one of choose, report"),
        (("--policies", "/nowhere/at/all"), "/nowhere/at/all"),
    ],
)
@pytest.mark.parametrize("command", ["coverage", "verdicts"])
def test_a_wrong_option_is_refused(kmifqe_command, tmp_path, command, wrong, said):
    done = kmifqe_command("study", command, *wrong, "--records", tmp_path / "records")
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "records").exists()


def test_both_studies_run_from_nothing_and_share_their_fits(kmifqe_command, tmp_path):
    arguments = ("--preset", "smoke", "--out", tmp_path / "out", "--records", tmp_path / "records")
    collected = kmifqe_command("study", "collect", *arguments[:2], *arguments[4:], "--workers", "1")
    assert collected.code == 0, collected.err
    coverage = kmifqe_command("study", "coverage", *arguments)
    assert coverage.code == 0, coverage.err
    told = json.loads((tmp_path / "out" / "coverage.json").read_text(encoding="utf-8"))
    able = study.Study(
        SMOKE, tmp_path / "records"
    ).numbers()  # all, or those without MuJoCo where it is missing
    right = [number for number in able if SMOKE.items()[number].told_width == 1.0]
    assert len(told["estimates"]) == 3 * len(right)  # kmifqe, fqe, and auto, which averages them
    paths = sorted((tmp_path / "records").glob("smoke-*.json"))
    assert len(paths) == len(able)
    before = {path: path.stat().st_mtime_ns for path in paths}
    verdicts = kmifqe_command("study", "verdicts", *arguments)
    assert verdicts.code == 0, verdicts.err
    assert {path: path.stat().st_mtime_ns for path in paths} == before
    told = json.loads((tmp_path / "out" / "verdicts.json").read_text(encoding="utf-8"))
    assert told["problems"] == len(able)
    assert len(told["estimates"]) == 3 * len(able)


def test_problems_that_cannot_be_run_are_left_out_with_a_sentence(
    kmifqe_command, tmp_path, no_fits, monkeypatch
):
    reason = "a simulator that is not there"
    monkeypatch.setattr(study.GymProblem, "missing", lambda self, sources: reason)
    where = ("--preset", "smoke", "--out", tmp_path, "--records", tmp_path / "records")
    done = kmifqe_command("study", "verdicts", *where)
    assert done.code == 0, done.err
    assert reason in done.err
    told = json.loads((tmp_path / "verdicts.json").read_text())
    assert told["problems"] == sum(item.family != "mujoco" for item in SMOKE.items())


def test_one_half_of_one_family_is_judged_alone(kmifqe_command, tmp_path, no_fits):
    where = ("--preset", "smoke", "--out", tmp_path, "--records", tmp_path / "records")
    done = kmifqe_command("study", "verdicts", *where, "--only", "lqr", "--half", "choose")
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "verdicts.json").read_text())
    expected = [item for item in SMOKE.items() if item.family == "lqr" and item.half == "choose"]
    assert told["problems"] == len(expected) > 0
    assert "choosing" in done.out


def test_the_verdicts_are_written_once_every_shard_has_run(kmifqe_command, tmp_path, no_fits):
    where = ("--preset", "smoke", "--only", "lqr", "--out", tmp_path, "--records", tmp_path / "records")
    first = kmifqe_command("study", "verdicts", *where, "--shard", "1/2")
    assert first.code == 0, first.err
    assert "problems are not run yet: run the other shards" in first.err
    assert not (tmp_path / "verdicts.json").exists()
    second = kmifqe_command("study", "verdicts", *where, "--shard", "2/2")
    assert second.code == 0, second.err
    told = json.loads((tmp_path / "verdicts.json").read_text())
    assert told["problems"] == len(list((tmp_path / "records").iterdir()))
    lines = [line for tables in told["tables"].values() for line in tables["any"]["confusion"]]
    assert sum(line["estimates"] for line in lines) == told["problems"]
    assert sum(line["estimates"] for line in told["tables"]["report"]["any"]["confusion"]) > 0
    assert "trustworthy" in second.out


def test_the_study_of_faults_counts_and_does_not_run_twice(kmifqe_command, tmp_path, monkeypatch):
    preset = faults.FaultsPreset(
        "smoke", ((31, 1),), ("none", "rows shuffled inside episodes"), seeds=3, steps=40
    )
    monkeypatch.setitem(faults.PRESETS, "smoke", preset)
    where = ("--preset", "smoke", "--out", tmp_path, "--records", tmp_path / "records")
    done = kmifqe_command("study", "faults", *where)
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "faults.json").read_text(encoding="utf-8"))
    assert [line["fault"] for line in told["lines"]] == [
        "none",
        "rows shuffled inside episodes",
        "all faults",
    ]
    assert [line["estimates"] for line in told["lines"]] == [2, 2, 2]
    faulty = [each for each in told["estimates"] if each["fault"] != "none"]
    assert all(each["named"] for each in faulty)
    assert "rows shuffled inside episodes" in " ".join(done.out.split())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()}
    assert kmifqe_command("study", "faults", *where).code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()} == before
    assert kmifqe_command("study", "faults", "--preset", "huge").code == 2


@pytest.mark.parametrize(
    "name", ["coverage.json", "coverage.png", "verdicts.json", "faults.json", "differences.json"]
)
def test_a_file_that_no_study_wrote_is_not_replaced(kmifqe_command, tmp_path, no_fits, name):
    (tmp_path / name).write_text('{"mine": 1}')
    command = name.partition(".")[0]
    outcome = kmifqe_command(
        "study", command, "--preset", "smoke", "--out", tmp_path, "--records", tmp_path / "records"
    )
    assert outcome.code == 2
    assert name in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == '{"mine": 1}'
