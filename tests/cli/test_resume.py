"""`kmifqe evaluate` survives: stopped, refused, resumed, with the bits of an undisturbed run."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from kmifqe.api import RESUMED, Options
from kmifqe.behavior import FitConfig, fit_behavior
from kmifqe.behavior import fit as fitting
from kmifqe.cli.session import Interrupts
from kmifqe.ranking import SIZED_FOR, RankOptions, rank
from kmifqe.store.directory import LOCK, locked
from kmifqe.store.manifest import RANK, Manifest, write_manifest

FAST = ("--gamma", 0.5, "--seeds", 2, "--steps", 20, "--set", "hidden=8", "--set", "batch=16")
PERIOD = (
    "--set",
    "target_period=5",
    "--set",
    "metric_period=1",
    "--set",
    "bandwidth=0.5",
)  # a fixed bandwidth compiles in less time


@pytest.fixture
def evaluate(kmifqe_command, tmp_path, log, actor_path):
    """Return a function of (directory, options) that evaluates FQE and, with a density, KMIFQE."""
    data = tmp_path / "log.npz"
    np.savez(data, **log)

    def run(out, *options, behavior="logged"):
        more = () if behavior is None else ("-e", "kmifqe-identity", "--behavior", behavior, *PERIOD)
        return kmifqe_command(
            "evaluate", data, "--policy", actor_path, "--out", out, "-e", "fqe", *FAST, *more, *options
        )

    return run


@pytest.fixture
def stop_after(monkeypatch):
    """Return a function that lets Ctrl-C be heard at the `count`-th time the run asks for it; 0 for never."""

    def arm(count):
        asked = [0]

        def fake(self):
            asked[0] += 1
            self._signal = signal.SIGINT if count and asked[0] >= count else 0
            return bool(self._signal)

        monkeypatch.setattr(Interrupts, "asked", fake)

    return arm


def estimates(out):
    """Return the result's estimates without what may differ: the time they took."""
    result = json.loads((out / "result.json").read_text())
    return [{k: v for k, v in e.items() if k != "seconds"} for e in result["estimates"]]


def test_a_stopped_run_goes_on_with_the_same_bits(
    evaluate, kmifqe_command, stop_after, tmp_path, monkeypatch
):
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert evaluate(whole).code == 0
    stop_after(7)  # asked once before the first step of FQE, then at every one of its 20 records
    stopped = evaluate(out)
    assert stopped.code == 130
    assert "fqe: 6 of 20 steps saved" in stopped.err
    assert f"kmifqe resume {out}" in stopped.err
    assert not (out / "result.json").exists()

    stop_after(0)
    refused = evaluate(out)
    assert refused.code == 2
    assert "unfinished run; --resume" in refused.err

    # 14 records are left of FQE; then it is asked at each of KMIFQE's steps. It can begin from 5, 10, 15 and 20.
    stop_after(1 + 14 + 1 + 10)
    stopped = evaluate(out, "--resume")
    assert stopped.code == 130
    assert "kmifqe-identity: 10 of 20 steps saved" in stopped.err
    assert "fqe" in stopped.out  # the finished estimate is printed

    stop_after(0)
    monkeypatch.chdir(
        tmp_path / "run"
    )  # paths in the options are relative to where the run began, if relative
    done = kmifqe_command("resume", out)
    assert done.code == 0, done.err
    assert estimates(out) == estimates(whole)
    assert sorted(p.name for p in out.iterdir()) == [
        "bandwidth.png",
        "finished",
        "landscape.npz",
        "report.html",
        "result.json",
        "run.json",
        "trajectories.png",
    ]
    again = evaluate(out, "--resume")
    assert again.code == 0
    assert "steps  " not in again.err  # no progress: nothing was left to do
    assert estimates(out) == estimates(whole)


def test_relative_paths_are_those_of_the_first_command(
    kmifqe_command, stop_after, tmp_path, log, actor_path, monkeypatch
):
    np.savez(tmp_path / "log.npz", **log)
    monkeypatch.chdir(tmp_path)
    stop_after(4)
    arguments = ("log.npz", "--policy", actor_path.name, "--out", "run", "-e", "fqe", *FAST)
    assert kmifqe_command("evaluate", *arguments).code == 130
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    stop_after(0)
    done = kmifqe_command("resume", "../run")
    assert done.code == 0, done.err
    assert estimates(tmp_path / "run")[0]["steps"] == 20


@pytest.mark.parametrize(
    "named",
    [
        {"policy": "planted:act"},
        {"behavior": "planted:density"},
        {"behavior": " gaussian:planted:act:0.5"},
        {"behavior": "gaussian:planted:act:0.5:0.1"},
        {"policy": "planted:act", "behavior": "gaussian:planted:act:0.5"},
    ],
    ids=str,
)
def test_code_that_a_received_run_names_is_not_run_unasked(
    kmifqe_command, stop_after, tmp_path, log, actor_path, monkeypatch, named
):
    np.savez(tmp_path / "log.npz", **log)
    monkeypatch.chdir(tmp_path)
    stop_after(1)  # after the policy and the density are there, before anything is compiled
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w').close()\ndef act(states):\n    return -0.5 * states[:, :2]\n"
    (tmp_path / "planted.py").write_text(code)
    options = {"data": "log.npz", "policy": actor_path.name, "behavior": "logged", "gamma": 0.5}
    monkeypatch.delitem(sys.modules, "planted", raising=False)

    def resume_received(*more):
        (tmp_path / "run").mkdir(exist_ok=True)
        write_manifest(tmp_path / "run", Manifest.of_run(options | named))
        return kmifqe_command("resume", "run", *more)

    refused = resume_received()
    assert refused.code == 2
    assert "planted:" in refused.err
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    monkeypatch.setattr("sys.stderr", Terminal())
    assert resume_received().code == 2
    assert not ran.exists()
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    resume_received()
    assert ran.exists()
    ran.unlink()
    sys.modules.pop("planted")
    resume_received("--allow-code")
    assert ran.exists()


def test_a_name_of_any_length_is_looked_at_in_time(kmifqe_command, tmp_path):
    options = {"data": "log.npz", "policy": "x" * 100_000, "behavior": "logged", "gamma": 0.5}
    write_manifest(tmp_path, Manifest.of_run(options))
    began = time.process_time()
    assert kmifqe_command("resume", tmp_path).code == 2
    assert time.process_time() - began < 8  # the square of its length took a minute


@pytest.mark.parametrize(
    "options",
    [{"policy": "p"}, {"data": 3, "policy": "p"}, {"data": "d", "policy": "p", "gamma": "high"}],
    ids=str,
)
def test_options_of_another_kind_are_one_sentence(kmifqe_command, tmp_path, options):
    write_manifest(tmp_path, Manifest.of_run(options))
    refused = kmifqe_command("resume", tmp_path)
    assert refused.code == 2
    assert str(tmp_path / "run.json") in refused.err
    assert Options.__annotations__.keys() == set(RESUMED)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["does not name the log"]),
        ({"data": "log.npz", "policies": ["a", "b"]}, ["policies"]),
        (
            {"data": "log.npz", "policies": {"a": "a.npz", "b": "planted:act"}},
            ["planted:act", "--allow-code"],
        ),
    ],
    ids=["objects", "no names", "code"],
)
def test_a_ranking_that_cannot_be_resumed_by_name_is_one_sentence(kmifqe_command, tmp_path, options, words):
    write_manifest(tmp_path, Manifest.of_run(options | {SIZED_FOR: 400}, task=RANK))
    refused = kmifqe_command("resume", tmp_path)
    assert refused.code == 2
    for word in (*words, str(tmp_path / "run.json")):
        assert word in refused.err
    assert RankOptions.__annotations__.keys() < inspect.signature(rank).parameters.keys()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_fitted_density_is_fitted_once(evaluate, stop_after, tmp_path, monkeypatch):
    fits = []

    def quick_fit(*args):
        fits.append(1)
        *data, _, progress = args
        return fit_behavior(*data, FitConfig(components=(2,), hidden=(8,), steps=10), progress)

    monkeypatch.setattr(fitting, "fit_behavior", quick_fit)
    out = tmp_path / "run"
    stop_after(1)  # before FQE: nothing is compiled
    first = evaluate(out, behavior="fit")
    assert first.code == 130, first.err
    assert "fqe: nothing to go on from yet" in first.err
    stored = (out / "behavior.safetensors").read_bytes()
    again = evaluate(out, "--resume", behavior="fit")
    assert again.code == 130, again.err
    assert "as fitted before" in again.err
    assert len(fits) == 1
    assert (out / "behavior.safetensors").read_bytes() == stored
    assert json.loads((out / "behavior_fit.json").read_text())["report"]["chosen"] == 2


@pytest.mark.parametrize(
    "options, words",
    [
        (("--seeds", 3), ["seeds = [0, 1]", "seeds = [0, 1, 2]"]),
        (("--steps", 40), ["steps = 20", "steps = 40"]),
        (("--gamma", 0.9), ["gamma = 0.5", "gamma = 0.9"]),
        (("--set", "tau=0.5"), ["tau = 0.1", "tau = 0.5"]),
        (("--force",), ["--force", "--resume"]),
    ],
)
def test_resuming_another_run_is_one_sentence(evaluate, stop_after, tmp_path, options, words):
    stop_after(4)
    out = tmp_path / "run"
    assert evaluate(out, behavior=None).code == 130
    stop_after(0)
    refused = evaluate(out, "--resume", *options, behavior=None)
    assert refused.code == 2
    for word in words:
        assert word in refused.err
    assert "Traceback" not in refused.err


def test_a_second_process_and_a_missing_run_are_one_sentence(evaluate, kmifqe_command, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    with locked(out / LOCK):
        refused = evaluate(out, behavior=None)
    assert refused.code == 2
    assert f"another process (id {os.getpid()})" in refused.err
    missing = kmifqe_command("resume", tmp_path / "none")
    assert missing.code == 2
    assert "run.json: does not exist" in missing.err


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(evaluate, tmp_path, monkeypatch):
    def full(*args, **more):
        raise OSError(28, "No space left on device")

    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("kmifqe.report.result.write_json", full)
        refused = evaluate(out, behavior=None)
    assert refused.code == 2
    assert f"{out}: cannot be written (No space left on device)" in refused.err
    done = evaluate(out, "--resume", behavior=None)
    assert done.code == 0, done.err
    assert estimates(out)[0]["steps"] == 20


# --- Real signals, to a real process

# A test run in the background of a shell script ignores SIGINT, and so would every child of it.
AS_IF_IN_A_TERMINAL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from kmifqe.cli import main
main()
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a folder for compiled programs: each is compiled by the first process that needs it."""
    return tmp_path_factory.mktemp("compiled")


def start(folder, log, actor_path, steps, compiled):
    """Return an evaluation in a process of its own, and its directory."""
    data, out = folder / "log.npz", folder / "run"
    np.savez(data, **log)
    command = [
        sys.executable,
        "-c",
        AS_IF_IN_A_TERMINAL,
        "evaluate",
        data,
        "--policy",
        actor_path,
        "--out",
        out,
    ]
    command += ["-e", "fqe", "--gamma", 0.5, "--seeds", 2, "--steps", steps, "--set", "hidden=8", "--resume"]
    cache = {"JAX_COMPILATION_CACHE_DIR": compiled, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0}
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"} | {name: str(value) for name, value in cache.items()},
    )
    return process, out


def test_a_signal_finishes_the_block_and_saves(tmp_path, log, actor_path, compiled):
    steps = [0]
    for number, code in (
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
    ):  # the second goes on where the first ended
        process, out = start(tmp_path, log, actor_path, steps=200_000, compiled=compiled)
        while "/200,000 steps" not in process.stderr.readline() and process.poll() is None:
            pass
        process.send_signal(number)
        _, err = process.communicate(timeout=300)
        assert process.returncode == code, err
        assert "stopping after this block of steps" in err
        saved = re.search(r"fqe: ([\d,]+) of 200,000 steps saved", err)
        assert saved is not None, err
        steps.append(int(saved[1].replace(",", "")))
        assert steps[-1] % 2_000 == 0
        assert steps[-1] > steps[-2]
        assert (out / "checkpoints" / "fqe" / f"step-{steps[-1]:012d}.safetensors").exists()


IN_A_BLOCK = """
import time
from rich.console import Console
from kmifqe.cli.session import Interrupts
with Interrupts(Console(stderr=True)) as interrupts:
    interrupts.training(True)
    print("training", flush=True)
    time.sleep(600)
"""


def test_ctrl_c_twice_stops_inside_the_block():
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_BLOCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "training\n"
    process.send_signal(signal.SIGINT)
    assert "saved first" in process.stderr.readline()  # one does not end it
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped; what was saved before is there" in err


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_is_enough_before_the_first_steps(tmp_path, log, actor_path, compiled, number, code):
    """The first block would take hours: what ends the process is neither its end nor a second signal."""
    process, out = start(tmp_path, log, actor_path, 2_000_000_000, compiled)
    while not (out / "checkpoints").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert (out / "run.json").exists() == ("--resume" in err)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_early_signal_ends_the_command_and_names_no_folder_that_is_gone(
    tmp_path, log, actor_path, kmifqe_command, monkeypatch, number, code
):
    np.savez(tmp_path / "log.npz", **log)

    def slow_reader(*_, **__):
        os.kill(os.getpid(), number)
        time.sleep(60)

    monkeypatch.setattr("kmifqe.api.load_dataset", slow_reader)
    out = tmp_path / "run"
    stopped = kmifqe_command(
        "evaluate", tmp_path / "log.npz", "--policy", actor_path, "--out", out, "-e", "fqe"
    )
    assert stopped.code == code
    assert not out.exists()
    assert "go on with" not in stopped.err
    assert "Traceback" not in stopped.err
