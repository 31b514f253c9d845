"""Records of the study with a plain outcome, for tests that count."""

from __future__ import annotations

from typing import Any

import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.experiments.problems_base import FamilyProblem
from kmifqe.experiments.problems_family import Facts, LqrProblem, Shape
from kmifqe.experiments.records import made_here
from kmifqe.experiments.study import ProblemRecord
from kmifqe.mdp.problem import RowCounts
from kmifqe.trust.checks import Measurements
from kmifqe.trust.checks.log import LogFacts

FACTS = Measurements(
    log=LogFacts(
        rows=RowCounts(3000, 3000, 2000, 0, 1000, 0, 1000),
        episode_longest=3,
        atom_share=0.0,
        atom_shares=[0.0],
        reward_mean=2.0,
        reward_std=5.0,
        reward_low=-20.0,
        reward_high=20.0,
        reward_span=40.0,
        return_std=4.0,
    ),
    uses_density=False,
)
SHAPE = Shape("lqr", 2, 1, episodes=1000, length=3)


def lqr_settings(**changes: Any) -> LqrProblem:
    """Return the settings of a linear-quadratic problem, with these changes."""
    given = {"shape": SHAPE, "seed": 1, "gamma": 0.9, "half": "report", "width": 1.0, "departure": 0.0}
    return LqrProblem(**(given | changes))


def record(
    number: int,
    values: list[float],
    truth: float,
    *,
    settings: FamilyProblem | None = None,
    **changes: Any,
) -> ProblemRecord:
    """Return the record of a problem of these `settings` with one estimate of these `values`."""
    estimate = Estimate(
        estimator="kmifqe",
        config={},
        gamma=0.9,
        seeds=tuple(range(len(values))),
        steps=1,
        values=np.array(values),
        recorded_steps=np.array([1]),
        trajectory=np.array([values]),
        infos={},
        seconds=1.0,
        device="cpu",
        bootstrap=True,
        episodes=1000,
        measurements=FACTS,
    )
    problem = settings or lqr_settings()
    known = {"description": f"problem {number}", "overlap": 0.2, "hopeless": False} | changes
    facts = Facts(problem, problem.kind, truth=truth, truth_error=0.0, **known)
    return ProblemRecord(preset="smoke", **made_here(), number=number, facts=facts, estimates=[estimate])
