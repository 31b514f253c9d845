"""`kmifqe cache` and `--no-cache`."""

from __future__ import annotations

import numpy as np
import pytest

from kmifqe.io.logs import kept


@pytest.fixture
def log_path(tmp_path, log, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(kept.SIZE_VARIABLE, raising=False)
    np.savez(tmp_path / "log.npz", **log)
    return tmp_path / "log.npz"


def test_kept_logs_are_listed_and_cleared(kmifqe_command, log_path):
    first = kmifqe_command("dataset", "inspect", log_path)
    assert first.code == 0
    listed = kmifqe_command("cache", "list")
    assert listed.code == 0
    assert "log.npz" in listed.out
    assert "1 log, " in listed.out
    assert kmifqe_command("dataset", "inspect", log_path) == first
    assert "removed 1 log " in kmifqe_command("cache", "clear").out
    assert "0 logs" in kmifqe_command("cache", "list").out
    assert kmifqe_command("dataset", "inspect", log_path) == first


def test_without_the_cache_nothing_is_kept(kmifqe_command, log_path, tmp_path):
    assert kmifqe_command("dataset", "inspect", log_path, "--no-cache").code == 0
    assert kmifqe_command("dataset", "convert", log_path, tmp_path / "log.hdf5", "--no-cache").code == 0
    assert not (tmp_path / "home").exists()


def test_a_cache_that_is_not_trusted_is_one_sentence(kmifqe_command, log_path, tmp_path):
    (tmp_path / "home" / "kmifqe").mkdir(parents=True)
    (tmp_path / "home" / "kmifqe").chmod(0o777)
    done = kmifqe_command("dataset", "inspect", log_path)
    assert done.code == 0
    assert done.err.startswith("warning: ")
    assert "others may write to it" in done.err
    assert done.err.count("\n") == 1
