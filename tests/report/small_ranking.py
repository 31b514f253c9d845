"""A ranking that is made up from estimates of known spread, without a fit."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.report.ranking import Ranking
from kmifqe.report.ranking_judged import judged_ranking
from kmifqe.trust.checks import Measurements
from kmifqe.trust.influence import ChanceFacts, moves_of_mean
from kmifqe.trust.logged import LoggedController
from report.small import small_estimate, small_question

NETWORKS, EPISODES = 6, 50


def ranking_estimate(
    level: float, moves: np.ndarray, name: str = "fqe", *, diverged: bool = False
) -> Estimate:
    """Return an estimate around `level`, measured as far as a ranking asks; half of its networks may diverge."""
    made = small_estimate(name)
    rng = np.random.default_rng(0)
    own = np.random.default_rng(int(1e3 * (level + 1.0)))
    values = level + 0.05 * rng.standard_normal(NETWORKS) + 0.005 * own.standard_normal(NETWORKS)
    if diverged:
        values[: NETWORKS // 2] = np.nan
    chance = ChanceFacts(
        log_std=float(np.sqrt(np.sum(moves**2))),
        first_std=0.0,
        unsolved=0.0,
        visited_rows=100.0,
        negative_visits=0.0,
        moves=tuple(moves),
    )
    log = msgspec.structs.replace(made.measurements.log, reward_low=-9.0, reward_high=9.0, reward_span=18.0)
    return replace(
        made,
        seeds=tuple(range(NETWORKS)),
        values=values,
        recorded_steps=np.array([1, 2, 3]),
        trajectory=np.tile(values, (3, 1)),
        infos={},
        bootstrap=True,
        episodes=EPISODES,
        measurements=Measurements(log=log, uses_density=False, chance=chance),
    )


def small_ranking(levels: dict[str, float] | None = None, *, truth: bool = True, apart: str = "") -> Ranking:
    """Return the ranking of policies with these values; the policy `apart` has networks that diverged."""
    levels = levels or {f"checkpoint-{k}.zip": 0.06 * k for k in range(12)}
    rng = np.random.default_rng(1)
    returns = 0.5 + 0.2 * rng.standard_normal(EPISODES)
    shared = moves_of_mean(returns, np.arange(EPISODES))
    estimates = [
        {
            "fqe": ranking_estimate(value, shared, diverged=name == apart),
            "sr-dice": ranking_estimate(value - 0.02, shared, "sr-dice", diverged=name == apart),
        }
        for name, value in levels.items()
    ]
    weights = rng.exponential(size=(NETWORKS, EPISODES))
    logged = LoggedController(returns, weights @ returns / weights.sum(axis=1), shared)
    return judged_ranking(
        list(levels),
        estimates,
        logged,
        msgspec.structs.replace(small_question(), data="log.npz"),
        level=0.95,
        files=[f"runs/{name}" for name in levels],
        truth=levels if truth else None,
        command=("rank", "log.npz", "--policy", "runs/*.zip"),
    )
