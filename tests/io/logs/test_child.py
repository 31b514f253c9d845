"""The process that reads files: whatever happens to it is one sentence here, soon and in little memory."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io import child
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.save import save_dataset
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.normalization import load_normalization
from policy_files import torch_zip, write_sb3

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are set and measured there")
# Jobs that a hostile file might do to the child, as Python: they are given to a child of the test's own.
JOBS = """
import kmifqe.io.child_main as main, os, time, ctypes, numpy
def crash(): ctypes.string_at(0)
def abort(): os.abort()
def loop():
    while True: pass
def sleep(): time.sleep(1000)
def bomb(): kept = [numpy.ones(2**20) for _ in range(2**20)]
def write():
    with open(os.environ["WRITE_HERE"], "wb") as file:
        while True: file.write(bytes(2**20))
def leave(): os._exit(3)
def fail(): raise KeyError("a library's own words")
def killed(): os.kill(os.getpid(), 9)
def honest(): pass
main.JOBS = {f.__name__: f for f in (crash, abort, loop, sleep, bomb, write, leave, fail, killed, honest)}
main.main()
"""


@pytest.fixture
def misbehave(monkeypatch, tmp_path):
    """Return a function that lets a child do one of the jobs above, with 2 s and 64 MiB."""
    monkeypatch.setattr(child, "LEAST_SECONDS", 2.0)
    monkeypatch.setattr(child, "LEAST_MEMORY", 64 * 2**20)
    monkeypatch.setattr(child, "LEAST_WRITTEN", 2**20)
    monkeypatch.setenv("WRITE_HERE", str(tmp_path / "written"))
    own = child._Child()
    monkeypatch.setattr(child, "_CHILD", own)
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **how: start([sys.executable, "-c", JOBS], **how))
    yield lambda job: child.run_in_child(job, "log.npz", 0)
    own.stop()


@pytest.mark.parametrize(
    "job, sentence",
    [
        ("crash", r"the library that reads it crashed \(SIGSEGV\)"),
        ("abort", r"the library that reads it crashed \(SIGABRT\)"),
        ("leave", "crashed .without a word."),
        ("loop", "took more than 2 s, the limit"),
        ("sleep", "took more than 2 s, the limit"),
        ("bomb", "took more than .* of memory, the limit"),
        ("write", r"cannot be read \(OSError: .*File too large\)"),
        ("fail", r"cannot be read \(KeyError: .a library's own words.\)"),
        ("killed", "was ended by the system"),
    ],
)
def test_what_happens_to_the_child_is_one_sentence(misbehave, job, sentence):
    misbehave("honest")
    with pytest.raises(InputError, match=f"^log.npz: .*{sentence}"):
        misbehave(job)
    assert misbehave("honest").resident > 0  # the next request is served


def test_a_child_that_has_gone_is_started_again(misbehave):
    misbehave("honest")
    child._CHILD._process.kill()
    misbehave("honest")


def test_an_interrupt_ends_the_child_and_its_fork(misbehave):
    misbehave("honest")
    server = child._CHILD._process.pid
    main = threading.main_thread().ident
    threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT]).start()
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        misbehave("loop")
    assert threading.active_count() < before  # nobody waits for the time to be over
    time.sleep(0.2)
    running = [stat.read_text().rpartition(")")[2].split() for stat in Path("/proc").glob("[0-9]*/stat")]
    assert not [state for state, _, group, *_ in running if group == str(server) and state != "Z"]


def test_a_fork_of_the_process_has_a_child_of_its_own(tmp_path, encoded):
    np.savez(tmp_path / "log.npz", **encoded)
    load_dataset(tmp_path / "log.npz")
    fork = os.fork()
    if fork == 0:
        os._exit(0 if len(load_dataset(tmp_path / "log.npz")) == 16 else 1)
    assert os.waitpid(fork, 0)[1] == 0
    assert len(load_dataset(tmp_path / "log.npz")) == 16


def test_the_child_imports_no_jax_and_nothing_from_the_current_folder(tmp_path, encoded, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported')")
    np.savez(tmp_path / "log.npz", **encoded)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(child, "_CHILD", child._Child())
    assert len(load_dataset("log.npz")) == 16
    maps = Path(f"/proc/{child._CHILD._process.pid}/maps").read_text()
    assert "jaxlib" not in maps
    child._CHILD.stop()


def test_a_child_starts_within_a_second_of_processor_time():
    """0.2 s are usual; JAX alone takes more than one."""
    began = os.times()
    subprocess.run(
        [sys.executable, "-P", "-m", "kmifqe.io.child_main"],
        stdin=subprocess.DEVNULL,
        check=True,
        capture_output=True,
    )
    ended = os.times()
    assert ended.children_user + ended.children_system - began.children_user - began.children_system < 1.0


# An empty tuple, then 59 times a tuple that holds the one before twice.
TUPLES = b"\x80\x04)" + b"".join(b"\x94h%c\x86" % number for number in range(59)) + b"\x8c\x01a\x93."


def test_a_name_that_is_a_tuple_doubled_59_times_is_refused(tmp_path):
    """As text it would be longer than any memory; as a pickle it has 244 bytes."""
    pickle_path = tmp_path / "vecnormalize.pkl"
    pickle_path.write_bytes(TUPLES)
    with pytest.raises(InputError, match=r"vecnormalize\.pkl: damaged"):
        load_normalization(pickle_path)
    write_sb3(tmp_path / "model.zip", {}, torch_zip({}, TUPLES))
    with pytest.raises(InputError, match=r"model\.zip.*: damaged"):
        load_policy(tmp_path / "model.zip")


def test_a_stream_of_negative_length_is_refused(tmp_path, log):
    pa = pytest.importorskip("pyarrow")
    save_dataset(log, tmp_path / "log.arrow")
    table = pa.ipc.open_file(str(tmp_path / "log.arrow")).read_all()
    with (
        pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    data = bytearray((tmp_path / "stream.arrow").read_bytes())
    start = 8 + int.from_bytes(data[4:8], "little")  # of the second message, which holds the rows
    body = start + 8 + int.from_bytes(data[start + 4 : start + 8], "little")
    with pa.OSFile(str(tmp_path / "stream.arrow")) as source:
        source.seek(start)
        length = struct.pack("<q", pa.ipc.read_message(source).body.size)
    at = data.index(length, start + 8, body)
    struct.pack_into("<q", data, at, start - body)  # the next message is this one again
    (tmp_path / "stream.arrow").write_bytes(data)
    with pytest.raises(InputError, match=r"stream\.arrow: cannot be read as an Arrow table"):
        load_dataset(tmp_path / "stream.arrow")


def test_a_program_of_20000_parentheses_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.jit.trace(torch.nn.Linear(3, 2), torch.zeros(1, 3)).save(str(tmp_path / "honest.pt"))
    with (
        zipfile.ZipFile(tmp_path / "honest.pt") as honest,
        zipfile.ZipFile(tmp_path / "policy.pt", "w") as copy,
    ):
        for member in honest.namelist():
            blob = honest.read(member)
            if member.endswith(".py"):
                blob = blob.replace(b"return ", b"return " + b"(" * 20_000, 1)
            copy.writestr(member, blob)
    with pytest.raises(InputError, match=r"policy\.pt"):
        load_policy(tmp_path / "policy.pt")


def test_a_large_metadata_is_refused(tmp_path, log):
    pytest.importorskip("minari")
    save_dataset(log, tmp_path / "log-v0")
    path = tmp_path / "log-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text()) | {"more": [[]] * 1_000_000}
    path.write_text(json.dumps(metadata))
    with pytest.raises(InputError, match=r"metadata\.json: has .* bytes"):
        load_dataset(tmp_path / "log-v0")


def test_a_shape_of_truths_is_refused():
    from kmifqe.io.policies.pickles import Built, Name, Reference
    from kmifqe.io.policies.torch_weights import _tensor

    storage = Reference(("storage", Name("torch", "FloatStorage"), "0", "cpu", 1))
    node = Built(Name("torch._utils", "_rebuild_tensor_v2"), (storage, 0, (True, True), (1, 1)))
    with pytest.raises(InputError, match="shape or strides"):
        _tensor(node, "<", "x")
