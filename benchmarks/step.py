"""KMIFQE's step and refresh against plain forward–backward passes of the same network, in one run.

    python benchmarks/step.py [--rows 200000] [--json FILE]

Prints one table: milliseconds, and the ratio to four plain passes of the same batch. Nothing is asserted: a
timing is a ratio inside one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from kmifqe import GaussianBehavior, KMIFQEConfig, Problem, Transitions, kmifqe
from kmifqe.maths import mlp

Q, D, BATCH = 11, 3, 1024
STEPS = 20  # scanned, so that dispatch does not count


def zero_policy(states: np.ndarray) -> np.ndarray:
    return np.zeros((len(states), D), np.float32)


def synthetic_problem(rows: int) -> Problem:
    rng = np.random.default_rng(0)
    low, high = -np.ones(D, np.float32), np.ones(D, np.float32)
    behavior = GaussianBehavior(zero_policy, 0.3, low, high)
    states = rng.standard_normal((rows, Q), np.float32)
    transitions = Transitions.from_arrays(
        states,
        behavior.sample(rng, states),
        rng.standard_normal(rows),
        np.zeros(rows, bool),
        np.arange(rows) % 1000 == 999,
    )
    return Problem.build(transitions, zero_policy, behavior, 0.99)


def seconds_per_call(function, *arguments, repeats: int = 5) -> float:
    """Return the median time of a call, after one that compiles."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        clock = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - clock)
    return float(np.median(times))


def plain_pass_seconds(hidden: int) -> float:
    """Return the time of one forward–backward pass with plain automatic differentiation."""
    params = mlp.init_q(jax.random.key(0), Q + D, hidden)
    x = jax.random.normal(jax.random.key(1), (BATCH, Q + D))
    gradient = jax.grad(lambda p, x: jnp.mean(jax.vmap(mlp.q_value, (None, 0))(p, x) ** 2))

    @jax.jit
    def passes(params, x):
        def one(p, _):
            return jax.tree.map(lambda a, g: a - 1e-6 * g, p, gradient(p, x)), None

        return jax.lax.scan(one, params, None, length=STEPS)[0]

    return seconds_per_call(passes, params, x) / STEPS


def kmifqe_seconds(rows: int, per_dimension: bool) -> tuple[float, float]:
    """Return the time of one step and of one refresh, for one seed."""
    problem = synthetic_problem(rows)
    estimator = kmifqe(KMIFQEConfig(batch=BATCH, clip_per_dimension=per_dimension))
    state = jax.jit(estimator.init)(jax.random.key(0), problem)

    @jax.jit
    def steps(state, problem):
        def one(state, t):
            return estimator.step(jax.random.fold_in(jax.random.key(1), t), t, state, problem)[0], None

        return jax.lax.scan(one, state, jnp.arange(STEPS))[0]

    step = seconds_per_call(steps, state, problem) / STEPS
    return step, seconds_per_call(jax.jit(estimator.refresh), 0, state, problem, repeats=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 800_000])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    floor = 4 * plain_pass_seconds(hidden=256)
    records = [{"what": "four plain passes", "rows": None, "ms": 1e3 * floor, "ratio": 1.0}]
    for rows in options.rows:
        for per_dimension in (False, True):
            step, refresh = kmifqe_seconds(rows, per_dimension)
            clip = "per dimension" if per_dimension else "total"
            records.append(
                {"what": f"step, clip {clip}", "rows": rows, "ms": 1e3 * step, "ratio": step / floor}
            )
        records.append({"what": "refresh", "rows": rows, "ms": 1e3 * refresh, "ratio": refresh / floor})
    device = f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
    table = Table(title=f"KMIFQE, states {Q}, actions {D}, batch {BATCH}, 256×256, one seed ({device})")
    for column in ("what", "rows", "ms", "of four passes"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for r in records:
        table.add_row(
            r["what"], f"{r['rows']:,}" if r["rows"] else "", f"{r['ms']:.2f}", f"{r['ratio']:.2f}×"
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps({"device": device, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
