"""A second process that reads files for this one, under limits of memory and time.

The libraries that read HDF5, Parquet, Arrow, Minari, PyTorch and ONNX files are native code. A damaged or hostile
file can make them crash, loop or take all memory. The child reads such a file and writes what it holds as plain
arrays; this process only ever sees those. Whatever happens to the child is then one sentence here.

One child serves all requests of a process. It forks for every request, so that a crash ends the fork alone, and ends
by itself after a while without requests (see `child_main`).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kmifqe.errors import InputError, shown
from kmifqe.io.format import size
from kmifqe.mdp.memory import free_host_bytes

LEAST_MEMORY, MEMORY_PER_BYTE = 512 * 2**20, 16  # beyond what the libraries take; for each byte of the source
LEAST_SECONDS, BYTES_PER_SECOND = 30.0, 2**18  # a slow disk gives a hundred times as many
LEAST_WRITTEN, WRITTEN_PER_BYTE = 512 * 2**20, 100  # bytes in each file that the child writes
START_SECONDS = 60.0  # until a child that was just started has answered; 0.2 s are usual
# The libraries' own threads and arenas would count as memory taken; HDF5 would load filters from folders.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "HDF5_PLUGIN_PRELOAD": "::",
    "CUDA_VISIBLE_DEVICES": "",
}


class Request(msgspec.Struct):
    """What the child is asked to do, and under which limits."""

    job: str  # a key of `child_main.JOBS`
    arguments: dict[str, Any]
    libraries: list[str]  # modules that are imported before the limits count
    directory: str  # where relative paths begin
    memory: int  # bytes
    seconds: float
    written: int  # bytes, in each file


class Answer(msgspec.Struct):
    """How it ended. `kind` is done, refused, failed, forbidden, memory, time, or died."""

    kind: str
    sentence: str = ""  # of the InputError where refused, of any other exception where failed
    signal: int = 0  # that ended it, where died
    resident: int = 0  # bytes of memory at most


def run_in_child(
    job: str, name: str, source_bytes: int, libraries: Sequence[str] = (), /, **arguments: Any
) -> Answer:
    """Do `job` in the child and return its answer, or raise the InputError that says why it could not be done.

    job: a key of `child_main.JOBS`.
    name: the file as the user knows it, for messages.
    source_bytes: the size of what is read, from which the limits follow.
    libraries: modules that the job needs and that are slow to import.
    arguments: of the job; text, numbers and lists.
    """
    try:
        directory = os.getcwd()
    except OSError:  # the folder was removed: absolute paths still lead somewhere
        directory = os.sep
    request = Request(
        job,
        arguments,
        list(libraries),
        directory,
        memory=min(LEAST_MEMORY + MEMORY_PER_BYTE * source_bytes, free_host_bytes()),
        seconds=LEAST_SECONDS + source_bytes / BYTES_PER_SECOND,
        written=LEAST_WRITTEN + WRITTEN_PER_BYTE * source_bytes,
    )
    answer = _CHILD.ask(request)
    if answer.kind != "done":
        raise InputError(f"{name}: {_why(answer, request)}" if answer.kind != "refused" else answer.sentence)
    return answer


def _why(answer: Answer, request: Request) -> str:
    if answer.kind == "time":
        return f"reading it took more than {request.seconds:.0f} s, the limit for a file of its size"
    if answer.kind == "memory":
        return f"reading it took more than {size(request.memory)} of memory, the limit for a file of its size"
    if answer.kind == "forbidden":
        return f"it made the process that reads it ask for {shown(answer.sentence)}, as no honest file does; refused"
    if answer.kind == "failed":
        return f"cannot be read ({shown(answer.sentence)})"
    if answer.signal == signal.SIGKILL:
        return "the process that read it was ended by the system, as happens where memory gives out"
    what = signal.Signals(answer.signal).name if answer.signal else "without a word"
    return f"the library that reads it crashed ({what}); the file is damaged, or made to do harm"


class _Child:
    """The running child, started when it is first needed and again when it has gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def ask(self, request: Request) -> Answer:
        """Return how the request ended."""
        with self._lock:
            for _ in range(2):  # the child may have gone while it was idle
                process = self._running()
                try:
                    answer = self._exchange(process, request)
                except BaseException:  # Ctrl-C: nobody waits for the answer any more
                    self.stop()
                    raise
                if answer is not None:
                    return answer
                self.stop()
        return Answer("died")

    def stop(self) -> None:
        """End the child, if this process has started it."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            if os.name == "posix" and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # the child and its fork
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self.stop()
        # Found where this package was found, also where that is no folder of Python's own.
        places = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
        environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(place for place in places if place)}
        try:
            # -P: the current folder may hold a numpy.py of its own, which is no business of ours.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kmifqe.io.child_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | environment,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the child
            )
        except OSError as error:
            raise InputError(f"the process that reads files cannot be started ({error.strerror})") from error
        self._owner = os.getpid()
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], request: Request) -> Answer | None:
        """Return the answer to a request, None where the child has gone."""
        assert process.stdin is not None
        assert process.stdout is not None
        # Python's json, unlike msgspec's, carries file names that are no UTF-8.
        line = json.dumps(msgspec.to_builtins(request)).encode("ascii") + b"\n"
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:
            return None
        # A timer, not select, which knows no pipes on Windows. Elsewhere the child ends its fork in time by itself.
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(START_SECONDS + request.seconds, end)
        timer.daemon = True
        timer.start()
        try:
            answer = process.stdout.readline()
        finally:
            timer.cancel()
        if answer.endswith(b"\n"):
            return msgspec.json.decode(answer, type=Answer)
        return Answer("time") if is_late.is_set() else None


_CHILD = _Child()
atexit.register(_CHILD.stop)
if hasattr(os, "register_at_fork"):  # a fork of this process starts a child of its own
    os.register_at_fork(after_in_child=_CHILD.__init__)  # type: ignore[misc]
