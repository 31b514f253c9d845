"""`kmifqe study`: what it counts, writes and refuses, and once from nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.test_study import GOOD, record
from kmifqe.experiments import study
from kmifqe.experiments.records import write_record

SMOKE = study.preset_named("smoke")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Return a directory with a record of every problem of the smoke preset but the last."""
    folder = tmp_path / "records"
    folder.mkdir()
    for number in range(len(SMOKE.items()) - 1):
        write(folder, number)
    return folder


def write(folder: Path, number: int) -> None:
    told = record(number, [1.0, 2.0, 4.0], 2.0 if number else 90.0)
    write_record(told, folder / f"smoke-{number:04d}.json")


def test_the_study_is_written_once_every_problem_is_there(kmifqe_command, tmp_path, records):
    count = len(SMOKE.items())
    arguments = ("study", "coverage", "--preset", "smoke", "--out", tmp_path / "out", "--records", records)
    waiting = kmifqe_command(*arguments, "--shard", f"1/{count}")  # its only problem is there
    assert waiting.code == 0, waiting.err
    assert f"1 of {count} problems are not run yet" in waiting.err
    assert not (tmp_path / "out").exists()
    write(records, count - 1)
    done = kmifqe_command(*arguments)
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "out" / "coverage.json").read_text(encoding="utf-8"))
    assert told["command"] == list(map(str, arguments))
    (line, *_) = told["tables"]["kmifqe"]["all"]
    assert (line["problems"], line["covered"]) == (count, count - 1)
    assert f"{(count - 1) / count:.0%}" in done.out
    assert (tmp_path / "out" / "coverage.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "wrong, said",
    [
        (("--preset", "huge"), "preset 'huge' is unknown; expected one of smoke, full"),
        (("--shard", "3"), "shard is '3'; expected I/N with 1 <= I <= N"),
        (("--shard", "4/3"), "shard is '4/3'; expected I/N with 1 <= I <= N"),
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
    coverage = kmifqe_command("study", "coverage", *arguments)
    assert coverage.code == 0, coverage.err
    told = json.loads((tmp_path / "out" / "coverage.json").read_text(encoding="utf-8"))
    right = [item for item in SMOKE.items() if item.told_width == 1.0]
    assert {name: len(right) for name in ("kmifqe", "fqe")} == {
        name: tables["all"][-1]["problems"] for name, tables in told["tables"].items()
    }
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()}
    verdicts = kmifqe_command("study", "verdicts", *arguments)
    assert verdicts.code == 0, verdicts.err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()} == before
    told = json.loads((tmp_path / "out" / "verdicts.json").read_text(encoding="utf-8"))
    assert told["problems"] == len(SMOKE.items())
    assert len(told["estimates"]) == 2 * len(SMOKE.items())


def test_the_verdicts_are_written_once_every_shard_has_run(kmifqe_command, tmp_path, monkeypatch):
    def run_problem(preset, number):
        item = preset.items()[number]
        return record(number, GOOD, 2.1, seed=item.seed, told_width=item.told_width)

    monkeypatch.setattr(study, "run_problem", run_problem)
    where = ("--preset", "smoke", "--out", tmp_path, "--records", tmp_path / "records")
    first = kmifqe_command("study", "verdicts", *where, "--shard", "1/2")
    assert first.code == 0, first.err
    assert "problems are not run yet: run the other shards" in first.err
    assert not (tmp_path / "verdicts.json").exists()
    second = kmifqe_command("study", "verdicts", *where, "--shard", "2/2")
    assert second.code == 0, second.err
    told = json.loads((tmp_path / "verdicts.json").read_text())
    assert told["problems"] == len(list((tmp_path / "records").iterdir()))
    assert sum(line["estimates"] for line in told["reported"] + told["calibrated_on"]) == told["problems"]
    assert sum(line["estimates"] for line in told["reported"]) > 0
    assert "trustworthy" in second.out
