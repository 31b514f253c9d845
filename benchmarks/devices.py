"""Time of a fit whose networks are shared by 1, 2, 4 and 8 host devices, and how far its values differ.

    python benchmarks/devices.py [--steps 300]

Every count runs in a process of its own, with XLA_FLAGS=--xla_force_host_platform_device_count. Host devices
share the machine's cores, so that no speed-up beyond their number can be seen here. The records go to
experiments/results/devices.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

RECORD = Path(__file__).parents[1] / "experiments" / "results" / "devices.json"
DEVICES = (1, 2, 4, 8)


def fits(steps: int) -> dict[str, Any]:
    """Return the values and seconds of fits of eight networks, and of eight policies, after one that compiles."""
    import jax

    import kmifqe
    from kmifqe.estimators import make_estimator
    from kmifqe.estimators.fit import fit, fit_policies, make_plan
    from kmifqe.mdp.ask import Logged
    from kmifqe.mdp.policies import ask_policy, judged_together

    rng, n = np.random.default_rng(0), 20_000
    log = kmifqe.Transitions.from_arrays(
        *(rng.normal(size=(n, 11)), rng.normal(size=(n, 3)), rng.normal(size=n), np.zeros(n)),
        np.arange(n) % 500 == 499,
        action_log_probs=rng.normal(size=(n, 3)),
    )
    policies = [lambda states, k=k: np.tanh(k * states[:, :3] / 4) for k in range(1, 9)]
    problem = kmifqe.Problem.build(log, policies[0], Logged(), 0.95)
    several = judged_together(problem, [ask_policy(log, policy, None) for policy in policies])
    found: dict[str, Any] = {"devices": len(jax.devices())}
    for name in ("fqe", "kmifqe"):
        estimator = make_estimator(name, "fast", ["hidden=64", "batch=256"], steps)
        plan = make_plan(estimator, problem, seeds=8, steps=steps, bootstrap=True)
        for _ in range(2):
            started = time.perf_counter()
            values = fit(estimator, problem, plan).values
            found[f"{name}, 8 networks"] = {
                "seconds": time.perf_counter() - started,
                "values": values.tolist(),
            }
    estimator = make_estimator("fqe", "fast", ["hidden=64", "batch=256"], steps)
    plan = make_plan(estimator, problem, seeds=2, steps=steps, bootstrap=True)
    for _ in range(2):
        started = time.perf_counter()
        values = np.stack([each.values for each in fit_policies(estimator, several, plan)])
        took = time.perf_counter() - started
    found["fqe, 8 policies of 2 networks"] = {"seconds": took, "values": values.tolist()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits shared by several host devices.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(fits(options.steps)))
        return
    found = []
    for devices in DEVICES:
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, __file__, "--child", "--steps", str(options.steps)]
        done = subprocess.run(command, env=os.environ | flags, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    one = found[0]
    for each in found:
        for name, fitted in each.items():
            if name != "devices":
                apart = np.abs(np.array(fitted["values"]) - np.array(one[name]["values"])).max()
                fitted["largest_difference"] = float(apart)
                print(
                    f"{each['devices']} devices, {name}: {fitted['seconds']:.1f} s, values differ by {apart:.1e}"
                )
    RECORD.write_text(
        json.dumps({"steps": options.steps, "cores": os.cpu_count(), "runs": found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
