"""Loads damaged files by the thousand: a forked process reads one after another, with a limit on each.

`worker.py` loads a file as a user's command does, which costs a fork, two pipes and a temporary folder for each. Here
the very job that the child process is given (`child_main.JOBS`) is done again and again in one process, a fork of
this one with the same limits and the same ban on acts (`child_main`). What kills that process ends a batch; the file
that did it can then be loaded by `worker.py` as well, where it must be one sentence.
"""

from __future__ import annotations

import errno
import importlib
import json
import mmap
import os
import random
import shutil
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from fuzz.mutate import mutate_input
from fuzz.seeds import SEEDS
from kmifqe.behavior.load import parse_behavior
from kmifqe.errors import InputError
from kmifqe.io import child_main
from kmifqe.io.child import Request
from kmifqe.io.logs.arrays import map_columns
from kmifqe.io.logs.load import LIBRARIES
from kmifqe.io.policies.actor import load_safetensors_actor
from kmifqe.mdp.transitions import Transitions

BATCH = 500  # files that one process reads
# How files may end: the limits, or a library's own crash, end the fork; a command then loads that file once more.
HARMLESS = ("ok", "refused", "ended: SIG", "ended: time", "ended: memory")
SECONDS, MEMORY, WRITTEN = 8.0, 256 * 2**20, 512 * 2**20  # for each file
LOGS = ("hdf5", "npz", "parquet", "arrow", "minari")
IN_CHILD = {
    "done": "ok",
    "refused": "refused",
    "failed": "refused: an exception of the library's",
    "memory": "refused: memory",
}
PROGRAMS = {"torchscript": "torch", "onnx": "onnxruntime"}
Job = Callable[[], object]


class Batches:
    """Damaged files of one format, made and read in forks of this process."""

    def __init__(self, target: str, scratch: Path) -> None:
        """`scratch` is an empty folder."""
        self.target, self.folder = target, scratch / "work"
        self.sandbox = self.folder / "sandbox"
        (scratch / "seeds").mkdir()
        with get_context("fork").Pool(
            1
        ) as pool:  # JAX, once started in this process, would not work in its forks
            self.seeds = pool.apply(SEEDS[target], (scratch / "seeds",))
        for library in LIBRARIES.get(target, ()) or (PROGRAMS.get(target),):
            if library is not None:
                importlib.import_module(library)

    def run(self, seed: int) -> tuple[Counter[str], Path | None]:
        """Damage and read a batch; return how the files ended, and the one that ended the process if one did."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.sandbox.mkdir(parents=True)
        notes = mmap.mmap(-1, 2**16)  # shared with the fork: what it has counted outlives it
        fork = os.fork()
        if fork == 0:
            code = 1
            try:
                self._read_all(random.Random(f"{self.target} {seed}"), notes)
                code = 0
            except (
                MemoryError,
                OSError,
            ) as error:  # a library has kept what the limit allows: nothing else has room
                if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
                    code = errno.ENOMEM
                raise
            finally:
                os._exit(code)
        _, status = os.waitpid(fork, 0)
        text = notes[:].rstrip(b"\0")
        counts: Counter[str] = Counter(json.loads(text) if text else {})
        notes.close()
        if status == 0:
            return counts, None
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        what = signal.Signals(ended_by).name if ended_by else "an exception of the fuzzer's own"
        if ended_by in (signal.SIGALRM, signal.SIGXCPU):
            what = "time"
        elif os.waitstatus_to_exitcode(status) == errno.ENOMEM:
            what = "memory"
        counts[f"ended: {what}"] += 1
        return counts, next((self.sandbox / str(counts.total() - 1)).iterdir(), None)

    def _read_all(self, rng: random.Random, notes: mmap.mmap) -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # native libraries print
            os.dup2(nothing, descriptor)
        os.chdir(self.folder)
        warnings.simplefilter("ignore")
        np.seterr(all="ignore")
        written = self.folder / "written"
        for seed in self.seeds:  # what libraries load for honest files is not the damaged ones' doing
            written.mkdir()
            if (outcome := self._read(seed, written)) != "ok":
                raise RuntimeError(f"{seed}, an honest file: {outcome}")
            shutil.rmtree(written)
        paths = []
        for number in range(BATCH):  # first of all, since damaging may write and link as reading may not
            (self.sandbox / str(number)).mkdir()
            paths.append(mutate_input(rng, self.target, self.seeds, self.sandbox / str(number)))
        forbidden: list[str] = []
        beside = {"written": str(self.folder / "x")}  # the folder that may be written to
        request = Request("", beside, [], str(self.folder), MEMORY, SECONDS, WRITTEN)
        child_main.forbid(request, forbidden)
        counts: Counter[str] = Counter()
        for path in paths:
            written.mkdir()
            request.seconds = time.process_time() + SECONDS  # the limit is on all that the process has used
            child_main.limit(request)
            signal.setitimer(
                signal.ITIMER_REAL, 2 * SECONDS
            )  # whatever it waits for: SIGALRM ends the process
            outcome = self._read(path, written)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            counts["forbidden act" if forbidden else outcome] += 1
            forbidden.clear()
            text = json.dumps(counts).encode()
            notes[: len(text) + 1] = text + b"\0"
            shutil.rmtree(written)

    def _read(self, path: Path, written: Path) -> str:
        """Return how `path` ended in what the child does with it, and then in the process that asked the child."""
        in_child, in_asker = self._jobs(path, written)
        outcome = "ok"
        if in_child is not None:
            answer = child_main.answer_of(in_child)
            outcome = IN_CHILD[answer.kind] if answer.sentence.isprintable() else "unprintable message"
        if outcome != "ok" or in_asker is None:
            return outcome
        try:
            in_asker()
        except InputError as error:
            return "refused" if str(error).isprintable() else "unprintable message"
        except Exception as error:  # a traceback, in a user's terminal
            return f"raised {type(error).__name__}"
        return "ok"

    def _jobs(self, path: Path, written: Path) -> tuple[Job | None, Job | None]:
        do, place = child_main.JOBS, str(written / "x.safetensors")
        if self.target in LOGS:
            return (
                lambda: do["log"](str(written), [str(path)], path.name, check_finite=True, needs_ends=True),
                lambda: Transitions.from_columns(map_columns(written, path.name, verify=False)),
            )
        if self.target == "behavior":
            return None, lambda: parse_behavior(str(path))
        if self.target == "safetensors":
            return None, lambda: load_safetensors_actor(path)
        if self.target == "normalization":
            return lambda: do["normalization"](place, str(path)), None
        if self.target in PROGRAMS:
            return lambda: do["program"](str(path)), None
        return (
            lambda: do["actor"](place, str(path), None, None, normalization_is_given=True),
            lambda: load_safetensors_actor(place),
        )
