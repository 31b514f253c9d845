"""KMIFQE with a fitted behaviour density beside KMIFQE with the true one, on the same Pendulum log.

    python benchmarks/fitted_value.py [--rows 60000] [--dummies 1] [--seeds 4] [--steps 6000]

Prints the gap in held-out log-likelihood, both values, and their difference in standard errors.
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from kmifqe import KMIFQEConfig, Problem, fit, kmifqe
from kmifqe.behavior import fit_behavior
from kmifqe.behavior.fit import FitConfig, held_out_rows
from kmifqe.worlds.pendulum import collect, value_of_states
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors, with_dummies

GAMMA = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--dummies", type=int, default=1)
    parser.add_argument("--uniform-share", type=float, default=0.2, help="the paper's mixture has 0.2")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6_000)
    options = parser.parse_args()
    target_actor, mean = load_pendulum_actors()
    target = with_dummies(target_actor, options.dummies)
    true_density = PendulumBehavior(mean, options.dummies, uniform_share=options.uniform_share)
    log = collect(0, true_density, options.rows)
    fitted, report = fit_behavior(log.states, log.actions, log.episode, target.low, target.high)
    held = held_out_rows(log.episode, FitConfig().held_out, np.random.default_rng(FitConfig().seed))
    rows = (log.states[held], log.actions[held])
    gap = float(np.mean(true_density.log_prob(*rows)) - np.mean(fitted.log_prob(*rows)))
    truth = float(np.mean(value_of_states(log.states[log.first_rows], target, GAMMA)))

    table = Table(title=f"{options.rows:,} rows, {options.dummies} dummies, true value {truth:.3f}")
    for column in ("density", "V̂ ± spread", "error", "mean weight", "ESS"):
        table.add_column(column, justify="right")
    estimates = []
    for name, density, floor in (("true", true_density, 1e-5), ("fitted", fitted, 1e-3)):
        config = KMIFQEConfig(
            hidden=64,
            batch=256,
            target_period=options.steps // 100,
            learning_rate=3e-3,
            decay_steps=options.steps,
            density_floor=floor,
        )
        problem = Problem.build(log, target, density, GAMMA)
        estimate = fit(kmifqe(config), problem, seeds=options.seeds, steps=options.steps)
        estimates.append(estimate)
        last = {key: float(series[-1].mean()) for key, series in estimate.infos.items()}
        table.add_row(
            name,
            f"{estimate.value:.3f} ± {estimate.spread:.3f}",
            f"{estimate.value - truth:+.3f}",
            f"{last['mean_weight']:.3f}",
            f"{last['ess']:,.0f}",
        )
    difference = estimates[1].value - estimates[0].value
    error = float(np.hypot(estimates[0].standard_error, estimates[1].standard_error))
    console = Console()
    console.print(table)
    console.print(f"held-out log-likelihood: true minus fitted {gap:.4f} nats, {report.chosen} components")
    console.print(f"fitted minus true: {difference:+.3f}, {difference / error:+.1f} standard errors")


if __name__ == "__main__":
    main()
