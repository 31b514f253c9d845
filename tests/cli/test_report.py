"""`kmifqe report`: where the page goes, and what a wrong path says."""

import csv
import json
import os
import subprocess
import sys
import webbrowser

import pytest
from msgspec import structs

from kmifqe.report.result import Result
from kmifqe.store.manifest import Manifest, read_manifest, write_manifest
from report.small import small_run


def test_the_page_goes_into_the_run(kmifqe_command, tmp_path):
    run = small_run(tmp_path / "run")
    outcome = kmifqe_command("report", run)
    assert outcome.code == 0
    assert outcome.out.startswith(f"written: {run / 'report.html'} (0.")
    assert "The policy is worth −3.790 per step" in (run / "report.html").read_text(encoding="utf-8")


def test_out_and_open_are_obeyed(kmifqe_command, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)))
    page = tmp_path / "a page.html"
    outcome = kmifqe_command("report", small_run(tmp_path / "run"), "--out", page, "--open")
    assert outcome.code == 0
    assert opened == [page.resolve().as_uri()]
    assert "no browser was found" in outcome.err


def test_several_runs_make_one_page_here(kmifqe_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = kmifqe_command("report", small_run(tmp_path / "a"), small_run(tmp_path / "b"))
    assert outcome.code == 0
    assert "2 policies compared" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["run/report.html", "report.html", "mine.html"])
def test_a_file_that_is_no_report_of_ours_is_not_replaced_unasked(
    kmifqe_command, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    runs = [small_run(tmp_path / "run"), small_run(tmp_path / "other")][: 1 if name.startswith("run") else 2]
    more = ["--out", name] if name.startswith("mine") else []
    page = tmp_path / name
    page.write_text("<p>mine")
    refused = kmifqe_command("report", *runs, *more)
    assert refused.code == 2
    assert "--out" in refused.err
    assert "--force" in refused.err
    assert page.read_text() == "<p>mine"
    assert kmifqe_command("report", *runs, *more, "--force").code == 0
    assert "The policy is worth" in page.read_text(encoding="utf-8")
    assert kmifqe_command("report", *runs, *more).code == 0  # a page of ours is made again unasked


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_link_and_a_pipe_are_never_written_through(kmifqe_command, tmp_path, force):
    victim = tmp_path / "victim.html"
    victim.write_text("keep")
    run = small_run(tmp_path / "run")
    (run / "report.html").symlink_to(victim)
    assert kmifqe_command("report", run, *force).code == (0 if force else 2)
    assert victim.read_text() == "keep"
    os.mkfifo(tmp_path / "pipe")
    refused = kmifqe_command("report", run, "--out", tmp_path / "pipe", *force)
    assert refused.code == 2
    assert (tmp_path / "pipe").is_fifo()


def test_a_page_made_later_belongs_to_its_run(kmifqe_command, tmp_path):
    run = small_run(tmp_path / "run")
    write_manifest(run, structs.replace(Manifest.of_run({}), files=("result.json",)))
    assert kmifqe_command("report", run).code == 0
    assert read_manifest(run).files == ("report.html", "result.json")


@pytest.mark.parametrize("out", [None, "folder"])
def test_a_wrong_path_is_one_sentence(kmifqe_command, tmp_path, out):
    run = tmp_path / "nothing" if out is None else small_run(tmp_path / "run")
    (tmp_path / "folder").mkdir()
    outcome = kmifqe_command("report", run, *([] if out is None else ["--out", tmp_path / out]))
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert ("nothing: not found" if out is None else "is a directory") in outcome.err


def test_experiment_records_are_rendered_instead(kmifqe_command, tmp_path, monkeypatch):
    from kmifqe.experiments import paper_tables

    asked = []
    monkeypatch.setattr(paper_tables, "render", lambda *told: asked.append(told) or [told[1] / "tables.md"])
    record = tmp_path / "smoke" / "table1" / "pendulum" / "fqe.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"schema": "kmifqe.experiment/1"}))
    outcome = kmifqe_command("report", tmp_path)
    assert outcome.code == 0
    assert asked == [(tmp_path, tmp_path / "smoke" / "rendered", "smoke")]
    assert "tables.md" in outcome.out


def test_tables_hold_every_estimator_of_every_run(kmifqe_command, tmp_path):
    runs = [small_run(tmp_path / name) for name in ("first_run", "second")]
    written = ("--out", tmp_path / "a.html", "--csv", tmp_path / "a.csv", "--latex", tmp_path / "a.tex")
    assert kmifqe_command("report", *runs, *written).code == 0
    with (tmp_path / "a.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    result = Result.load(runs[0])
    assert [row["estimator"] for row in rows] == 2 * [estimate.estimator for estimate in result.estimates]
    assert {row["run"] for row in rows} == set(map(str, runs))
    for row, estimate in zip(rows, result.estimates):
        interval = result.intervals[estimate.estimator]
        assert float(row["value"]) == estimate.value
        assert (row["low"], row["high"]) == (
            ("", "") if interval is None else (str(interval.low), str(interval.high))
        )
        assert row["verdict"] == result.verdicts[estimate.estimator].word
    text = (tmp_path / "a.tex").read_text(encoding="utf-8")
    assert r"first\_run: actor.npz & kmifqe & $-3.790$ & $-3.950$ to $-3.620$ & do not use \\" in text
    assert text.count(r"\midrule") == 2
    assert text.count(" & ") == 4 * (1 + len(rows))
    assert kmifqe_command("report", *runs, *written).code == 0  # tables of ours are made again unasked
    for name in ("a.csv", "a.tex"):
        (tmp_path / name).write_text("mine")
        refused = kmifqe_command("report", *runs, *written)
        assert (refused.code, (tmp_path / name).read_text()) == (2, "mine")
        assert kmifqe_command("report", *runs, *written, "--force").code == 0


def test_no_device_is_started(tmp_path):
    run = small_run(tmp_path)
    script = (
        "import sys; from jax._src import xla_bridge; from kmifqe.cli import main\n"
        f"sys.argv = ['kmifqe', 'report', {str(run)!r}]\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code\n"
        "assert not xla_bridge._backends"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (run / "report.html").exists()


def test_one_file_cannot_be_page_and_table(kmifqe_command, tmp_path):
    run, page = small_run(tmp_path / "run"), tmp_path / "page"
    for options in (
        ["--out", page, "--csv", page],
        ["--csv", page, "--latex", tmp_path / "run" / ".." / "page"],
    ):
        assert kmifqe_command("report", run, *options).code == 2
        assert not page.exists()
