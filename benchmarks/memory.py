"""Peak host memory from a file to an estimate: load, build, fit with one seed and with three.

    python benchmarks/memory.py [--rows 10000000] [--states 11] [--actions 3] [--estimator kmifqe]
    python benchmarks/memory.py --table      bytes per transition and seed, computed and not measured

The log is written in pieces to a temporary directory and read by a process of its own, whose peak resident
memory is read after every phase. Networks are narrow and steps few: neither changes memory per transition.
What a fit took stands beside the forecast. On Linux each phase has a peak of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from kmifqe.estimators import Estimator
    from kmifqe.mdp.problem import Problem

EPISODE = 1_000  # steps; every other episode terminates, the others are cut
PIECE = 500 * EPISODE  # rows written at a time
GIB = 2**30
SIZES = ((11, 3), (17, 6), (376, 17))  # Hopper, HalfCheetah, Humanoid


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def resident_bytes() -> int:
    """Resident memory now; the peak where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * resource.getpagesize() if status.exists() else peak_bytes()


def forget_peak() -> None:
    """Let the peak begin anew, for `recent_peak_bytes`; where the system cannot, do nothing."""
    file = Path("/proc/self/clear_refs")
    if file.exists():
        file.write_text("5")


def recent_peak_bytes() -> int:
    """Peak since `forget_peak`; since the start where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return peak_bytes()
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])


def write_log(path: Path, rows: int, states: int, actions: int) -> None:
    import h5py

    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        fields = {
            "observations": file.create_dataset("observations", (rows, states), np.float32),
            "next_observations": file.create_dataset("next_observations", (rows, states), np.float32),
            "actions": file.create_dataset("actions", (rows, actions), np.float32),
            "rewards": file.create_dataset("rewards", (rows,), np.float32),
            "terminals": file.create_dataset("terminals", (rows,), bool),
            "timeouts": file.create_dataset("timeouts", (rows,), bool),
        }
        for start in range(0, rows, PIECE):
            n = min(PIECE, rows - start)
            visited = rng.standard_normal((n + 1, states), dtype=np.float32)
            number = start + np.arange(n)
            last = (number + 1) % EPISODE == 0
            odd = number // EPISODE % 2 == 1
            values = {
                "observations": visited[:-1],
                "next_observations": visited[1:],
                "actions": rng.standard_normal((n, actions), dtype=np.float32),
                "rewards": rng.standard_normal(n, dtype=np.float32),
                "terminals": last & odd,
                "timeouts": last & ~odd,
            }
            for name, array in values.items():
                fields[name][start : start + n] = array


def run_phases(path: Path, estimator_name: str, hidden: int) -> None:
    """Print, phase by phase, seconds, resident bytes, the phase's peak and the forecast, as JSON."""
    from kmifqe.behavior import GaussianBehavior
    from kmifqe.estimators import fit
    from kmifqe.estimators.fit import make_plan
    from kmifqe.estimators.forecast import make_forecast
    from kmifqe.io.logs.load import load_dataset
    from kmifqe.mdp.problem import Problem

    started, phases = time.perf_counter(), []

    def done(phase: str, forecast_bytes: int = 0) -> None:
        phases.append(
            (phase, time.perf_counter() - started, resident_bytes(), recent_peak_bytes(), forecast_bytes)
        )
        forget_peak()

    done("start")
    transitions = load_dataset(path)
    done("load")
    d = transitions.action_dim

    def target(states: np.ndarray) -> np.ndarray:
        return np.tanh(states[:, :d])

    behavior = GaussianBehavior(target, 0.5, np.full(d, -1.0), np.full(d, 1.0))
    problem = Problem.build(transitions, target, behavior, 0.99)
    done("build")
    del transitions
    done("log given up")
    estimator = small_estimator(estimator_name, hidden)
    for seeds in (1, 3):
        plan = make_plan(estimator, problem, seeds=seeds, steps=2)
        forecast = make_forecast(estimator, problem, plan, timed=False)
        fit(estimator, problem, plan)
        done(f"fit, {seeds} seed{'s' * (seeds > 1)}", forecast.device)
    print(json.dumps(phases))


def small_estimator(name: str, hidden: int) -> Estimator:
    from kmifqe.estimators import entry_named

    entry = entry_named(name)
    settings = {"hidden": hidden, "batch": 256}
    if hasattr(entry.config, "target_period"):
        settings["target_period"] = 2  # so that two steps hold a refresh
    return entry.make(replace(entry.config, **settings))


def shapes_of_problem(rows: int, states: int, actions: int) -> Problem:
    """Return a problem of shapes alone, with a density that factorises."""
    import jax

    from kmifqe.mdp.problem import Problem, RowCounts

    def array(*shape: int, dtype: type = np.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    n, q, d, m = rows, states, actions, rows // EPISODE
    return Problem(
        states=array(n, q),
        actions=array(n, d),
        rewards=array(n),
        next_states=array(n, q),
        has_next_state=array(n, dtype=bool),
        terminated=array(n, dtype=bool),
        next_actions=array(n, d),
        target_actions=array(n, d),
        log_mu=array(n, d),
        log_mu_target=array(n),
        first_states=array(m, q),
        first_actions=array(m, d),
        episode=array(n, dtype=np.int32),
        action_low=array(d),
        action_high=array(d),
        state_mean=array(q),
        state_std=array(q),
        gamma=array(),
        value_center=array(),
        value_scale=array(),
        counts=RowCounts(n, n, n, 0, 0, m, m),
    )


def bytes_of(tree: object) -> int:
    import jax

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def print_table() -> None:
    """Print what a transition and a seed take, from the shapes of the real programs."""
    import jax

    from kmifqe.estimators import entries, make_estimator
    from kmifqe.mdp.problem import WIDE

    table = Table("bytes", *(f"({q}, {d})" for q, d in SIZES))
    few, many = 1_000_000, 2_000_000
    problems = {size: [shapes_of_problem(n, *size) for n in (few, many)] for size in SIZES}
    per_row = {
        "problem, a transition": lambda p: bytes_of(p),
        "  of it movable to host memory": lambda p: bytes_of([getattr(p, name) for name in WIDE]),
    }
    for label, count in per_row.items():
        table.add_row(label, *(f"{(count(b) - count(a)) / (many - few):.0f}" for a, b in problems.values()))
    key = jax.random.key(0)
    for entry in entries():
        estimator = make_estimator(entry.name, "mujoco", [], None)
        sizes = [
            [bytes_of(jax.eval_shape(estimator.init, key, p)) for p in pair] for pair in problems.values()
        ]
        slopes = [(b - a) / (many - few) for a, b in sizes]
        table.add_row(f"{entry.name}, a transition and seed", *(f"{slope:.0f}" for slope in slopes))
        fixed = (a - slope * few for (a, _), slope in zip(sizes, slopes))
        table.add_row(f"{entry.name}, a seed", *(f"{each / 1e6:.1f} MB" for each in fixed))
    Console().print(table)


def child(*arguments: str) -> str:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak host memory from a file to an estimate.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--states", type=int, default=11)
    parser.add_argument("--actions", type=int, default=3)
    parser.add_argument("--estimator", default="kmifqe")
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--table", action="store_true", help="bytes per transition and seed, computed")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print_table()
        return
    if options.read:
        run_phases(options.read, options.estimator, options.hidden)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.hdf5"
        write_log(path, options.rows, options.states, options.actions)
        size = path.stat().st_size
        arguments = ("--read", str(path), "--estimator", options.estimator, "--hidden", str(options.hidden))
        phases = json.loads(child(*arguments))
    table = Table("phase", "seconds", "left at its end", "its peak", "bytes a transition", "forecast")
    before = phases[0][3]
    for phase, seconds, resident, peak, forecast_bytes in phases:
        row = [f"{seconds:.0f}", *(f"{part / GIB:.2f} GiB" for part in (resident, peak))]
        # The interpreter and its libraries were there before the data.
        expected = f"{(before + forecast_bytes) / GIB:.2f} GiB" if forecast_bytes else ""
        table.add_row(phase, *row, f"{(peak - before) / options.rows:.0f}", expected)
    Console().print(
        f"{options.rows:,} transitions of ({options.states}, {options.actions}), {size / GIB:.2f} GiB on disk, "
        f"{options.estimator}",
        table,
    )


if __name__ == "__main__":
    main()
