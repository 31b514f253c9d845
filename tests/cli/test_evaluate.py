import json
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from kmifqe import runner
from kmifqe.cli import evaluate
from kmifqe.estimators import PRESETS
from kmifqe.store.checkpoints import SAVE_SECONDS

FAST = ("--gamma", 0.5, "--seeds", 2, "--steps", 20, "--set", "hidden=8", "--set", "batch=16")


@pytest.fixture
def npz(tmp_path, log):
    path = tmp_path / "log.npz"
    np.savez(path, **log)
    return path


def test_evaluate_prints_a_table_and_writes_the_result(kmifqe_command, tmp_path, npz, actor_path):
    out = tmp_path / "run"
    names = ["kmifqe", "kmifqe-identity", "fqe", "sr-dice"]
    flags = [flag for name in names for flag in ("-e", name)]
    settings = ("--set", "target_period=10", "--set", "features=8", "--set", "ratio_batch=16")
    done = kmifqe_command(
        "evaluate",
        npz,
        "--policy",
        actor_path,
        "--behavior",
        "logged",
        "--out",
        out,
        *FAST,
        *settings,
        *flags,
    )
    assert done.code == 0, done.err
    result = json.loads((out / "result.json").read_text())
    assert result["schema"] == "kmifqe.result/3"
    assert [e["estimator"] for e in result["estimates"]] == names
    assert result["question"]["rows"]["logged"] == 120
    assert result["question"]["rows"]["without_next_state"] == 12
    for estimate in result["estimates"]:
        assert estimate["config"]["hidden"] == 8
        assert len(estimate["values"]) == 2
        assert estimate["value"] == pytest.approx(np.mean(estimate["values"]))
        assert estimate["discounted_return"] == pytest.approx(estimate["value"] / 0.5)
        assert estimate["recorded_steps"][-1] == 20
        assert estimate["estimator"] in done.out
        assert estimate["bootstrap"] is True
        interval = result["intervals"][estimate["estimator"]]
        if interval is not None:
            assert interval["low"] < estimate["value"] < interval["high"]
            assert interval["level"] == 0.95
    assert result["intervals"]["kmifqe"] is not None
    assert "95 % interval" in done.out
    assert result["estimates"][3]["config"]["stages"] == [1, 5, 14]
    figures = {"trajectories.png", "bandwidth.png"}
    shown = {"report.html", "landscape.npz"}
    assert {path.name for path in out.iterdir()} == {"result.json", "run.json", "finished"} | figures | shown
    # So few steps let nothing arrive: the verdict says so, in the record, on the terminal and on the page.
    assert result["verdicts"]["kmifqe"]["word"] == "do not use"
    assert set(result["verdicts"]) == {estimate["estimator"] for estimate in result["estimates"]}
    assert result["estimates"][0]["measurements"]["weights"]["effective_rows"] > 0
    assert "do not use" in done.err
    assert "do not use" in (out / "report.html").read_text()


def test_a_function_of_ones_own_is_a_policy(kmifqe_command, tmp_path, npz, log, monkeypatch):
    # It says nothing of the width of its states: what the data has is what it takes.
    width = log["actions"].shape[1]
    (tmp_path / "my_policies.py").write_text(f"def act(states):\n    return -0.5 * states[:, :{width}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "own"
    done = kmifqe_command("evaluate", npz, "--policy", "my_policies:act", "-e", "fqe", "--out", out, *FAST)
    assert done.code == 0, done.err
    assert "my_policies:act" in json.loads((out / "result.json").read_text())["question"]["policy"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name")
def test_a_name_that_is_no_utf8_is_no_trouble(kmifqe_command, tmp_path, log, actor_path):
    data, policy, out = (
        tmp_path / os.fsdecode(name) for name in (b"l\xff.npz", b"a\xfe.safetensors", b"r\xfd")
    )
    np.savez(data, **log)
    actor_path.rename(policy)
    command = ("evaluate", data, "--policy", policy, "--out", out, "-e", "fqe", *FAST)
    done = kmifqe_command(*command)
    assert done.code == 0, done.err
    assert json.loads((out / "result.json").read_text())["question"]["data"].endswith("l?.npz")
    assert {path.name for path in out.iterdir()} >= {"report.html", "trajectories.png"}
    assert kmifqe_command(*command, "--resume").code == 0
    asked = kmifqe_command("resume", out)
    assert asked.code == 2
    assert "--resume" in asked.err
    assert kmifqe_command("report", out).code == 0


def test_the_same_command_gives_the_same_values(kmifqe_command, tmp_path, npz, actor_path):
    values = []
    for name in ("a", "b"):
        out = tmp_path / name
        done = kmifqe_command(
            "evaluate", npz, "--policy", actor_path, "--behavior", "logged", "--out", out, *FAST
        )
        assert done.code == 0, done.err
        values.append(json.loads((out / "result.json").read_text())["estimates"][0]["trajectory"])
    assert values[0] == values[1]


def test_gaussian_behavior_gives_the_logged_densities_result(kmifqe_command, tmp_path, log, actor_path):
    """μ = N(π̃_b(s), 0.5²) written out, and the same density in the log: fixed h makes the two runs alike."""
    zero = tmp_path / "zero.npz"
    np.savez(
        zero,
        w0=np.zeros((3, 2)),
        b0=np.zeros(2),
        hidden="tanh",
        output="tanh",
        low=-np.ones(2),
        high=np.ones(2),
        n_layers=1,
    )
    data = tmp_path / "log.npz"
    np.savez(data, **log)
    values = []
    for i, behavior in enumerate(("logged", f"gaussian:{zero}:0.5")):
        out = tmp_path / f"run{i}"
        done = kmifqe_command(
            "evaluate",
            data,
            "--policy",
            actor_path,
            "--behavior",
            behavior,
            "--out",
            out,
            "--set",
            "bandwidth=0.4",
            *FAST,
        )
        assert done.code == 0, done.err
        values.append(json.loads((out / "result.json").read_text())["estimates"][0]["values"])
    np.testing.assert_allclose(values[0], values[1], atol=1e-5)


def test_fqe_alone_needs_no_behavior(kmifqe_command, tmp_path, npz, actor_path):
    done = kmifqe_command(
        "evaluate", npz, "--policy", actor_path, "--out", tmp_path / "run", "-e", "fqe", *FAST
    )
    assert done.code == 0, done.err
    assert "running on the CPU, " in done.err
    forecast = (
        r"fqe, 2 seeds, 20 steps: .* of memory \(data .*, seeds .*, working space .*\).*; another .* is free"
    )
    assert re.search(forecast, done.err)
    assert re.search(r"fqe: 1/20 steps  .*compiling included", done.err)
    assert re.search(r"fqe: 2/20 steps  .* left", done.err)  # the second record knows how long it takes


def test_where_the_device_gives_out_the_data_moves_to_the_host(
    kmifqe_command, tmp_path, npz, actor_path, monkeypatch
):
    real, places = runner.fit, []

    def small_device(estimator, problem, **options):
        places.append(problem.is_on_host)
        if not problem.is_on_host:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return real(estimator, problem.on_device(), **options)  # whose program is compiled already

    monkeypatch.setattr(runner, "fit", small_device)
    done = kmifqe_command(
        "evaluate", npz, "--policy", actor_path, "--out", tmp_path / "run", "-e", "fqe", *FAST
    )
    assert done.code == 0, done.err
    assert places == [False, True]
    assert "warning: the device's memory gave out: " in done.err
    assert "of data move to host memory" in done.err


def test_episodes_of_one_step_are_refused_by_kmifqe(kmifqe_command, tmp_path, log, actor_path):
    short = log | {"timeouts": np.ones(120, bool), "next_observations": log["observations"][::-1]}
    np.savez(tmp_path / "short.npz", **short)
    command = ("evaluate", tmp_path / "short.npz", "--policy", actor_path, "--behavior", "logged", *FAST)
    refused = kmifqe_command(*command, "--out", tmp_path / "run")
    assert refused.code == 2
    assert "no row has one: every episode is cut after one step; FQE and SR-DICE need none" in refused.err
    assert not (tmp_path / "run").exists()


def test_the_words_of_the_command_are_those_of_the_library():
    """They are said twice, so that --help need not wait for JAX."""
    assert evaluate.PRESETS.split(", ") == list(PRESETS)
    assert evaluate.SAVE_SECONDS == SAVE_SECONDS


def test_help_does_not_wait_for_jax():
    script = "import sys, kmifqe.cli.app; sys.exit('jax' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 0


def test_an_earlier_result_is_not_replaced_unless_asked(kmifqe_command, tmp_path, npz, actor_path):
    earlier = tmp_path / "run" / "result.json"
    command = ("evaluate", npz, "--policy", actor_path, "--out", tmp_path / "run", "-e", "fqe", *FAST)
    assert kmifqe_command(*command).code == 0
    first = earlier.read_bytes()
    refused = kmifqe_command(*command)
    assert refused.code == 2
    assert "--force" in refused.err
    assert earlier.read_bytes() == first
    assert kmifqe_command(*command, "--force", "--gamma", 0.9).code == 0
    assert earlier.read_bytes() != first


@pytest.mark.parametrize(
    "arguments, fragments",
    [
        (["-e", "magic"], ["magic", "kmifqe-identity"]),
        (["-e", "kmfqe"], ["did you mean 'kmifqe'?"]),
        (["--preset", "pendulun"], ["did you mean 'pendulum'?"]),
        (["--set", "hiddn=3"], ["did you mean 'hidden'?"]),
        (["--accept", "unexplaned_ends"], ["did you mean 'unexplained_ends'?"]),
        (["--preset", "atari"], ["atari", "mujoco"]),
        (["--set", "hidden"], ["hidden", "FIELD=VALUE"]),
        (["--set", "hidden=many"], ["hidden=many", "256"]),
        (["--set", "layers=3"], ["layers=3", "hidden"]),
        (["-e", "kmifqe", "--set", "fqe.tau=0.1"], ["fqe", "kmifqe"]),
        (["--set", "clip=2,1"], ["clip", "low < high"]),
        (["--gamma", "1.0"], ["gamma", "< 1"]),
        (["--behavior", "gaussian:x"], ["gaussian:x", "STD"]),
        (["--behavior", "guess"], ["guess", "logged"]),
        (["-e", "kmifqe-paper", "--preset", "mujoco"], ["factorises"]),
    ],
)
def test_a_wrong_setting_is_one_sentence(kmifqe_command, tmp_path, npz, actor_path, arguments, fragments):
    given = {"--behavior": "logged"} if "--behavior" not in arguments else {}
    command = ["evaluate", npz, "--policy", actor_path, "--out", tmp_path / "run", *FAST]
    for pair in given.items():
        command += pair
    done = kmifqe_command(*command, *arguments)
    assert done.code == 2
    for fragment in fragments:
        assert fragment in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()


def test_help_teaches_with_an_example(kmifqe_command):
    done = kmifqe_command("evaluate", "--help")
    assert done.code == 0
    assert "Example: kmifqe evaluate" in done.out
    assert "gaussian:POLICY:STD" in done.out
    steps = next(line for line in done.out.splitlines() if "--steps" in line)
    assert "--minutes" in steps  # not the paper's: without a preset the time decides


def test_without_a_bootstrap_the_interval_is_read_from_the_features(
    kmifqe_command, tmp_path, npz, actor_path
):
    out = tmp_path / "run"
    done = kmifqe_command(
        "evaluate", npz, "--policy", actor_path, "--out", out, *FAST, "-e", "fqe", "--no-bootstrap"
    )
    assert done.code == 0, done.err
    result = json.loads((out / "result.json").read_text())
    assert result["estimates"][0]["bootstrap"] is False
    interval = result["intervals"]["fqe"]
    assert interval["low"] < result["estimates"][0]["value"] < interval["high"]


@pytest.mark.parametrize("level", ["90", "0", "-1"])
def test_a_level_that_is_no_probability_is_refused_before_anything_is_read(
    kmifqe_command, tmp_path, npz, actor_path, level
):
    out = tmp_path / "run"
    done = kmifqe_command("evaluate", npz, "--policy", actor_path, "--out", out, *FAST, "--level", level)
    assert done.code == 2
    assert "expected a number between 0 and 1, such as 0.9" in done.err
    assert not out.exists()
