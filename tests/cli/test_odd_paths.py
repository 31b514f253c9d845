"""A pipe, a device, a folder or an odd name in place of any input file: one sentence at once, exit code 2."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import contextmanager

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.archives import read_npz, read_safetensors
from kmifqe.io.files import read_file
from kmifqe.store.archive import DamagedError, read_archive

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices have names only there")
FAST = ("--gamma", 0.5, "--seeds", 2, "--steps", 5, "--set", "hidden=8", "--set", "batch=16")


@contextmanager
def within_seconds(seconds=20):
    """Fail instead of waiting for ever."""

    def fail(*_):
        raise AssertionError("the command waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def folder(path):
    path.mkdir()


def loop(path):
    path.symlink_to(path)


KINDS = [pipe, device, folder, loop]


@pytest.fixture
def refused(kmifqe_command):
    def run(*arguments):
        with within_seconds():
            done = kmifqe_command(*arguments)
        assert done.code == 2, done
        *before, last = done.err.splitlines()
        assert last.startswith("error: "), done.err
        assert len(before) <= 1, done.err  # with what the run would have begun
        return done.err

    return run


@pytest.fixture
def log_path(tmp_path, log):
    np.savez(tmp_path / "log.npz", **log)
    return tmp_path / "log.npz"


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", ["x.hdf5", "x.npz", "x.parquet", "x.arrow", "x", "x-v0"])
def test_as_a_log(tmp_path, refused, make, name):
    make(tmp_path / name)
    refused("dataset", "inspect", tmp_path / name)


@pytest.mark.parametrize("make", KINDS)
def test_inside_a_folder_of_logs(tmp_path, refused, log_path, make):
    (tmp_path / "logs").mkdir()
    shutil.copy(log_path, tmp_path / "logs" / "0.npz")
    make(tmp_path / "logs" / "1.npz")
    refused("dataset", "inspect", tmp_path / "logs")


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", ["metadata.json", "main_data.hdf5"])
def test_inside_a_minari_dataset(tmp_path, refused, make, name):
    (tmp_path / "log-v0" / "data").mkdir(parents=True)
    for file in {"metadata.json", "main_data.hdf5"} - {name}:
        (tmp_path / "log-v0" / "data" / file).write_text("{}")
    make(tmp_path / "log-v0" / "data" / name)
    refused("dataset", "inspect", tmp_path / "log-v0")


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    "name", ["x.npz", "x.safetensors", "x.zip", "x.pt", "x.onnx", "x.hdf5", "x.pkl", "x.torchscript", "x"]
)
def test_as_a_policy(tmp_path, refused, log_path, make, name):
    make(tmp_path / name)
    refused("evaluate", log_path, "--policy", tmp_path / name, "-e", "fqe", *FAST, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name", ["", ".", "/", "..", "~", "a\0b", "x" * 5000, "/dev/zero", "/dev/stdin", ":", " "]
)
def test_an_odd_name(tmp_path, refused, log_path, actor_path, name):
    run, normal = ("--out", tmp_path / "run"), "--policy-normalization"
    refused("evaluate", log_path, "--policy", name, "-e", "fqe", *FAST, *run)
    refused("evaluate", log_path, "--policy", actor_path, "--behavior", f"gaussian:{name}:1", *FAST, *run)
    refused("evaluate", log_path, "--policy", actor_path, "--behavior", name or " ", *FAST, *run)
    refused("evaluate", log_path, "--policy", actor_path, normal, name, "-e", "fqe", *FAST, *run)
    if name not in (".", "/", "..", "~"):  # folders, which are searched for logs
        refused("dataset", "inspect", name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", ["x.npz", "x.json", "x.pkl"])
def test_as_statistics(tmp_path, refused, log_path, actor_path, make, name):
    make(tmp_path / name)
    question = ("evaluate", log_path, "--policy", actor_path, "-e", "fqe", *FAST, "--out", tmp_path / "run")
    refused(*question, "--policy-normalization", tmp_path / name)


@pytest.mark.parametrize("make", KINDS)
def test_as_a_density(tmp_path, refused, log_path, actor_path, make):
    make(tmp_path / "x.safetensors")
    question = ("evaluate", log_path, "--policy", actor_path, *FAST, "--out", tmp_path / "run")
    refused(*question, "--behavior", tmp_path / "x.safetensors")


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_inside_a_run(tmp_path, refused, make, name):
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / name)
    refused("report", tmp_path / "run")
    refused("resume", tmp_path / "run")


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    "read", [read_npz, read_safetensors, read_file, read_archive], ids=lambda read: read.__name__
)
def test_every_reader_refuses_what_is_no_file(tmp_path, make, read):
    make(tmp_path / "x")
    with within_seconds(), pytest.raises((InputError, DamagedError), match="x: "):
        read(tmp_path / "x")
