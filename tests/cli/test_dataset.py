from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from kmifqe.cli.app import app
from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset

N = 12


@pytest.fixture
def fields() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ends = np.arange(N) % 4 == 3
    return {
        "observations": rng.standard_normal((N, 3)),
        "actions": rng.uniform(-1, 1, (N, 2)),
        "rewards": rng.standard_normal(N),
        "terminals": ends & (np.arange(N) < 4),
        "timeouts": ends & (np.arange(N) >= 4),
    }


def run(*arguments: object):
    return CliRunner().invoke(app, ["dataset", *map(str, arguments)], env={"COLUMNS": "120"})


def test_inspect_prints_what_the_log_holds(tmp_path, fields):
    np.savez(tmp_path / "log.npz", **fields)
    result = run("inspect", tmp_path / "log.npz")
    assert result.exit_code == 0
    for text in ("12 (states 3, actions 2)", "3, length min 4, median 4, max 4", "1 terminated, 2 truncated"):
        assert text in result.output
    assert "per step, (1 − γ) Σ γᵗ r with γ = 0.99" in result.output


def test_inspect_as_json_is_strict_json_even_for_a_broken_log(tmp_path, fields):
    fields["rewards"][:] = np.nan
    np.savez(tmp_path / "log.npz", **fields)
    result = run("inspect", tmp_path / "log.npz", "--json")
    summary = json.loads(result.output, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert summary["nan"]["rewards"] == N
    assert summary["rewards"]["mean"] is None
    assert len(summary["actions"]) == 2
    assert summary["logged_controller"] is None


def test_inspect_as_json_has_what_the_logged_controller_earned(tmp_path, fields):
    fields["rewards"][:] = 2.0
    fields["terminals"][:] = False
    np.savez(tmp_path / "log.npz", **fields)
    found = json.loads(run("inspect", tmp_path / "log.npz", "--gamma", 0.5, "--json").output)[
        "logged_controller"
    ]
    assert found["value"] == pytest.approx(2.0)
    assert found["gamma"] == 0.5


def test_convert_keeps_the_log_and_asks_before_replacing(tmp_path, fields):
    np.savez(tmp_path / "log.npz", **fields)
    result = run("convert", tmp_path / "log.npz", tmp_path / "log.hdf5")
    assert result.exit_code == 0
    assert "12 transitions in 3 episodes" in result.output
    assert np.array_equal(
        load_dataset(tmp_path / "log.hdf5").states, fields["observations"].astype(np.float32)
    )
    assert isinstance(run("convert", tmp_path / "log.npz", tmp_path / "log.hdf5").exception, InputError)
    assert run("convert", tmp_path / "log.npz", tmp_path / "log.hdf5", "--force").exit_code == 0


def test_max_episode_steps_cuts_a_log_without_timeouts(tmp_path, fields):
    del fields["timeouts"]
    np.savez(tmp_path / "log.npz", **fields)
    assert "timeouts is missing" in str(run("inspect", tmp_path / "log.npz").exception)
    result = run("inspect", tmp_path / "log.npz", "--max-episode-steps", 4)
    assert "1 terminated, 2 truncated" in result.output
    assert "note: 1 cut was added" in result.output


BROKEN = {
    "mismatched lengths": (lambda f: f | {"rewards": f["rewards"][:-1]}, "rewards has 11 rows"),
    "NaN rewards": (
        lambda f: f | {"rewards": f["rewards"] * np.nan},
        "rewards holds NaN or infinity in 12 of 12",
    ),
    "float64 overflow": (
        lambda f: f | {"actions": f["actions"] * 1e300},
        "actions holds .* beyond float32's range",
    ),
    "missing field": (
        lambda f: {k: v for k, v in f.items() if k != "actions"},
        "actions is missing; expected one of the names actions, action; the file holds",
    ),
    "missing timeouts": (lambda f: {k: v for k, v in f.items() if k != "timeouts"}, "timeouts is missing"),
    "wrong flags": (lambda f: f | {"terminals": np.arange(N)}, "terminals holds 2 at row 2"),
    "strings": (lambda f: f | {"rewards": f["rewards"].astype(str)}, "rewards has type <U"),
    "objects": (lambda f: f | {"rewards": np.array([None] * N)}, "rewards has type object"),
    "no rows": (lambda f: {k: v[:0] for k, v in f.items()}, "observations is empty"),
    "images": (lambda f: f | {"observations": np.zeros((N, 8, 8))}, r"observations has shape \(12, 8, 8\)"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_log_is_one_sentence_and_no_output(tmp_path, fields, kind):
    change, message = BROKEN[kind]
    np.savez(tmp_path / "log.npz", **change(fields))
    result = run("convert", tmp_path / "log.npz", tmp_path / "new.hdf5")
    with pytest.raises(InputError, match=rf"log\.npz: {message}"):
        raise result.exception
    assert [file.name for file in tmp_path.iterdir()] == ["log.npz"]


@pytest.mark.parametrize("arguments", [["inspect", "broken.hdf5"], ["convert", "broken.hdf5", "new.npz"]])
def test_the_process_exits_with_2_and_without_a_traceback(tmp_path, arguments):
    (tmp_path / "broken.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    command = [sys.executable, "-c", "from kmifqe.cli import main; main()", "dataset", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "broken.hdf5: cannot be read as an HDF5 file" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["broken.hdf5"]
