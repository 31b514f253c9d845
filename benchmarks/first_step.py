"""Time from the command `kmifqe evaluate` to the first training step, on the first run with a log and on the second.

    python benchmarks/first_step.py [--rows 5000000]

The log is an HDF5 file of (11, 3) with next states and densities, float32, packed with gzip. The cache folder is new:
the first run reads the log in the child process and compiles its programs, the second finds both. A third run
has the compiled programs and --no-cache, which tells what the kept log alone is worth. The records go to
experiments/results/first_step.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from loading import ACTIONS, STATES

RECORD = Path(__file__).parents[1] / "experiments" / "results" / "first_step.json"
COMMAND = """
import os, sys, time
from kmifqe.io.logs import load
from kmifqe.report import terminal
began, read = float(sys.argv.pop(1)), []
whole = load.load_dataset
def timed(*given, **named):
    started = time.time()
    found = whole(*given, **named)
    read.append(time.time() - started)
    return found
def first(self, progress):
    print(time.time() - began, read[0], flush=True)
    os._exit(0)
terminal.TerminalWatch.progress = first
import kmifqe.api
kmifqe.api.load_dataset = timed
from kmifqe.cli import main
main()
"""


def first_step(log: Path, policy: Path, folder: Path, *more: str) -> dict[str, float]:
    words = ["evaluate", str(log), "--policy", str(policy), "--behavior", "logged", "-e", "fqe"]
    words += ["--steps", "100", "--seeds", "2", "--out", str(folder / "run"), "--force", *more]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, str(time.time()), *words],
        env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds, read = map(float, done.stdout.split()[-2:])
    return {"first_step": seconds, "reading": read}


def main() -> None:
    from kmifqe.io.policies.actor import Actor

    parser = argparse.ArgumentParser(description="Time from the command to the first step.")
    parser.add_argument("--rows", type=int, default=5_000_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        folder = Path(place)
        log, policy = folder / "log.hdf5", folder / "actor.safetensors"
        path = str(Path(__file__).with_name("loading.py"))
        subprocess.run(
            [sys.executable, path, "--write", str(log), "--formats", "hdf5", "--rows", str(options.rows)],
            check=True,
        )
        weights = (rng.standard_normal((STATES, ACTIONS)).astype(np.float32) * 0.1,)
        box = np.ones(ACTIONS, np.float32)
        Actor(weights, (np.zeros(ACTIONS, np.float32),), "tanh", "tanh", -box, box).save(policy)
        found = {"rows": options.rows, "file_bytes": log.stat().st_size}
        for name, more in (
            ("first run", ()),
            ("second run", ()),
            ("programs kept, log not", ("--no-cache",)),
        ):
            found[name] = first_step(log, policy, folder, *more)
            print(name, found[name], flush=True)
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
