"""One process per run directory; the lock of a dead process is free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from kmifqe.errors import InputError
from kmifqe.store.directory import locked

HOLD = """
import sys, time
from pathlib import Path
from kmifqe.store.directory import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
    path = tmp_path / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        sentence = f"{tmp_path}: another process .id {holder.pid}. is writing"
        with pytest.raises(InputError, match=sentence), locked(path):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    with locked(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_lock_file_that_its_holder_removed_does_not_count(tmp_path, monkeypatch):
    """Between opening and locking, the holder may end and remove the file: two would then hold two files."""
    path = tmp_path / ".lock"
    opened = os.open

    def open_and_lose(*args):
        descriptor = opened(*args)
        path.unlink()
        return descriptor

    monkeypatch.setattr("kmifqe.store.directory.os.open", open_and_lose)
    with pytest.raises(InputError, match="another process"), locked(path):
        pass
