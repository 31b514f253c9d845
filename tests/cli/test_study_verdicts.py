"""`kmifqe study verdicts`, on problems whose fits are replaced by a canned record."""

from __future__ import annotations

import json

import pytest

import kmifqe.experiments.trust_run as trust_run
from experiments.test_verdicts import GOOD, judged


@pytest.fixture(autouse=True)
def canned(monkeypatch):
    def run_item(item, preset):
        told = judged(0, GOOD, 2.1, seed=item.seed, told_width=item.told_width)
        return {name: value for name, value in told.items() if name != "number"}

    monkeypatch.setattr(trust_run, "run_item", run_item)


def test_the_table_is_written_once_every_shard_has_run(kmifqe_command, tmp_path):
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


@pytest.mark.parametrize(
    "options, said",
    [
        (("--preset", "huge"), "preset 'huge' is unknown; expected one of smoke, full"),
        (("--shard", "5/3"), "shard is '5/3'; expected I/N with 1 <= I <= N"),
    ],
)
def test_a_wrong_option_is_one_sentence(kmifqe_command, tmp_path, options, said):
    done = kmifqe_command("study", "verdicts", "--records", tmp_path / "records", *options)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "records").exists()
