"""`kmifqe evaluate --track`: curves and answer are kept; a missing package is said before anything is done."""

import sys

import numpy as np
import pytest

FAST = ("-e", "wis", "--gamma", 0.5, "--seeds", 2)  # nothing is trained: fewer programs to compile


@pytest.fixture
def question(tmp_path, log, actor_path):
    path = tmp_path / "log.npz"
    np.savez(path, **log)
    return (path, "--policy", actor_path, "--out", tmp_path / "run", *FAST)


def test_the_run_directory_gets_a_file_with_curves_and_verdict(kmifqe_command, tmp_path, question):
    pytest.importorskip("tensorboardX")
    done = kmifqe_command("evaluate", *question, "--track", "tensorboard")
    assert done.code == 0, done.err
    (file,) = (tmp_path / "run" / "tensorboard").glob("*/events.*")
    content = file.read_bytes()
    assert all(word in content for word in (b"wis/seeds/1", b"final/wis/value", b"verdict"))


def test_a_missing_package_is_one_sentence_and_leaves_nothing(
    kmifqe_command, tmp_path, question, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = kmifqe_command("evaluate", *question, "--track", "wandb")
    assert done.code == 2
    assert "kmifqe[wandb]" in done.err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
