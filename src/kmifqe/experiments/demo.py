"""The demo: Pendulum with dummy actions, judged by all four estimators, at a size for two CPU cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kmifqe.estimators import Estimator, FQEConfig, KMIFQEConfig, SRDICEConfig, fqe, kmifqe, sr_dice
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.pendulum import TrueValue, collect, true_value, value_of_states
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors, with_dummies

GAMMA = 0.95  # the paper's, for Pendulum
TRUTH_EPISODES = 4_000


@dataclass(frozen=True)
class DemoConfig:
    """Sizes of the demo. The paper's (0.5 M rows, 256 units, 2 M steps) need a GPU; these need two cores."""

    dummies: int = 2  # the metric's gain is clear of the noise; more dummies cost more time
    rows: int = 60_000
    uniform_share: float = 1.0  # torques drawn uniformly; see docs/demo.md for the paper's mixture (0.2)
    hidden: int = 64
    steps: int = 8_000
    target_period: int = 80  # γ^(8,000/80) < 1 %: the copies have converged
    learning_rate: float = 3e-3  # falls to a hundredth: so few steps must fit as well as the paper's many
    clip: float = 10.0  # the paper's 2 costs a third more bias on such a log (docs/demo.md)
    fqe_steps: int = 30_000
    sr_dice_stages: tuple[int, int, int] = (2_000, 6_000, 12_000)
    sr_dice_learning_rate: float = 1e-3  # three times the paper's, for a twentieth of its steps


class DemoProblem(NamedTuple):
    """The log, what the estimators see of it, and what they should say."""

    transitions: Transitions
    problem: Problem
    truth: TrueValue  # of the target policy, over the population of first states
    logged_truth: float  # over the logged first states: exact, the dynamics are deterministic
    behavior_value: TrueValue


def demo_problem(config: DemoConfig, seed: int) -> DemoProblem:
    """Collect the log with the shipped behaviour, and measure the truth by rolling the target out."""
    target_actor, behavior_mean = load_pendulum_actors()
    target = with_dummies(target_actor, config.dummies)
    behavior = PendulumBehavior(behavior_mean, config.dummies, uniform_share=config.uniform_share)
    transitions = collect(seed, behavior, config.rows)
    first_states = transitions.states[transitions.first_rows]
    return DemoProblem(
        transitions=transitions,
        problem=Problem.build(transitions, target, behavior, GAMMA),
        truth=true_value(seed, target, GAMMA, TRUTH_EPISODES),
        logged_truth=float(np.mean(value_of_states(first_states, target, GAMMA))),
        behavior_value=true_value(seed, behavior, GAMMA, TRUTH_EPISODES),
    )


def demo_estimators(config: DemoConfig) -> list[tuple[Estimator, int]]:
    """Return the four estimators with their steps."""

    def kernel(metric: str) -> Estimator:
        return kmifqe(
            KMIFQEConfig(
                hidden=config.hidden,
                batch=256,
                learning_rate=config.learning_rate,
                decay_steps=config.steps,
                target_period=config.target_period,
                metric=metric,
                clip=(1e-3, config.clip),
            )
        )

    stages = config.sr_dice_stages
    return [
        (kernel("learned"), config.steps),
        (kernel("identity"), config.steps),
        (fqe(FQEConfig(hidden=config.hidden)), config.fqe_steps),
        (
            sr_dice(
                SRDICEConfig(
                    hidden=config.hidden,
                    features=config.hidden,
                    ratio_batch=1024,
                    stages=stages,
                    learning_rate=config.sr_dice_learning_rate,
                )
            ),
            sum(stages),
        ),
    ]
