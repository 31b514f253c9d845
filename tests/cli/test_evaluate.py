import json

import numpy as np
import pytest

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
    assert result["schema"] == "kmifqe.result/1"
    assert [e["estimator"] for e in result["estimates"]] == names
    assert result["rows"]["logged"] == 120
    assert result["rows"]["without_next_state"] == 12
    for estimate in result["estimates"]:
        assert estimate["config"]["hidden"] == 8
        assert len(estimate["values"]) == 2
        assert estimate["value"] == pytest.approx(np.mean(estimate["values"]))
        assert estimate["discounted_return"] == pytest.approx(estimate["value"] / 0.5)
        assert estimate["trajectory"]["step"][-1] == 20
        assert estimate["estimator"] in done.out
    assert result["estimates"][3]["config"]["stages"] == [1, 5, 14]
    assert {path.name for path in out.iterdir()} == {"result.json", "trajectories.png", "bandwidth.png"}


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


def test_an_earlier_result_is_not_replaced_unless_asked(kmifqe_command, tmp_path, npz, actor_path):
    (tmp_path / "run").mkdir()
    earlier = tmp_path / "run" / "result.json"
    earlier.write_text("{}")
    command = ("evaluate", npz, "--policy", actor_path, "--out", tmp_path / "run", "-e", "fqe", *FAST)
    refused = kmifqe_command(*command)
    assert refused.code == 2
    assert "--force" in refused.err
    assert earlier.read_text() == "{}"
    assert kmifqe_command(*command, "--force").code == 0
    assert earlier.read_text() != "{}"


@pytest.mark.parametrize(
    "arguments, fragments",
    [
        (["-e", "magic"], ["magic", "kmifqe-identity"]),
        (["--preset", "atari"], ["atari", "mujoco"]),
        (["--set", "hidden"], ["hidden", "FIELD=VALUE"]),
        (["--set", "hidden=many"], ["hidden=many", "256"]),
        (["--set", "layers=3"], ["layers=3", "hidden"]),
        (["--set", "fqe.tau=0.1"], ["fqe", "kmifqe"]),
        (["--set", "clip=2,1"], ["clip", "low < high"]),
        (["--gamma", "1.0"], ["gamma", "< 1"]),
        (["--behavior", "gaussian:x"], ["gaussian:x", "STD"]),
        (["--behavior", "guess"], ["guess", "logged"]),
        (["--preset", "mujoco"], ["factorises"]),
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
