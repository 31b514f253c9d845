"""The ranking benchmark and the study of paired differences: policies, counts and tables, without a fit."""

from __future__ import annotations

import numpy as np
import pytest

from kmifqe.experiments.candidates import candidates, perturbed, scaled
from kmifqe.experiments.differences import DifferencesProblem, Evidence, Pair, preset_named, summary
from kmifqe.experiments.presets import PRESETS
from kmifqe.experiments.ranking import ENVS, KINDS, SIZES, policies_of, ranking_rows
from kmifqe.experiments.ranking_tables import ranking_scores_table
from kmifqe.experiments.records import RankingRecord
from kmifqe.trust.scores import dope_scores
from kmifqe.worlds.pendulum_policies import load_pendulum_actors


@pytest.mark.parametrize("task", ENVS)
def test_every_task_has_ten_policies_that_act_differently(task) -> None:
    policies = policies_of(task)
    assert len(policies) >= 10
    first = next(iter(policies.values()))
    states = np.random.default_rng(0).standard_normal((50, getattr(first, "state_dim", 3))).astype(np.float32)
    actions = [policy(states) for policy in policies.values()]
    for actual in actions:
        assert (actual >= first.low - 1e-5).all()
        assert (actual <= first.high + 1e-5).all()
    flat = np.stack([a.ravel() for a in actions])
    apart = np.abs(flat[:, None] - flat[None]).max(axis=2) + np.eye(len(flat))
    assert apart.min() > 1e-4


def test_versions_of_an_actor() -> None:
    target, behavior = load_pendulum_actors()
    states = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    assert np.abs(scaled(target, 0.3)(states)).mean() < np.abs(target(states)).mean()
    np.testing.assert_array_equal(scaled(target, 1.0)(states), target(states))
    np.testing.assert_array_equal(perturbed(target, 0.1)(states), perturbed(target, 0.1)(states))
    blend = candidates(target, behavior)["blend-0.5"]
    np.testing.assert_allclose(blend(states), 0.5 * target(states) + 0.5 * behavior(states), rtol=1e-5)


def test_every_preset_has_a_size_and_logs_of_three_kinds() -> None:
    assert set(SIZES) == set(PRESETS)
    assert len(KINDS) == 3
    assert len(ranking_rows(PRESETS["fast"])) == 12


def test_coverage_and_separation_are_counted() -> None:
    def pair(truth: float, estimate: float, half: float, unpaired: float) -> Pair:
        ends = {"low": estimate - half, "high": estimate + half}
        wide = {"simultaneous_low": estimate - 2 * half, "simultaneous_high": estimate + 2 * half}
        return Pair(truth=truth, estimate=estimate, unpaired=unpaired, **ends, **wide)

    pairs = [pair(1.0, 1.1, 0.2, 2.0), pair(-0.1, 0.5, 0.4, 2.0)]
    record = DifferencesProblem(
        preset="smoke",
        created="",
        versions={},
        device="",
        number=0,
        kind="lqr",
        description="",
        pairs={"fqe": pairs},
        evidence=Evidence(
            fits=[], truths=[], values=[], least=[], log=[], unsolved=[], actions=[], episodes=2
        ),
    )
    (line,) = summary([record])
    assert (line["pairs"], line["covered"], line["covered_unpaired"]) == (2, 0.5, 1.0)
    assert (line["separated"], line["separated_unpaired"], line["wrongly_separated"]) == (2, 0, 1)
    assert line["all_covered"] == 1.0
    assert line["median_width_ratio"] == pytest.approx(0.15)
    assert preset_named("smoke").seeds == 3


def test_the_table_has_a_line_for_every_estimator_and_their_means() -> None:
    truths = np.arange(10.0)
    scores = {"auto": dope_scores(truths, truths), "fqe": dope_scores(-truths, truths)}
    records = [
        RankingRecord(
            preset="smoke",
            created="",
            versions={},
            device="",
            experiment="ranking",
            row=row,
            method="auto",
            command="",
            wall_seconds=1.0,
            settings={},
            policies={},
            not_ranked=[],
            scores=scores,
            pairs=0,
            separated=0,
            wrongly_separated=0,
        )
        for row in ("hopper-medium", "hopper-wide")
    ]
    lines = ranking_scores_table(records).splitlines()
    assert len(lines) == 2 + 4 + 2
    assert "| mean of 2 | auto | 1.00 | 0.00 |" in lines[-2]
    assert "| mean of 2 | fqe | -1.00 | 1.00 |" in lines[-1]
