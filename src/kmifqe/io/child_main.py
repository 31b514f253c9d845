"""What the child process runs: `python -m kmifqe.io.child_main`, started and asked by `child`.

It imports the readers once. For every request, a line of JSON, it forks; the fork gives itself the limits, does the
job and is gone. The answer is a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from kmifqe.errors import InputError, shown
from kmifqe.io.child import Answer, Request
from kmifqe.io.logs.read import write_columns
from kmifqe.io.policies.normalization import write_normalization
from kmifqe.io.policies.read import rehearse_program, write_actor

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

JOBS: dict[str, Callable[..., None]] = {
    "log": write_columns,
    "actor": write_actor,
    "normalization": write_normalization,
    "program": rehearse_program,
}
# Events of Python's own (sys.addaudithook) that reading a file never needs, by how they begin.
RUNS_OR_CALLS = (
    *(
        "os.system",
        "os.exec",
        "os.fork",
        "os.posix_spawn",
        "os.spawn",
        "subprocess.",
        "pty.",
        "pickle.find_class",
    ),
    *("socket.connect", "socket.bind", "urllib.", "webbrowser."),
)
CHANGES_FILES = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.chmod",
    "os.truncate",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
IDLE_SECONDS = 30.0
STACK = 4 * 2**20
MOST_LETTERS = 8_000  # of a sentence; a pipe holds as many without a reader


def main() -> None:
    """Answer requests until there are no more, or none for a while."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # native libraries print, also what a file tells them to
        os.dup2(nothing, descriptor)
    while os.name != "posix" or select.select([requests], [], [], IDLE_SECONDS)[0]:
        line = requests.readline()
        if not line:
            return
        request = msgspec.convert(json.loads(line), Request)
        for library in request.libraries:
            with suppress(Exception):  # missing, or broken: the job says so
                importlib.import_module(library)
        answers.write(msgspec.json.encode(_in_a_fork(request, requests)) + b"\n")
        answers.flush()


def _in_a_fork(request: Request, requests: IO[bytes]) -> Answer:
    """Return how the request ended that a fork of this process was given."""
    if not hasattr(os, "fork"):
        return _work(request)
    reading, writing = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.close(reading)
        os.write(writing, msgspec.json.encode(_work(request)))
        os._exit(0)
    os.close(writing)
    text, deadline = b"", time.monotonic() + request.seconds
    while True:
        ready, _, _ = select.select(
            [reading, requests.fileno()], [], [], max(0.0, deadline - time.monotonic())
        )
        if reading not in ready:  # time is up, or the process that asked has gone
            os.kill(fork, signal.SIGKILL)
            break
        part = os.read(reading, 65_536)
        if not part:
            break
        text += part
    os.close(reading)
    _, status, usage = os.wait4(fork, 0)
    answer = _judged(text, status, is_late=time.monotonic() >= deadline)
    answer.resident = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return answer


def _judged(text: bytes, status: int, *, is_late: bool) -> Answer:
    if os.WIFEXITED(status) and text:
        return msgspec.json.decode(text, type=Answer)
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if ended_by == signal.SIGXCPU or (ended_by == signal.SIGKILL and is_late):
        return Answer("time")
    return Answer("died", signal=ended_by)


def _work(request: Request) -> Answer:
    forbidden: list[str] = []

    def job() -> None:
        os.chdir(request.directory)
        forbid(request, forbidden)
        limit(request)
        JOBS[request.job](**request.arguments)

    answer = answer_of(job)
    return Answer("forbidden", shown(forbidden[0])) if forbidden else answer


def answer_of(job: Callable[[], None]) -> Answer:
    """Do `job` and return how it ended."""
    try:
        job()
        answer = Answer("done")
    except InputError as error:
        answer = Answer("refused", str(error)[:MOST_LETTERS])
    except MemoryError:
        answer = Answer("memory")
    except Exception as error:  # whatever a library raises on a broken file
        answer = Answer("failed", shown(f"{type(error).__name__}: {error}"))
    return answer


def forbid(request: Request, forbidden: list[str]) -> None:
    """Let whatever runs code, calls out or writes elsewhere than it was told to fail, and note it in `forbidden`.

    This stops what Python does. Native code is stopped by the limits, and by what the readers refuse to give to it.
    """
    sys.dont_write_bytecode = True
    home = (
        os.path.dirname(str(request.arguments.get("written") or request.arguments.get("folder", ""))) + os.sep
    )

    def is_outside(path: object) -> bool:
        if not isinstance(path, str | bytes):
            return False  # a file that is open already
        place = os.path.abspath(os.fsdecode(path))
        return not place.startswith(home) and place != os.devnull

    def hear(event: str, given: tuple[Any, ...]) -> None:
        is_asked = event.startswith(RUNS_OR_CALLS)
        is_asked |= event.startswith(CHANGES_FILES) and is_outside(given[0])
        if event == "open":
            mode, flags = given[1] or "", given[2]
            is_asked |= (bool(set(mode) & set("wax+")) or bool(flags & WRITES)) and is_outside(given[0])
        if is_asked:
            forbidden.append(f"{event} {given[:2]}")
            raise PermissionError(f"{event} is no part of reading a file")

    sys.addaudithook(hear)


def limit(request: Request) -> None:
    """Give this process the limits of the request, beyond the memory that it has already."""
    if resource is None:
        return
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: request.written}
    limits[resource.RLIMIT_STACK] = STACK  # what survives here survives in a thread of the process that asked
    limits[resource.RLIMIT_CPU] = int(request.seconds) + 1
    # Private memory alone: files that are mapped, and what libraries reserve and do not use, cost nothing.
    limits[resource.RLIMIT_DATA] = _private_memory() + request.memory
    for what, most in limits.items():
        _, hard = resource.getrlimit(what)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        with suppress(ValueError, OSError):  # a limit that this system does not know
            resource.setrlimit(what, (most, hard))


def _private_memory() -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData"))
    except (OSError, StopIteration, ValueError):
        return 0


if __name__ == "__main__":
    main()
