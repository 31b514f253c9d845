"""`kmifqe report`: where the page goes, and what a wrong path says."""

import json
import subprocess
import sys
import webbrowser

import pytest

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
