"""Fuzzes the loaders: honest files, damaged, loaded by a watched process.

    python tests/fuzz/run.py --minutes 10 --seed 1 --target hdf5

A finding is anything but success or InputError: another exception, a signal, more memory or time than the limits,
an act that loading never needs (see watch.py), a message that is not printable. Findings go to --out, one folder
each; the summary is printed as JSON. The exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import kmifqe
from fuzz.mutate import mutate_input
from fuzz.seeds import SEEDS

MEMORY_LIMIT = 400  # MiB of resident memory beyond the start, for inputs below 1 MiB
TIME_LIMIT = 30.0  # seconds an input, with room for a busy machine


class Worker:
    """The process that loads; it is started again after a crash."""

    def __init__(self, target: str, sandbox: Path, seeds: list[Path]) -> None:
        self.command = [sys.executable, "-X", "faulthandler", str(Path(__file__).with_name("worker.py"))]
        self.command += [target, str(sandbox), *map(str, seeds)]
        self.errors = sandbox.parent / "stderr"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start, and wait until the seeds have loaded."""
        home = f"{Path(__file__).parents[1]}{os.pathsep}{Path(kmifqe.__file__).parents[1]}"
        temporary = self.errors.parent / "temporary"
        temporary.mkdir(exist_ok=True)
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self.errors.parent,
                env={
                    "PYTHONPATH": home,
                    "PATH": "/usr/bin:/bin",
                    "OMP_NUM_THREADS": "1",
                    "HOME": "/nonexistent",
                    "TMPDIR": str(temporary),
                    "KMIFQE_CACHE_GIB": "0",
                },
            )
        if self._answer(120.0) != "ready":
            raise RuntimeError(f"the worker did not start: {self.errors.read_text()[-2000:]}")

    def load(self, path: Path, target: str = "") -> dict[str, object]:
        """Return how loading `path` ended, as `target` if that is not the worker's own."""
        if self.process is None:
            self.start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{target}\t{path}\n")
        self.process.stdin.flush()
        line = self._answer(TIME_LIMIT)
        if line:
            answer: dict[str, object] = json.loads(line)
            return answer
        kind = "hang" if line is None else f"died with code {self.process.wait()}"
        self.stop()
        trace = [line.strip() for line in self.errors.read_text().splitlines() if line.startswith("  File")]
        return {"kind": kind, "detail": " < ".join(trace[:5]), "mib": 0, "seconds": 0}

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _answer(self, seconds: float) -> str | None:
        """Return a line, "" at the end of the pipe, None when time is up."""
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline().strip() if ready else None


def is_finding(answer: dict[str, object]) -> bool:
    """Return whether a load ended in any way but success or a refusal within the limits."""
    return not str(answer["kind"]).startswith(("ok", "refused")) or int(str(answer["mib"])) > MEMORY_LIMIT


def signature(answer: dict[str, object]) -> str:
    """Return what makes two findings the same: how it ended and where, without the numbers in the message."""
    kind = "memory" if str(answer["kind"]).startswith(("ok", "refused")) else str(answer["kind"])
    detail = str(answer["detail"])
    if kind.startswith("raised") or kind.endswith("message"):
        detail = detail.partition(": ")[0]
    return f"{kind} | " + re.sub(r"0x[0-9a-f]+|\d\d+", "#", detail[:200])


def fuzz(target: str, seed: int, minutes: float, out: Path) -> dict[str, object]:
    """Return the counts of one stretch of fuzzing; findings are written under `out`."""
    rng = random.Random(f"{target} {seed}")
    outcomes: Counter[str] = Counter()
    findings: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder, sandbox = Path(scratch, "seeds"), Path(scratch, "work", "sandbox")
        folder.mkdir()
        sandbox.mkdir(parents=True)
        seeds = SEEDS[target](folder)
        worker = Worker(target, sandbox, seeds)
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            path = mutate_input(rng, target, seeds, sandbox)
            answer = worker.load(path)
            outcomes[str(answer["kind"])] += 1
            if is_finding(answer):
                name = signature(answer)
                findings[name] = findings.get(name, 0) + 1
                if findings[name] == 1:
                    keep(path, answer, out, target, name)
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        worker.stop()
    tried = sum(outcomes.values())
    summary: dict[str, object] = {"target": target, "seed": seed, "minutes": minutes, "inputs": tried}
    return summary | {"outcomes": dict(outcomes), "findings": findings}


def keep(path: Path, answer: dict[str, object], out: Path, target: str, name: str) -> None:
    """Keep the input that showed a finding, and what was seen."""
    folder = out / f"{target}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, folder / path.name, dirs_exist_ok=True, symlinks=True)
    else:
        shutil.copyfile(path, folder / path.name, follow_symlinks=False)
    (folder / "finding.json").write_text(json.dumps(answer | {"signature": name}, indent=1))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Fuzz the loaders with damaged files.")
    parser.add_argument("--target", choices=[*SEEDS, "all"], default="all", help="which format")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long, for each target")
    parser.add_argument("--seed", type=int, default=0, help="the same seed damages in the same order")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="where findings go")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Duplicate name")  # a doubled member is one of the damages
    found = 0
    for target in SEEDS if arguments.target == "all" else [arguments.target]:
        summary = fuzz(target, arguments.seed, arguments.minutes, arguments.out)
        print(json.dumps(summary), flush=True)
        found += len(summary["findings"])  # type: ignore[arg-type]
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
