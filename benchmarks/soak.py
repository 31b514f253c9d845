"""Breaks evaluations and files for as long as it is let, and counts what happened.

    python benchmarks/soak.py kills --minutes 30     # SIGKILL at random moments of `kmifqe evaluate`
    python benchmarks/soak.py writes --minutes 10    # a write that fails, somewhere in a run
    python benchmarks/soak.py files --minutes 60     # damaged files of every format

Each command adds to the counts in experiments/results/soak.json, so that a soak goes on where the last one ended. A
finding is kept in the record with what is needed to see it again; the exit code is 1 if there is any. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from kmifqe.io.policies.actor import Actor  # noqa: E402

RECORD = ROOT / "experiments" / "results" / "soak.json"
PHASES = {  # the last of these files that is there says what the run was doing when it was ended
    "begun": "run.json",
    "density fitted": "behavior_fit.json",
    "training": "checkpoints",
    "one estimator finished": "finished",
    "result written": "result.json",
    "report written": "report.html",
}
# Runs `kmifqe`, but the write of the given number fails: argv is NUMBER, ERRNO, and the command's words. The number
# of writes goes to stderr at the end.
FAILS = """
import errno, io, os, pathlib, sys
number, code = int(sys.argv[1]), int(sys.argv[2])
count = 0
def failing(function, writes=lambda *a, **k: True):
    def call(*given, **named):
        global count
        if writes(*given, **named):
            count += 1
            if count == number:
                raise OSError(code, os.strerror(code))
        return function(*given, **named)
    return call
for name in ("fsync", "replace", "mkdir", "rename", "posix_fallocate"):
    setattr(os, name, failing(getattr(os, name)))
for name in ("write_bytes", "write_text"):
    setattr(pathlib.Path, name, failing(getattr(pathlib.Path, name)))
import kmifqe.cli
sys.argv = ["kmifqe", *sys.argv[3:]]
try:
    kmifqe.cli.main()
finally:
    os.write(2, f"writes: {count}\\n".encode())
"""


class Evaluation:
    """One small question, and the right answer to it: the values of a run that nobody disturbed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rng = np.random.default_rng(0)
        rows, actions = 400, 0.5 * rng.standard_normal((400, 2))
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
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.words = ["evaluate", "log.npz", "--policy", "actor.safetensors", "--behavior", "fit"]
        self.words += ["-e", "kmifqe", "-e", "fqe", "--gamma", "0.5", "--seeds", "2", "--steps", "120"]
        self.words += ["--set", "hidden=8", "--set", "batch=32", "--save-seconds", "0", "--resume", "--out"]
        self.run("reference")  # fills the cache of compiled programs
        shutil.rmtree(folder / "reference")
        began = time.monotonic()
        self.run("reference")
        self.seconds = time.monotonic() - began
        self.truth = self.answer("reference")

    def start(self, out: str, program: list[str] | None = None, **how: Any) -> subprocess.Popen[str]:
        """Start the command with the run directory `out`; `program` runs it, by default `python -m kmifqe`."""
        return subprocess.Popen(
            [*(program or [sys.executable, "-m", "kmifqe"]), *self.words, out],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **how,
        )

    def run(self, out: str, program: list[str] | None = None, **how: Any) -> tuple[int, str]:
        """Run the command to its end and return its exit code and what it said on stderr."""
        process = self.start(out, program, **how)
        said = process.communicate()[1]
        return process.returncode, said

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
        found = [phase for phase, name in PHASES.items() if (self.folder / out / name).exists()]
        return found[-1] if found else "starting"


def kills(rng: random.Random, end: float, add: Callable[..., None]) -> None:
    """Kill evaluations at random moments, again and again, until each has ended; compare with the reference."""
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        evaluation = Evaluation(Path(scratch))
        while time.monotonic() < end:
            out, killed = f"run{rng.randrange(10**9)}", 0
            while True:
                process = evaluation.start(out)
                # A run that goes on has less before it; towards the end of the soak it is let through.
                wait = rng.uniform(0.0, 1.1 * evaluation.seconds) if time.monotonic() < end else 600.0
                try:
                    said = process.communicate(timeout=wait)[1]
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    killed += 1
                    add("kills", evaluation.phase(out))
                    continue
                break
            is_same = process.returncode == 0 and evaluation.answer(out) == evaluation.truth
            add("runs after kills", "same bits" if is_same else "finding", None if is_same else said[-500:])
            left = [path.name for path in (evaluation.folder / out).glob(".kmifqe-partial-*")]
            add("leftovers", "none" if not left else "finding", left or None)
            shutil.rmtree(evaluation.folder / out)


def writes(rng: random.Random, end: float, add: Callable[..., None]) -> None:
    """Let one write of an evaluation fail; expect a sentence, or a result, and then the reference after --resume."""
    import errno
    import resource

    errors = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        evaluation = Evaluation(Path(scratch))
        _, said = evaluation.run("counted", [sys.executable, "-c", FAILS, "0", "0"])
        count = int(said.rpartition("writes: ")[2])
        while time.monotonic() < end:
            out = f"run{rng.randrange(10**9)}"
            if rng.random() < 0.7:
                number, code = rng.randint(1, count), rng.choice(errors)
                kind = errno.errorcode[code]
                code, said = evaluation.run(out, [sys.executable, "-c", FAILS, str(number), str(code)])
            else:  # the system's own refusal: no file may be longer
                kind, most = "ulimit -f", int(2 ** rng.uniform(8, 18))
                code, said = evaluation.run(
                    out,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),  # noqa: B023
                )
            is_sentence = code in (0, 2) and "Traceback" not in said
            add(
                "write errors",
                f"{kind}, exit code {code}" if is_sentence else "finding",
                None if is_sentence else said,
            )
            code, said = evaluation.run(out)
            is_same = code == 0 and evaluation.answer(out) == evaluation.truth
            add(
                "runs after write errors",
                "same bits" if is_same else "finding",
                None if is_same else said[-500:],
            )
            shutil.rmtree(evaluation.folder / out)


def files(rng: random.Random, end: float, add: Callable[..., None]) -> None:
    """Load damaged files of every format in turn, each in a watched process."""
    from fuzz.run import fuzz
    from fuzz.seeds import SEEDS

    found = Path(tempfile.mkdtemp(prefix="soak-findings-"))
    while time.monotonic() < end:
        for target in SEEDS:
            summary = fuzz(
                target, rng.randrange(10**9), min(1.0, max(0.0, end - time.monotonic()) / 60), found
            )
            for outcome, number in summary["outcomes"].items():  # type: ignore[attr-defined]
                add(f"files: {target}", outcome, count=number)
            for finding in summary["findings"]:  # type: ignore[attr-defined]
                add("files: findings", finding, f"{target}, seed {summary['seed']}")


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

    {"kills": kills, "writes": writes, "files": files}[arguments.what](
        random.Random(f"{arguments.what} {mine['soaks']}"), began + 60 * arguments.minutes, add
    )
    print(json.dumps(mine["counts"], indent=1))
    return 1 if mine["findings"] else 0


def write(path: Path, what: str, mine: dict[str, Any]) -> None:
    """Put the counts of one kind into the record; the other kinds may be soaking at the same time."""
    record = json.loads(path.read_text()) if path.exists() else {}
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(record | {what: mine}, indent=1, sort_keys=True) + "\n")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
