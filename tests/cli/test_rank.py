"""`kmifqe rank`: patterns, refusals, what is printed and written; and that `evaluate` takes one policy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from cli.conftest import small_actor
from estimators.small import logged
from kmifqe.cli.rank import expand
from kmifqe.errors import InputError
from kmifqe.io.logs.save import save_dataset
from kmifqe.ranking.known import check_truth, read_truth

QUICK = ("--gamma", "0.8", "-e", "fqe", "--seeds", "3", "--steps", "1000", "--set", "hidden=16")


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the log of a linear-quadratic world and three policies."""
    save_dataset(logged()[1], tmp_path / "log.npz")
    for seed, name in enumerate(("one", "two", "three")):
        small_actor(1, 1, seed).save(tmp_path / f"{name}.safetensors")
    return tmp_path


def test_rank_prints_the_order_and_writes_all_files(kmifqe_command, folder) -> None:
    (folder / "truth.csv").write_text(
        "policy,value\none.safetensors,1\ntwo.safetensors,2\nthree.safetensors,3\n"
    )
    out = folder / "run"
    done = kmifqe_command(
        "rank",
        folder / "log.npz",
        "--policy",
        folder / "*.safetensors",
        "--truth",
        folder / "truth.csv",
        "--out",
        out,
        *QUICK,
    )
    assert done.code == 0, done.err
    names = ("one.safetensors", "two.safetensors", "three.safetensors")
    assert all(name in done.out for name in names)
    assert "regret@1" in done.out
    record = json.loads((out / "ranking.json").read_text(encoding="utf-8"))
    assert {each["policy"] for each in (*record["ranking"], *record["not_ranked"])} == set(names)
    assert set(record["scores"]) == {"ranking", "fqe"}
    for name in ("csv", "tex", "png", "html"):
        assert (out / f"ranking.{name}").stat().st_size > 0
    page = kmifqe_command("report", out)
    assert (page.code, str(out / "ranking.html") in page.err) == (2, True)
    again = kmifqe_command(
        "rank", folder / "log.npz", "--policy", folder / "*.safetensors", "--out", out, *QUICK
    )
    assert (again.code, "holds a result already" in again.err) == (2, True)


def test_a_ranking_without_out_is_kept_in_a_new_directory(kmifqe_command, folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    few = ("--gamma", "0.8", "-e", "fqe", "--seeds", "2", "--steps", "100", "--set", "hidden=8")
    for name in ("3-policies-from-log", "3-policies-from-log-2"):
        done = kmifqe_command("rank", "log.npz", "--policy", "*.safetensors", *few)
        assert done.code == 0, done.err
        assert (folder / "runs" / name / "ranking.json").exists()


def test_a_killed_ranking_that_is_resumed_is_the_same_ranking(folder, kmifqe_command) -> None:
    """SIGKILL leaves no time to save: what follows goes on from the last snapshot and ends with the same bits."""
    given = [folder / "log.npz", "--policy", folder / "*.safetensors", "--save-seconds", "0", *QUICK]
    given += ["--steps", "6000", "--seeds", "4"]
    killed, whole = folder / "killed", folder / "whole"
    command = [sys.executable, "-m", "kmifqe", "rank", *map(str, given), "--out", str(killed), "--resume"]
    reached: set[str] = set()
    for _ in range(2):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ)
        while process.poll() is None and not snapshots(killed) - reached:
            time.sleep(0.02)
        assert process.poll() is None, process.communicate()[1].decode()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert snapshots(killed) - reached, "it came further than the one before"
        reached |= snapshots(killed)
    resumed = kmifqe_command("resume", killed)
    assert resumed.code == 0, resumed.err
    assert kmifqe_command("rank", *given, "--out", whole).code == 0
    found = [json.loads((out / "ranking.json").read_text(encoding="utf-8")) for out in (killed, whole)]
    for part in ("ranking", "not_ranked", "differences"):
        assert found[0][part] == found[1][part]
    assert found[0]["ranking"] or found[0]["not_ranked"]


def snapshots(run) -> set[str]:
    """Return the snapshots and finished fits that a run directory holds."""
    return {
        str(path)
        for path in run.rglob("*")
        if path.suffix in (".safetensors", ".json") and path.parent != run
    }


def test_evaluate_points_to_rank_for_more_than_one_policy(kmifqe_command, folder) -> None:
    arguments = ("--policy", folder / "one.safetensors", "--policy", folder / "two.safetensors")
    done = kmifqe_command("evaluate", folder / "log.npz", *arguments, "--out", folder / "run")
    assert done.code == 2
    assert "kmifqe rank" in done.err
    assert not (folder / "run").exists()


def test_patterns_are_expanded_and_each_policy_counts_once(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    assert expand(["t*.safetensors", "module:policy"]) == [
        "three.safetensors",
        "two.safetensors",
        "module:policy",
    ]
    odd = folder / "odd[1].safetensors"
    odd.write_bytes(b"")
    assert expand([str(odd)]) == [str(odd)]
    with pytest.raises(InputError, match="no file has such a name"):
        expand(["nothing-*.zip"])
    with pytest.raises(InputError, match="given twice"):
        expand(["t*.safetensors", str(folder / "two.safetensors")])


def test_a_pattern_that_the_shell_expanded_is_refused_with_a_word_on_quotes(kmifqe_command, folder) -> None:
    files = (folder / "one.safetensors", folder / "two.safetensors")
    done = kmifqe_command("rank", folder / "log.npz", "--policy", *files, "--out", folder / "run")
    assert done.code == 2
    assert "quotes" in done.err
    assert not (folder / "run").exists()


def test_one_policy_is_not_ranked(kmifqe_command, folder) -> None:
    done = kmifqe_command("rank", folder / "log.npz", "--policy", folder / "one.safetensors")
    assert done.code == 2
    assert "kmifqe evaluate" in done.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("policy,value\na.zip,1.5\n", {"a.zip": 1.5}),
        ('{"a.zip": 1.5}', {"a.zip": 1.5}),
        ("\ufeffvalue,policy\n-2,b\n", {"b": -2.0}),
    ],
)
def test_truths_are_read_from_csv_and_json(tmp_path, text, expected) -> None:
    (tmp_path / "truth").write_text(text, encoding="utf-8")
    assert read_truth(tmp_path / "truth") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "policy,value\na,nothing\n",
        "policy,value\na,nan\n",
        "policy,value\na,1e300\n",
        "policy,value\na,1\na,2\n",
        "name,worth\na,1\n",
        '{"a": "b"}',
        "{",
    ],
)
def test_a_file_without_truths_is_refused(tmp_path, text) -> None:
    (tmp_path / "truth").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="truth"):
        read_truth(tmp_path / "truth")


@pytest.mark.parametrize("truth", [{"a": 1.0}, {"a": 1.0, "b": float("nan")}, {"a": 1.0, "b": 1e300}])
def test_truths_that_lack_a_policy_or_are_no_values_are_refused(truth) -> None:
    check_truth({"a": 1.0, "b": 2.0, "more": float("nan")}, ["a", "b"])
    with pytest.raises(InputError, match=r"^truth\.csv .* b"):
        check_truth(truth, ["a", "b"], "truth.csv")


def test_returns_of_a_policy_that_is_not_ranked_are_refused_before_anything_is_trained(
    kmifqe_command, folder
) -> None:
    (folder / "returns.csv").write_text("policy,discounted_return\nfour.safetensors,1\n")
    question = ("rank", folder / "log.npz", "--policy", folder / "*.safetensors", *QUICK)
    done = kmifqe_command(*question, "--next", folder / "returns.csv", "--out", folder / "run")
    assert done.code == 2
    assert "four.safetensors" in done.err
    assert not (folder / "run").exists()


def test_truth_and_env_are_not_both_given(kmifqe_command, folder) -> None:
    both = ("--truth", folder / "log.npz", "--env", "Pendulum-v1")
    done = kmifqe_command("rank", folder / "log.npz", "--policy", folder / "*.safetensors", *both)
    assert done.code == 2
    assert "give one of them" in done.err


def test_runs_on_one_log_are_compared_pair_by_pair(kmifqe_command, folder) -> None:
    options = ("--gamma", "0.8", "-e", "fqe", "--seeds", "3", "--steps", "1000", "--set", "hidden=16")
    for name in ("one", "two"):
        policy = folder / f"{name}.safetensors"
        kmifqe_command("evaluate", folder / "log.npz", "--policy", policy, "--out", folder / name, *options)
    page = folder / "both.html"
    done = kmifqe_command("report", folder / "one", folder / "two", "--out", page)
    assert done.code == 0, done.err
    text = page.read_text(encoding="utf-8")
    assert "Paired differences" in text
    record = json.loads((folder / "one" / "result.json").read_text(encoding="utf-8"))
    assert len(record["estimates"][0]["measurements"]["chance"]["moves"]) == 200
    assert np.isfinite(record["estimates"][0]["value"])
