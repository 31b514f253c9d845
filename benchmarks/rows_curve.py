"""Memory and time from a log on disk to an estimate, as the log grows from 1 M to 100 M rows.

    python benchmarks/rows_curve.py [--rows 1000000 3000000 ...] [--figure docs/figures/rows_curve.png]

For each size a log of (11, 3) is written as the arrays that the cache keeps, and read by a process of its own,
which builds the problem and fits KMIFQE with one narrow network and one refresh. Anonymous memory, which only swap
could take away, is sampled every 20 ms and stands beside the forecast that is made before the fit; pages of mapped
files are counted apart. The records go to experiments/results/rows_curve.json, and the arrays are removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from memory import EPISODE, GIB, small_estimator

STATES, ACTIONS, PIECE = 11, 3, 500_000
ROWS = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
RECORD = Path(__file__).parents[1] / "experiments" / "results" / "rows_curve.json"


def write_arrays(folder: Path, rows: int) -> None:
    """Write a log as the cache keeps it, piece by piece."""
    from kmifqe.io.logs.arrays import ArrayFolder
    from kmifqe.mdp.columns import Columns

    new, rng = ArrayFolder(folder), np.random.default_rng(0)
    wide = {"states": STATES, "next_states": STATES, "actions": ACTIONS}
    arrays = {name: new.allocate(name, (rows, width), np.float32) for name, width in wide.items()}
    arrays["rewards"] = new.allocate("rewards", (rows,), np.float32)
    flags = {name: new.allocate(name, (rows,), np.bool_) for name in ("terminated", "cut")}
    for start in range(0, rows, PIECE):
        stop = min(start + PIECE, rows)
        visited = rng.standard_normal((stop - start + 1, STATES), dtype=np.float32)
        arrays["states"][start:stop], arrays["next_states"][start:stop] = visited[:-1], visited[1:]
        arrays["actions"][start:stop] = rng.standard_normal((stop - start, ACTIONS), dtype=np.float32)
        arrays["rewards"][start:stop] = rng.standard_normal(stop - start, dtype=np.float32)
        number = start + np.arange(stop - start)
        last = (number + 1) % EPISODE == 0
        odd = number // EPISODE % 2 == 1
        flags["terminated"][start:stop], flags["cut"][start:stop] = last & odd, last & ~odd
    new.finish(Columns(**arrays, **flags, cuts_are_marked=True, has_episode_ids=False, name="log"))


def status_bytes(field: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[field].split()[0])


class Peaks:
    """Samples the process's memory in a thread; the peaks are those since the last `take`."""

    def __init__(self) -> None:
        self._anonymous = self._mapped = 0
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            self._anonymous = max(self._anonymous, status_bytes("RssAnon"))
            self._mapped = max(self._mapped, status_bytes("RssFile") + status_bytes("RssShmem"))
            time.sleep(0.02)

    def take(self) -> dict[str, int]:
        """Return the peaks, and begin anew."""
        found = {"anonymous": self._anonymous, "mapped": self._mapped}
        self._anonymous = self._mapped = 0
        return found


def run_phases(folder: Path) -> None:
    """Print what every phase took, as JSON."""
    from kmifqe.behavior import GaussianBehavior
    from kmifqe.estimators import fit
    from kmifqe.estimators.fit import make_plan
    from kmifqe.estimators.forecast import make_forecast
    from kmifqe.io.logs.arrays import map_columns
    from kmifqe.mdp.problem import Problem
    from kmifqe.mdp.transitions import Transitions

    peaks, phases = Peaks(), {}
    time.sleep(0.1)
    clock = time.perf_counter()

    def done(phase: str, **more: Any) -> None:
        nonlocal clock
        phases[phase] = {"seconds": time.perf_counter() - clock, **peaks.take(), **more}
        print(phase, phases[phase], file=sys.stderr, flush=True)
        clock = time.perf_counter()

    def target(states: np.ndarray) -> np.ndarray:
        return np.tanh(states[:, :ACTIONS])

    done("start")
    log = Transitions.from_columns(map_columns(folder, "log", verify=True))
    done("load")
    density = GaussianBehavior(target, 0.5, np.full(ACTIONS, -1.0), np.full(ACTIONS, 1.0))
    problem = Problem.build(log, target, density, 0.99)
    done("build", is_mapped=problem.is_mapped)
    del log
    estimator = small_estimator("kmifqe", 8)
    plan = make_plan(estimator, problem, seeds=1, steps=2)
    forecast = make_forecast(estimator, problem, plan, timed=False)
    done("forecast", memory=forecast.device, data_mapped=forecast.data_mapped, text=str(forecast))
    estimate = fit(estimator, problem, plan)
    done("fit", value=float(estimate.value))
    print(json.dumps(phases))


def draw(records: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from kmifqe.estimators.forecast import PROCESS

    rows = np.array([each["rows"] for each in records]) / 1e6
    peaks = [max(phase["anonymous"] for phase in each["phases"].values()) / GIB for each in records]
    forecasts = [(each["phases"]["forecast"]["memory"] + PROCESS) / GIB for each in records]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.loglog(rows, peaks, "o-", label="peak, measured")
    left.loglog(rows, forecasts, "k--", label="forecast before the fit")
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    left.set_yticks([0.5, 1, 2, 4, 8])
    left.set(xlabel="rows, millions", ylabel="memory, GiB", title="Memory that cannot be given back")
    left.legend()
    for phase in ("load", "build", "fit"):
        right.loglog(rows, [each["phases"][phase]["seconds"] for each in records], "o-", label=phase)
    right.set(xlabel="rows, millions", ylabel="seconds", title="Time, two shared cores")
    right.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory and time as the log grows.")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp/kmifqe-rows-curve"))
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        run_phases(options.read)
        return
    known = json.loads(RECORD.read_text()) if RECORD.exists() else []
    records = {each["rows"]: each for each in known}
    for rows in options.rows:
        if rows not in records:
            options.scratch.mkdir(parents=True)
            try:
                started = time.perf_counter()
                write_arrays(options.scratch, rows)
                written = time.perf_counter() - started
                command = [sys.executable, __file__, "--read", str(options.scratch)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            finally:
                shutil.rmtree(options.scratch)
            phases = json.loads(done.stdout.splitlines()[-1])
            records[rows] = {"rows": rows, "seconds_written": written, "phases": phases}
            RECORD.write_text(json.dumps([records[each] for each in sorted(records)], indent=1) + "\n")
    if options.figure:
        draw([records[each] for each in sorted(records)], options.figure)


if __name__ == "__main__":
    main()
