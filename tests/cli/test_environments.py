"""`kmifqe evaluate` where the system is odd: a sentence or a result, and no traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

FAST = ("-e", "fqe", "--gamma", 0.5, "--seeds", 2, "--steps", 5, "--set", "hidden=8", "--set", "batch=16")


@pytest.fixture
def question(tmp_path, log, actor_path):
    """Return the arguments of a small evaluation."""
    np.savez(tmp_path / "log.npz", **log)
    return ("evaluate", tmp_path / "log.npz", "--policy", actor_path, *FAST)


def test_output_that_cannot_show_a_letter_shows_another(kmifqe_command, tmp_path, question, monkeypatch):
    assert kmifqe_command(*question, "--out", tmp_path / "run").code == 0
    for encoding in ("latin-1", "cp1252", "ascii"):
        streams = {name: io.TextIOWrapper(io.BytesIO(), encoding, "strict") for name in ("stdout", "stderr")}
        with monkeypatch.context() as patched:
            for name, stream in streams.items():
                patched.setattr(f"sys.{name}", stream)
            done = kmifqe_command(*question, "--out", tmp_path / "run", "--resume")
        assert done.code == 0
        for stream in streams.values():
            stream.flush()
        assert b"fqe" in streams["stdout"].buffer.getvalue()
        assert b"written" in streams["stderr"].buffer.getvalue()


def test_closed_streams_are_no_trouble(kmifqe_command, tmp_path, question, monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", None)
    assert kmifqe_command(*question, "--out", tmp_path / "run").code == 0
    assert (tmp_path / "run" / "result.json").exists()


def test_a_terminal_cannot_be_commanded_by_the_name_of_a_directory(kmifqe_command, tmp_path, question):
    out = tmp_path / "a\x1b[31m\x07b"
    done = kmifqe_command(*question, "--out", out)
    assert done.code == 0, done.err
    again = kmifqe_command(*question, "--out", out)
    assert again.code == 2
    page = kmifqe_command("report", out)
    assert page.code == 0, page.err
    for text in (done.err, done.out, again.err, page.out, page.err):
        assert "\x1b" not in text
        assert "\x07" not in text


# Root may open everything; without its capabilities it is the owner of its files and nothing more.
WITHOUT_CAPABILITIES = """
import contextlib, ctypes, io, json, sys
ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
from kmifqe.cli import main
for arguments in json.loads(sys.argv.pop()):
    sys.argv[1:] = arguments
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = main() or 0
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, said.getvalue()]))
"""
LIMITED = """
import resource, sys
most = int(sys.argv.pop(1)) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (most, most))
from kmifqe.cli import main
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no capabilities to give up")
def test_what_may_not_be_opened_is_one_sentence(tmp_path, question):
    locked, out = tmp_path / "locked", tmp_path / "run"
    locked.mkdir()
    for name in ("log.npz", "log.pkl", "actor.safetensors"):
        (tmp_path / f"locked-{name}").write_bytes((tmp_path / "log.npz").read_bytes())
    _, data, _, policy, *more = map(str, question)
    cases = [
        (locked, data, policy, locked),
        (locked, data, policy, locked / "run"),
        *[(path, path, policy, out) for path in (locked, locked / "log.npz", tmp_path / "locked-log.npz")],
        (tmp_path / "locked-log.pkl", tmp_path / "locked-log.pkl", policy, out),
        (tmp_path / "locked-actor.safetensors", data, tmp_path / "locked-actor.safetensors", out),
        (locked / "actor.npz", data, locked / "actor.npz", out),
    ]
    commands = [
        ["evaluate", str(log), "--policy", str(actor), "--out", str(into), *more]
        for _, log, actor, into in cases
    ]
    commands += [["report", str(locked)], ["resume", str(locked)], ["dataset", "inspect", str(locked)]]
    closed = [locked, *tmp_path.glob("locked-*")]
    for path in closed:
        path.chmod(0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_CAPABILITIES, json.dumps(commands)],
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | {"COLUMNS": "400"},  # or a box breaks a long path into lines
        )
    finally:
        for path in closed:
            path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ended) == len(commands)
    for (code, said), named in zip(ended, [case[0] for case in cases] + [locked] * 3):
        assert code == 2, said
        assert str(named) in said
    assert not out.exists()
    assert list(locked.iterdir()) == []


@pytest.mark.parametrize(
    "mib", [50, 100, 200, 1024]
)  # NumPy is no library, aborts, is half loaded; JAX would abort
def test_a_memory_limit_that_is_too_low_is_one_sentence(tmp_path, question, mib):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(mib), *map(str, question), "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "ulimit -v" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"),
        ImportError("libjax_common.so: failed to map segment from shared object"),
    ],
)
def test_memory_that_gives_out_is_one_sentence(kmifqe_command, tmp_path, question, monkeypatch, error):
    def give_out(*_, **__):
        raise error

    monkeypatch.setattr("kmifqe.api.load_dataset", give_out)
    refused = kmifqe_command(*question, "--out", tmp_path / "run")
    assert refused.code == 2
    assert "memory" in refused.err
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not os.path.isdir("/proc/1"), reason="a folder that not even root may write to is needed")
@pytest.mark.parametrize("home", ["/proc/1", "missing", None])
def test_a_home_that_cannot_be_written_to_costs_the_caches_alone(
    kmifqe_command, tmp_path, question, monkeypatch, home
):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    missing = tmp_path / "missing"
    place = str(missing) if home == "missing" else home or "~"
    monkeypatch.setattr("os.path.expanduser", lambda path: path.replace("~", place))
    monkeypatch.delenv("KMIFQE_CACHE_GIB")
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    try:
        done = kmifqe_command(*question, "--out", tmp_path / "run")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert done.code == 0, done.err
    assert "programs are compiled anew and not kept" in done.err
    assert "the log is read anew and not kept" in done.err
    assert (tmp_path / "run" / "result.json").exists()
    assert not missing.exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full stands for a full disk")
@pytest.mark.parametrize("name, code", [("log.npz", 0), ("none.npz", 2)])
def test_where_stderr_has_no_room_the_exit_code_still_tells(tmp_path, log, name, code):
    np.savez(tmp_path / "log.npz", **log)
    (tmp_path / "shared" / "kmifqe").mkdir(parents=True)
    (tmp_path / "shared" / "kmifqe").chmod(0o777)  # a warning is said on stderr
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "shared"), "KMIFQE_CACHE_GIB": "1"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kmifqe", "dataset", "inspect", name],
            stderr=full,
            cwd=tmp_path,
            env=environment,
        )
    assert done.returncode == code
