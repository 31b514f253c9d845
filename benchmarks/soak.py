"""Breaks evaluations and files for as long as it is let, and counts what happened.

    python benchmarks/soak.py kills --minutes 30     # SIGKILL at random moments of `kmifqe evaluate`
    python benchmarks/soak.py writes --minutes 10    # a write that fails, somewhere in a run
    python benchmarks/soak.py files --minutes 60     # damaged files of every format

Each command adds to the counts in experiments/results/soak.json, so that a soak goes on where the last one ended. A
finding is kept in the record with what is needed to see it again; the exit code is 1 if there is any. Linux only.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiling is most of a small run
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import kmifqe.api  # noqa: E402
import kmifqe.cli  # noqa: E402
from kmifqe.behavior import fit  # noqa: E402
from kmifqe.io.policies.actor import Actor  # noqa: E402

RECORD = ROOT / "experiments" / "results" / "soak.json"
FIRST = "reading files, fitting the density"
PHASES = {  # the last of these files that is there says what the run was doing when it was ended
    "begun": "run.json",
    "density fitted": "behavior_fit.json",
    "training": "checkpoints",
    "one estimator finished": "finished",
    "result written": "result.json",
    "figures begun": "*.png",
    "report written": "report.html",
}
KILLS = 8  # of one run, before it is let through
# A density that is fitted in a second, so that kills fall on everything else as well.
SMALL_DENSITY: dict[str, Any] = {
    "components": (2,),
    "hidden": (16,),
    "batch": 64,
    "steps": 60,
    "check_every": 20,
}
WRITING = {
    os: ("fsync", "replace", "mkdir", "rename", "posix_fallocate"),
    Path: ("write_bytes", "write_text"),
}
IN_BATCHES, AS_A_COMMAND = (
    6.0,
    10.0,
)  # seconds for each format in turn; for one format after all have had theirs


class Evaluation:
    """One small question, and the right answer to it: the values of a run that nobody disturbed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        assert fit.fit_or_load.__kwdefaults__ is not None
        fit.fit_or_load.__kwdefaults__["config"] = fit.FitConfig(**SMALL_DENSITY)
        rng = np.random.default_rng(0)
        rows, actions = 200, 0.5 * rng.standard_normal((200, 2))
        np.savez(
            folder / "log.npz",
            observations=rng.standard_normal((rows, 3)).astype(np.float32),
            actions=actions.astype(np.float32),
            rewards=(1.0 - (actions**2).sum(axis=1)).astype(np.float32),
            terminals=np.zeros(rows, bool),
            timeouts=np.arange(rows) % 10 == 9,
        )
        Actor(
            weights=(0.1 * rng.standard_normal((3, 2)).astype(np.float32),),
            biases=(np.zeros(2, np.float32),),
            hidden="tanh",
            output="tanh",
            low=-np.ones(2, np.float32),
            high=np.ones(2, np.float32),
        ).save(folder / "actor.safetensors")
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.words = ["evaluate", "log.npz", "--policy", "actor.safetensors", "--behavior", "fit"]
        self.words += ["-e", "kmifqe", "-e", "fqe", "--gamma", "0.5", "--seeds", "2", "--steps", "60"]
        self.words += ["--set", "hidden=8", "--set", "batch=32", "--save-seconds", "0", "--resume", "--out"]
        self.run("reference")  # fills the cache of compiled programs
        shutil.rmtree(folder / "reference")
        began = time.monotonic()
        fork, self.begins = self.start("reference"), {FIRST: 0.0}  # phase -> seconds after the start
        while (code := self.wait(fork, 0.0, kill=False)) is None:
            self.begins.setdefault(self.phase("reference"), time.monotonic() - began)
            time.sleep(0.002)
        self.seconds, self.truth = time.monotonic() - began, self.answer("reference")
        if code != 0 or self.truth is None:
            raise RuntimeError(f"the reference failed: {(folder / 'said').read_text(errors='replace')}")
        print(f"an evaluation takes {self.seconds:.1f} s: {self.begins}", flush=True)

    def start(self, out: str, prepare: Callable[[], None] = lambda: None) -> int:
        """Start the command with the run directory `out` in a fork, after `prepare`; return the fork's id.

        A fork of this process, which has imported everything and started nothing, is at work at once.
        """
        fork = os.fork()
        if fork:
            return fork
        os.setsid()
        os.chdir(self.folder)
        nothing = os.open(os.devnull, os.O_RDWR)
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor, target in ((0, nothing), (1, nothing), (2, said)):
            os.dup2(target, descriptor)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        sys.argv = ["kmifqe", *self.words, out]
        code = 1
        try:
            prepare()
            kmifqe.cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait(self, fork: int, seconds: float = 600.0, *, kill: bool = True) -> int | None:
        """Return the exit code of a fork, or None where `seconds` were over, and it was killed for that if `kill`."""
        deadline = time.monotonic() + seconds
        while True:
            ended, status = os.waitpid(fork, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.002)
        if not kill:
            return None
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)
        return None

    def run(self, out: str, prepare: Callable[[], None] = lambda: None) -> tuple[int | None, str]:
        """Run the command to its end and return its exit code and what it said on stderr."""
        code = self.wait(self.start(out, prepare))
        return code, (self.folder / "said").read_text(errors="replace")

    def answer(self, out: str) -> Any:
        """Return the values and trajectories that the run has come to, None where there is no result."""
        path = self.folder / out / "result.json"
        if not path.is_file():
            return None
        result = json.loads(path.read_text())
        return [
            {key: estimate[key] for key in estimate if key not in ("seconds", "device")}
            for estimate in result["estimates"]
        ]

    def phase(self, out: str) -> str:
        """Return what the run was doing last, by the files it has written."""
        found = [phase for phase, name in PHASES.items() if any((self.folder / out).glob(name))]
        return found[-1] if found else FIRST

    def kill_in(self, phase: str, out: str, rng: random.Random) -> tuple[int | None, str]:
        """Run the command and kill it at a random moment of `phase`; return its exit code if it was faster.

        The second of the two is what it was doing. A run that is resumed is in that phase from the start, or past it.
        """
        order = [FIRST, *PHASES]
        begins = [self.begins[name] for name in order if name in self.begins] + [self.seconds]
        length = min(begin for begin in begins if begin > self.begins[phase]) - self.begins[phase]
        fork = self.start(out)
        while (code := self.wait(fork, 0.0, kill=False)) is None:
            if order.index(self.phase(out)) >= order.index(phase):
                # What a resumed run does before it is where it was takes about as long as before the first phase.
                ahead = begins[1] if self.phase(out) != phase else 0.0
                code = self.wait(fork, rng.uniform(0.0, ahead + length))
                break
            time.sleep(0.002)
        return code, self.phase(out)


def kills(rng: random.Random, end: float, add: Callable[..., None]) -> None:
    """Kill evaluations at random moments, again and again, until each has ended; compare with the reference."""
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        evaluation = Evaluation(Path(scratch))
        while time.monotonic() < end:
            out = f"run{rng.randrange(10**9)}"
            code: int | None = None
            phases = list(evaluation.begins)
            for number in sorted(
                rng.choices(range(len(phases)), k=KILLS)
            ):  # the later, the further the run is
                code, phase = evaluation.kill_in(phases[number], out, rng)
                if code is not None:
                    break
                add("kills", phase)
                if time.monotonic() > end:
                    break
            if code is None:
                code = evaluation.wait(evaluation.start(out))
            said = (evaluation.folder / "said").read_text(errors="replace")
            is_same = code == 0 and evaluation.answer(out) == evaluation.truth
            add("runs after kills", "same bits" if is_same else "finding", None if is_same else said[-500:])
            left = [path.name for path in (evaluation.folder / out).glob(".kmifqe-partial-*")]
            add("leftovers", "none" if not left else "finding", left or None)
            shutil.rmtree(evaluation.folder / out)


def fail_write(number: int, code: int) -> None:
    """Let the write of this number fail in this process, and say at the end how many there were."""
    count = [0]

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                raise OSError(code, os.strerror(code))
            return function(*given, **named)

        return call

    for owner, names in WRITING.items():
        for name in names:
            setattr(owner, name, failing(getattr(owner, name)))
    if number == 0:
        leave, write_text = os._exit, Path.write_text
        os._exit = lambda code: (write_text(Path("count"), str(count[0])), leave(code))  # type: ignore


def writes(rng: random.Random, end: float, add: Callable[..., None]) -> None:
    """Let one write of an evaluation fail; expect a sentence, or a result, and then the reference after --resume."""
    errors = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        evaluation = Evaluation(Path(scratch))
        evaluation.run("counted", lambda: fail_write(0, 0))
        count = int((evaluation.folder / "count").read_text())
        while time.monotonic() < end:
            out = f"run{rng.randrange(10**9)}"
            if rng.random() < 0.7:
                number, error = rng.randint(1, count), rng.choice(errors)
                kind, prepare = errno.errorcode[error], partial(fail_write, number, error)
            else:  # the system's own refusal: no file may be longer
                most = int(2 ** rng.uniform(8, 18))
                kind = "ulimit -f"
                prepare = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
            code, said = evaluation.run(out, prepare)
            is_sentence = code in (0, 2) and "Traceback" not in said
            found = None if is_sentence else said[-2000:]
            add("write errors", f"{kind}, exit code {code}" if is_sentence else "finding", found)
            code, said = evaluation.run(out)
            is_same = code == 0 and evaluation.answer(out) == evaluation.truth
            add(
                "runs after write errors",
                "same bits" if is_same else "finding",
                None if is_same else said[-500:],
            )
            shutil.rmtree(evaluation.folder / out)


def files(rng: random.Random, end: float, add: Callable[..., None]) -> None:
    """Load damaged files of every format in turn, most in batches, some as a user's command does it.

    In batches a fork does the child's job with one file after another, under the child's limits for each: this asks
    whether the readers are right. What ends such a fork must be a sentence where a command loads it. Loading as a
    command does, with the child process for each, asks whether all of it holds together; it takes ten times as long.
    """
    from fuzz.batches import HARMLESS, Batches
    from fuzz.run import Worker, fuzz, is_finding, signature
    from fuzz.seeds import SEEDS

    found = Path(tempfile.mkdtemp(prefix="soak-findings-"))
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        batches = {}
        for target in SEEDS:
            Path(scratch, target).mkdir()
            batches[target] = Batches(target, Path(scratch, target))
        for whole in itertools.cycle(SEEDS):
            for target, batch in batches.items():
                until = min(end, time.monotonic() + IN_BATCHES)
                while time.monotonic() < until:
                    seed = rng.randrange(10**9)
                    counts, killer = batch.run(seed)
                    for outcome, number in counts.items():
                        is_wrong = not outcome.startswith(HARMLESS)
                        add(f"in batches: {target}", outcome, f"seed {seed}" if is_wrong else None, number)
                    if killer is not None:
                        worker = Worker(target, killer.parent, batch.seeds)
                        answer = worker.load(killer)
                        worker.stop()
                        shutil.copytree(killer.parent, found / f"{target}-{seed}", symlinks=True)
                        wrong = f"{target}, seed {seed}: {signature(answer)}" if is_finding(answer) else None
                        add("what ended a batch, as a command loads it", str(answer["kind"]), wrong)
            if time.monotonic() >= end:
                return
            summary = fuzz(whole, rng.randrange(10**9), AS_A_COMMAND / 60, found)
            for outcome, number in summary["outcomes"].items():  # type: ignore[attr-defined]
                add(f"as a command: {whole}", outcome, count=number)
            for finding in summary["findings"]:  # type: ignore[attr-defined]
                add("findings as a command", finding, f"{whole}, seed {summary['seed']}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Break evaluations and files, and count what happens.")
    parser.add_argument("what", choices=["kills", "writes", "files"])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--record", type=Path, default=RECORD)
    arguments = parser.parse_args()
    record: dict[str, Any] = json.loads(arguments.record.read_text()) if arguments.record.exists() else {}
    mine: dict[str, Any] = record.get(
        arguments.what, {"counts": {}, "findings": [], "minutes": 0.0, "soaks": 0}
    )
    before = mine["minutes"]
    mine["soaks"] += 1
    began = time.monotonic()

    def add(kind: str, outcome: str, finding: object = None, count: int = 1) -> None:
        mine["counts"].setdefault(kind, {})
        mine["counts"][kind] = dict(Counter(mine["counts"][kind]) + Counter({outcome: count}))
        if finding is not None:
            mine["findings"].append({"kind": kind, "outcome": outcome, "what": finding})
            print(f"finding: {kind}, {outcome}: {finding}", flush=True)
        mine["minutes"] = round(before + (time.monotonic() - began) / 60, 1)
        write(arguments.record, arguments.what, mine)

    warnings.filterwarnings("ignore", "Duplicate name")  # a doubled member is one of the damages
    {"kills": kills, "writes": writes, "files": files}[arguments.what](
        random.Random(f"{arguments.what} {mine['soaks']}"), began + 60 * arguments.minutes, add
    )
    print(json.dumps(mine["counts"], indent=1))
    return 1 if mine["findings"] else 0


def write(path: Path, what: str, mine: dict[str, Any]) -> None:
    """Put the counts of one kind into the record; the other kinds may be soaking at the same time."""
    with FileLock(Path(tempfile.gettempdir(), "kmifqe-soak.lock")):
        record = json.loads(path.read_text()) if path.exists() else {}
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(record | {what: mine}, indent=1, sort_keys=True) + "\n")
        whole.replace(path)


if __name__ == "__main__":
    sys.exit(main())
