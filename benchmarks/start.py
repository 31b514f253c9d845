"""How long a fit waits for its programs to be compiled, and what JAX's persistent cache saves of it.

Each figure comes from a process of its own: a process keeps what it has compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from records import Row

SECTION = "start"


def rows(quick: bool) -> list[Row]:
    """Return the time of compiling KMIFQE's programs: without a cache, filling one, and from it."""
    with tempfile.TemporaryDirectory() as folder:
        cache = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        without = _compile_seconds({})
        filling = _compile_seconds(cache)
        filled = _compile_seconds(cache)
    of = "without the cache"
    return [
        Row(SECTION, "tracing and compiling, no cache", without, "s"),
        Row(SECTION, "the same, filling JAX's persistent cache", filling, "s", filling / without, of),
        Row(SECTION, "the same, from the filled cache", filled, "s", filled / without, of),
    ]


def _compile_seconds(cache: dict[str, str]) -> float:
    environment = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
    command = [sys.executable, __file__, "--measure"]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**environment, **cache}
    )
    return float(json.loads(done.stdout))


def measure() -> float:
    """Return the seconds until `fit` has the programs that it runs for KMIFQE at the benchmark's first size."""
    import jax
    import jax.numpy as jnp

    from kmifqe.estimators import make_kmifqe
    from memory import shapes_of_problem
    from near_floor import config_of, sizes
    from timing import programs

    size = sizes()[0]
    estimator = make_kmifqe(config_of(size))
    problem = shapes_of_problem(size.rows, size.states, size.actions)
    keys = jnp.stack([jax.random.key(seed) for seed in range(size.seeds)])
    state = jax.eval_shape(lambda k, p: programs._init(estimator, k, p), keys, problem)
    refresh = estimator.refresh
    assert refresh is not None
    step = jax.ShapeDtypeStruct((), jnp.int32)
    clock = time.perf_counter()
    programs._init.lower(estimator, keys, problem).compile()
    programs._run_steps.lower(estimator, refresh.every, keys, state, problem, step).compile()
    for kind in sorted({refresh.kind(n) for n in (refresh.every, refresh.restart_every)}):
        programs._refresh.lower(refresh.run, kind, state, problem).compile()
    programs._values.lower(estimator.value, state, problem).compile()
    return time.perf_counter() - clock


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", required=True, help="compile here, print seconds")
    parser.parse_args()
    print(json.dumps(measure()))
