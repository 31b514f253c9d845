"""R and V of the policies of a row, by playing them; measured once, and kept in the work folder."""

from __future__ import annotations

import math
from typing import Any

from kmifqe.experiments.context import Context, kept_json
from kmifqe.experiments.policies import digest
from kmifqe.experiments.rows import Row
from kmifqe.io.policies.actor import Actor
from kmifqe.worlds.pendulum import TrueValue, true_value
from kmifqe.worlds.pendulum_policies import PendulumBehavior, WithDummies

WORDS = {"target": "target", "behavior_mean": "behaviour's mean", "behavior": "behaviour"}
SEED = 1_000  # not the log's: the truth is of the population, not of the logged first states


def gym_truth(row: Row, name: str, actor: Actor, context: Context, noise: float = 0.0) -> dict[str, Any]:
    """Return R and V of an actor, with Gaussian noise (half action ranges) if wished, and standard errors."""
    from kmifqe.worlds.gym_truth import measure_truth

    episodes = context.preset.truth_episodes
    settings = {
        "env": row.env_id,
        "policy": digest(actor),
        "noise": noise,
        "episodes": episodes,
        "gamma": row.gamma,
        "seed": SEED,
    }

    def measure() -> dict[str, Any]:
        context.say(f"{row.name}: playing {episodes:,} episodes of the {WORDS[name]}")
        truth = measure_truth(
            row.env_id,
            actor,
            episodes=episodes,
            gamma=row.gamma,
            noise=noise,
            seed=SEED,
            workers=context.workers,
        )
        return _summary(
            (truth.episode_return, truth.episode_return_standard_error),
            (truth.value, truth.value_standard_error),
            episodes,
        ) | {"length": truth.length}

    return kept_json(context.work / "truth", f"{row.task}-{name}", settings, measure)


def pendulum_truth(
    policy: WithDummies | PendulumBehavior | Actor, gamma: float, episodes: int
) -> dict[str, Any]:
    """Return R and V of a Pendulum policy, and standard errors; it takes a second, so it is not kept."""
    truth: TrueValue = true_value(SEED, policy, gamma, episodes)
    return _summary(
        (truth.episode_return, truth.episode_return_standard_error),
        (truth.value, truth.standard_error),
        episodes,
    )


def _summary(r: tuple[float, float], v: tuple[float, float], episodes: int) -> dict[str, Any]:
    def known(x: float) -> float | None:
        return x if math.isfinite(x) else None  # the error of a single episode is not known

    return {
        "R": r[0],
        "R_standard_error": known(r[1]),
        "V": v[0],
        "V_standard_error": known(v[1]),
        "episodes": episodes,
    }
