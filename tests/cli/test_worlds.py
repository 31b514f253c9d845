from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from kmifqe.cli import worlds
from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.policies.actor import Actor

app = typer.Typer()
worlds.register(app)


def run(*arguments: object):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "120"})


@pytest.fixture
def policy(tmp_path):
    weight = np.array([[0.0], [-1.0], [-0.3]], np.float32)
    actor = Actor(
        (weight,), (np.zeros(1, np.float32),), "relu", "tanh", np.float32([-2.0]), np.float32([2.0])
    )
    (tmp_path / "policies").mkdir()
    path = tmp_path / "policies" / "p.safetensors"
    actor.save(path)
    return path


def test_collect_writes_a_log_that_the_other_commands_read(tmp_path, policy):
    out = tmp_path / "log.hdf5"
    wish = (
        "collect",
        "Pendulum-v1",
        "--policy",
        policy,
        "--noise",
        0.5,
        "-n",
        250,
        "--out",
        out,
        "--workers",
        1,
    )
    result = run(*wish, "--uniform-share", "0.2")
    assert result.exit_code == 0, result.output
    assert "250 transitions in 2 episodes (0 terminated)" in result.output
    assert load_dataset(out).log_mu.shape == (250,)
    assert isinstance(run(*wish).exception, InputError)
    assert run(*wish, "--force").exit_code == 0


def test_truth_prints_a_table_or_strict_json(policy):
    wish = ("truth", "Pendulum-v1", "--policy", policy, "--episodes", 2, "--gamma", 0.9, "--workers", 1)
    table = run(*wish)
    assert table.exit_code == 0, table.output
    for label in ("V, normalised, gamma 0.9", "discounted return", "undiscounted return R", "length"):
        assert label in table.output
    truth = json.loads(run(*wish, "--json").stdout)
    assert truth["discounted_return"] == pytest.approx(10 * truth["value"])
    assert (truth["length"], truth["episodes"], truth["env"]) == (200, 2, "Pendulum-v1")
    alone = json.loads(run(*wish, "--json", "--episodes", 1).stdout)
    assert alone["value_standard_error"] is None


def test_train_leaves_a_run_and_prints_the_choice(tmp_path):
    sizes = ("--hidden", "8", "--batch", 8, "--envs", 2, "--eval-episodes", 1, "--choice-episodes", 2)
    wish = ("train", "Pendulum-v1", "--out", tmp_path / "r", *sizes, "--eval-every", 40, "--workers", 1)
    result = run(*wish, "--steps", 80, "--warmup", 60)
    assert result.exit_code == 0, result.output
    assert "target.safetensors" in result.output
    assert len(json.loads((tmp_path / "r" / "training.json").read_text())["curve"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("collect", "Nope-v1"), "Nope-v1: not an environment"),
        (("collect", "CartPole-v1"), "the action space is Discrete"),
        (("collect", "Pendulum-v1", "--noise", "loud"), "--noise is 'loud'"),
        (("collect", "Pendulum-v1", "--noise", "0"), "std is 0"),
        (("collect", "Pendulum-v1", "--policy", "missing.npz"), "missing.npz: no such file"),
        (
            ("collect", "MountainCarContinuous-v0"),
            "takes states of 3 numbers; MountainCarContinuous-v0 has 2",
        ),
        (("truth", "Pendulum-v1", "--gamma", "1"), "gamma is 1.0"),
        (("truth", "Nope-v1"), "Nope-v1: not an environment"),
    ],
)
def test_a_wrong_wish_is_one_sentence_and_no_file(tmp_path, policy, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    given = () if "--policy" in arguments else ("--policy", policy)
    result = run(*arguments, *given, "--workers", 1)
    with pytest.raises(InputError, match=message):
        raise result.exception
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("hidden", ["", "256,", "wide", "0"])
def test_wrong_widths_are_refused(tmp_path, hidden):
    result = run("train", "Pendulum-v1", "--steps", 9, "--out", tmp_path / "r", "--hidden", hidden)
    assert "--hidden is" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [("--episodes", 0), ("--workers", 0), ("--seed", -1)])
def test_counts_out_of_range_are_a_usage_error(policy, option):
    assert run("truth", "Pendulum-v1", "--policy", policy, *option).exit_code == 2


def members_of(group: int) -> list[str]:
    """Return the living processes of a process group; the dead that nobody has waited for do not count."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return [row[2] for row in rows if row[0] == str(group) and not row[1].startswith("Z")]


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_the_workers_and_leaves_no_file(tmp_path, policy):
    script = "import typer; from kmifqe.cli import worlds; a = typer.Typer(); worlds.register(a)\n"
    (tmp_path / "main.py").write_text(script + "if __name__ == '__main__': a()\n")
    before = sorted(tmp_path.iterdir())
    wish = ["collect", "Pendulum-v1", "--policy", str(policy), "-n", "100000000", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "main.py", *wish],
        cwd=tmp_path,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        # A test run in the background of a shell script ignores SIGINT, and so would every child of it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 90
    while sorted(tmp_path.iterdir()) == before and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    try:
        while process.poll() is None and time.monotonic() < deadline:
            # As a terminal does: the whole group hears it. Pressed again where Python swallowed it, as it does with
            # an exception in a callback of a compiled library.
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        assert process.poll() not in (None, 0)
    finally:
        process.kill()  # nothing is left running if it did not hear
    assert [path for path in tmp_path.iterdir() if path.suffix == ".hdf5"] == []
    while members_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members_of(process.pid) == []


def test_a_task_in_a_module_of_the_current_directory_is_found_by_the_workers_too(tmp_path, policy):
    """An installed command has the directory of the command on its path, and not the current one."""
    task = "import gymnasium as gym\nfrom gymnasium.envs.classic_control import PendulumEnv\n"
    task += "class Mine(PendulumEnv):\n    def step(self, action):\n        import my_physics\n"
    task += "        return super().step(my_physics.doubled(action))\n"
    task += "gym.register('Mine-v0', Mine, max_episode_steps=20)\n"
    (tmp_path / "my_tasks.py").write_text(task)
    (tmp_path / "my_physics.py").write_text("def doubled(action):\n    return 2 * action\n")
    (tmp_path / "command").mkdir()
    script = tmp_path / "command" / "kmifqe.main.py"
    script.write_text("from kmifqe.cli import main\nif __name__ == '__main__': main()\n")
    wish = [
        "collect",
        "my_tasks:Mine-v0",
        "--policy",
        str(policy),
        "-n",
        "40",
        "--envs",
        "2",
        "--workers",
        "2",
    ]
    done = subprocess.run(
        [sys.executable, str(script), *wish], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert len(load_dataset(tmp_path / "my_tasks-Mine-v0.hdf5")) == 40
