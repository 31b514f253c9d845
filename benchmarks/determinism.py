"""Does the same fit, run again in a new process, give the same bits? And what would forcing XLA to cost?

    python benchmarks/determinism.py [--estimators kmifqe fqe ...] [--quick]

A fit is judged by the digest of everything it ends with: values, trajectory, networks, optimiser, every row's
distance. On a GPU it is also run with XLA's deterministic operations, for their cost.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from typing import Any

from records import Row, console, table_of

SECTION = "same bits"
FLAG = "--xla_gpu_deterministic_ops=true"
ESTIMATORS = ("kmifqe", "fqe", "sr-dice")


def rows(quick: bool, names: tuple[str, ...] = ESTIMATORS) -> list[Row]:
    """Return, for each estimator, whether two processes agreed: 1 or 0."""
    result = []
    for name in names:
        first, second = (_in_process(name, quick, "") for _ in range(2))
        same = float(first["digest"] == second["digest"])
        what = f"{name}, {first['about']}, two processes"
        result.append(Row(SECTION, what, None, "", same, "1: same bits, 0: not", first["digest"][:12]))
        if first["backend"] == "gpu":
            forced = _in_process(name, quick, FLAG)
            taken = min(first["seconds"], second["seconds"])
            result.append(
                Row(
                    SECTION,
                    f"{name}, with {FLAG}",
                    forced["seconds"],
                    "s",
                    forced["seconds"] / taken,
                    "time without the flag",
                )
            )
    return result


def _in_process(name: str, quick: bool, flag: str) -> dict[str, Any]:
    environment = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()}
    command = [sys.executable, __file__, "--fit", name, *["--quick"] * quick]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout)


def fitted(name: str, quick: bool) -> dict[str, Any]:
    """Return the digest of a fit, and the seconds of a second one, when everything is compiled."""
    import jax
    import numpy as np

    from kmifqe import fit
    from kmifqe.estimators import make_estimator
    from machine import on_gpu
    from problems import synthetic_problem

    n, seeds, steps = (1_000_000, 10, 2_000) if on_gpu() else (20_000, 2, 100 if quick else 300)
    # So that several refreshes fall into the few steps a CPU has time for.
    settings = [] if on_gpu() else ["batch=256", "ratio_batch=256", "target_period=50"]
    estimator = make_estimator(name, "mujoco", settings, steps)
    problem = synthetic_problem(n, 11, 3)
    estimates = [fit(estimator, problem, seeds=seeds, steps=steps, record_every=steps // 2) for _ in range(2)]
    digests = []
    for estimate in estimates:
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves((estimate.values, estimate.trajectory, estimate.final_state)):
            digest.update(np.asarray(leaf).tobytes())
        digests.append(digest.hexdigest())
    if digests[0] != digests[1]:
        raise SystemExit(f"{name}: the same fit twice in one process gave different bits")
    about = f"n = {n:,}, {seeds} seeds, {steps:,} steps"
    seconds = estimates[1].seconds
    return {"digest": digests[0], "seconds": seconds, "about": about, "backend": jax.default_backend()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--estimators", nargs="+", default=ESTIMATORS)
    parser.add_argument("--quick", action="store_true", help="fewer steps on a CPU")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        print(json.dumps(fitted(options.fit, options.quick)))
    else:
        console().print(table_of(rows(options.quick, tuple(options.estimators)), "The same fit twice"))


if __name__ == "__main__":
    main()
