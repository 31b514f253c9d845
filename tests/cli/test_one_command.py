"""`kmifqe evaluate LOG --policy P`: what it does where nothing else is said, and what follows from its verdict."""

import json
import warnings

import numpy as np
import pytest

FAST = ("--gamma", 0.5, "--seeds", 2, "--steps", 20, "--set", "hidden=8", "--set", "batch=16")


@pytest.fixture
def npz(tmp_path, log, monkeypatch):
    """Return a log in the working directory, which is an empty one of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "log.npz"
    np.savez(path, **log)
    return path


def test_a_log_and_a_policy_are_enough(kmifqe_command, npz, actor_path, tmp_path):
    command = ("evaluate", npz.name, "--policy", actor_path, *FAST)
    done = kmifqe_command(*command)
    assert done.code == 0, done.err
    out = tmp_path / "runs" / f"{actor_path.stem}-from-log"
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert [each["estimator"] for each in result["estimates"]] == ["auto", "kmifqe", "fqe"]
    assert result["question"]["behavior"] == "logged"  # the log has densities
    members = result["estimates"][0]["members"]
    assert sum(members.values()) == pytest.approx(1.0)
    value = sum(
        weight * next(e["value"] for e in result["estimates"] if e["estimator"] == name)
        for name, weight in members.items()
    )
    assert result["estimates"][0]["value"] == pytest.approx(value)
    assert result["comparison"]["answer"] in ("better", "worse", "cannot tell")
    assert done.out.startswith("The policy is worth ")
    assert "The logged controller earned " in done.out
    assert "gamma 0.5" in done.err
    # Another run is another folder; nothing is replaced.
    assert kmifqe_command(*command, "-e", "fqe").code == 0
    assert (tmp_path / "runs" / f"{actor_path.stem}-from-log-2" / "result.json").exists()


def test_names_of_any_script_are_shown_as_they_are(kmifqe_command, npz, actor_path, tmp_path):
    log = npz.rename(tmp_path / "журнал🫨.npz").name
    policy = actor_path.rename(tmp_path / "badpol💥👩\N{ZERO WIDTH JOINER}🚀.safetensors").name
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # as of a figure's font without these signs
        done = kmifqe_command("evaluate", log, "--policy", policy, "-e", "fqe", *FAST)
    assert done.code == 0, done.err
    assert "could not be made" not in done.err
    out = tmp_path / "runs" / f"{policy.removesuffix('.safetensors')}-from-журнал🫨"
    assert str(out.relative_to(tmp_path)) in done.err
    question = json.loads((out / "result.json").read_text(encoding="utf-8"))["question"]
    assert (question["policy"], question["data"]) == (policy, log)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert policy in page
    assert log in page
    wrong = kmifqe_command("evaluate", log, "--policy", f"no-{policy}")
    assert f"no-{policy}" in wrong.err


def test_a_log_in_the_place_of_a_policy_is_named_and_nothing_is_left(
    kmifqe_command, npz, actor_path, tmp_path
):
    done = kmifqe_command("evaluate", actor_path.name, "--policy", npz.name, *FAST)
    assert (done.code, "log.npz: holds a log; expected a policy" in done.err) == (2, True)
    assert not (tmp_path / "runs").exists()  # which was made for the run that did not come to be


def test_a_verdict_can_be_an_exit_code(kmifqe_command, npz, actor_path, tmp_path):
    command = ("evaluate", npz.name, "--policy", actor_path, "-e", "fqe", *FAST)
    codes = {}
    for flag in (None, "do-not-use", "care"):
        told = () if flag is None else ("--fail-on", flag)
        codes[flag] = kmifqe_command(*command, "--out", tmp_path / f"run-{flag}", *told).code
    verdicts = json.loads((tmp_path / "run-None" / "result.json").read_text(encoding="utf-8"))["verdicts"]
    assert verdicts["fqe"]["word"] == "do not use"  # after 20 steps
    assert codes == {None: 0, "do-not-use": 3, "care": 3}


@pytest.mark.parametrize(
    "arguments, fragments",
    [
        (["--accept", "ends"], ["ends", "unexplained_ends"]),
        (["--resume"], ["--resume", "--out"]),
    ],
)
def test_a_wrong_word_is_one_sentence_and_leaves_nothing(
    kmifqe_command, npz, actor_path, tmp_path, arguments, fragments
):
    done = kmifqe_command("evaluate", npz.name, "--policy", actor_path, *FAST, *arguments)
    assert done.code == 2
    assert all(fragment in done.err for fragment in fragments)
    assert "Traceback" not in done.err
    assert not (tmp_path / "runs").exists()
