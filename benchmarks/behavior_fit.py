"""How close does a fitted behaviour come to the true one on Pendulum, and how long does it take?

    python benchmarks/behavior_fit.py --rows 60000 --dummies 1

Data come from the paper's known mixture. The gap is the true density's held-out log-likelihood less the
fitted one's, in nats a row, with its standard error over held-out episodes.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from kmifqe.behavior import FitConfig, FitProgress, fit_behavior
from kmifqe.behavior.fit import held_out_rows
from kmifqe.behavior.fit_report import episode_standard_error
from kmifqe.worlds.pendulum import collect
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors


def measure(rows: int, dummies: int, config: FitConfig) -> dict[str, object]:
    _, mean = load_pendulum_actors()
    log = collect(config.seed, PendulumBehavior(mean, dummies), rows)
    high = np.full(1 + dummies, MAX_TORQUE)
    wall, cpu = time.perf_counter(), time.process_time()
    mixture, report = fit_behavior(log.states, log.actions, log.episode, -high, high, config, show)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    held = held_out_rows(log.episode, config.held_out, np.random.default_rng(config.seed))
    assert log.log_mu is not None
    gap = log.log_mu[held].sum(axis=1) - mixture.log_prob(log.states[held], log.actions[held])
    return {
        "rows": rows,
        "dummies": dummies,
        "gap_nats": float(gap.mean()),
        "gap_standard_error": episode_standard_error(gap, log.episode[held]),
        "true_log_likelihood": float(log.log_mu[held].sum(axis=1).mean()),
        "wall_s": wall,
        "cpu_s": cpu,
        **report.as_record(),
    }


def show(progress: FitProgress) -> None:
    if progress.step % 500 == 0:
        figures = "  ".join(f"{k}: {value:.4f}" for k, value in zip(progress.components, progress.held_out))
        print(f"step {progress.step:,} of {progress.steps:,}  {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--dummies", type=int, default=1)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    config = FitConfig(steps=options.steps, seed=options.seed)
    print(json.dumps(measure(options.rows, options.dummies, config), indent=2))


if __name__ == "__main__":
    main()
