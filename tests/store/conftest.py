"""What the tests of run directories share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kmifqe.estimators import Estimate, fit
from kmifqe.estimators.fit import make_plan
from kmifqe.runner import run_estimators
from kmifqe.store.directory import open_run
from store.toy import SEEDS, toy, toy_problem


@pytest.fixture(scope="session")
def undisturbed() -> Estimate:
    return fit(toy(), toy_problem(), seeds=SEEDS)


def run_toy(out: Path, *, estimator=None, problem=None, on_progress=None, **options) -> Estimate:
    """Run the toy in a run directory, saving at every step it can begin again from."""
    estimator, problem = estimator or toy(), problem or toy_problem()
    with open_run(out, {}, **{"save_seconds": 0, **options}) as run:
        plans = [make_plan(estimator, problem, seeds=SEEDS)]
        run.begin(plans, problem)
        (estimate,), _ = run_estimators(
            problem, [estimator], plans, store=run, on_progress=on_progress, forecast=False
        )
        return estimate


def assert_same_bits(a: Estimate, b: Estimate) -> None:
    assert (a.estimator, a.config, a.gamma, a.seeds, a.steps) == (
        b.estimator,
        b.config,
        b.gamma,
        b.seeds,
        b.steps,
    )
    for name in ("values", "recorded_steps", "trajectory"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), strict=True)
    assert a.infos.keys() == b.infos.keys()
    for name in a.infos:
        np.testing.assert_array_equal(a.infos[name], b.infos[name], strict=True)
