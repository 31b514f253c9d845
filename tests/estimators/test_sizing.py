"""The sizes of a fit by default, and that everyone who asks for the default gets them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from estimators.small import lqr_problem
from kmifqe.api import evaluate
from kmifqe.estimators import make_estimator
from kmifqe.estimators.base import config_dict, soft_share
from kmifqe.estimators.registry import DEFAULT, entries, entry_named
from kmifqe.estimators.sizing import FOLDS, SIZES, TAU, TYPICAL, ProblemSize, fit_size, size_of
from kmifqe.experiments.study import default_runs

ROWS = (1, 999, 1_000, 1_001, 5_000, 40_000, 40_001, 150_000, 1_000_000, 10**9)
SIZED = [entry.name for entry in entries() if entry.sized is not None]


def test_a_larger_log_has_no_smaller_network_minibatch_or_fit() -> None:
    sizes = [fit_size(ProblemSize(rows, 0.99)) for rows in ROWS]
    for smaller, larger in pairwise(sizes):
        assert smaller.hidden <= larger.hidden
        assert smaller.batch <= larger.batch
        assert smaller.steps <= larger.steps
        assert smaller.learning_rate >= larger.learning_rate
    assert sizes[0].hidden < sizes[-1].hidden


def test_a_bound_of_rows_is_inside_its_own_line() -> None:
    for (rows, hidden, *_), (_, wider, *_) in pairwise(SIZES):
        assert fit_size(ProblemSize(int(rows), 0.9)).hidden == hidden
        assert fit_size(ProblemSize(int(rows) + 1, 0.9)).hidden == wider


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 0.99, 0.999, 0.99999])
@pytest.mark.parametrize("steps", [None, 1, 200, 1_000_000])
def test_the_target_network_is_neither_too_fast_nor_too_slow(gamma: float, steps: int | None) -> None:
    low, high = TAU
    for rows in ROWS:
        size = fit_size(ProblemSize(rows, gamma), steps)
        assert low <= size.tau <= high
        if low < size.tau < high:
            folds = size.tau * (1.0 - gamma) * size.steps
            assert folds == pytest.approx(FOLDS, rel=0.01)


@pytest.mark.parametrize("rows", ROWS)
def test_at_a_common_discount_all_of_the_value_has_time_to_arrive(rows: int) -> None:
    size = fit_size(ProblemSize(rows, 0.97))
    assert soft_share(size.tau, size.steps, 0.97) > 0.999


def test_a_longer_horizon_has_no_slower_target_network() -> None:
    taus = [fit_size(ProblemSize(10_000, gamma)).tau for gamma in (0.5, 0.9, 0.95, 0.98, 0.99, 0.999)]
    assert taus == sorted(taus)


def test_steps_that_are_asked_for_win_and_change_no_network() -> None:
    own, asked = fit_size(TYPICAL), fit_size(TYPICAL, 777)
    assert asked.steps == 777
    assert asked[:3] == own[:3]


def test_the_size_of_a_problem_is_that_of_its_rows_and_its_discount() -> None:
    problem, _, _ = lqr_problem(0.8)
    assert size_of(problem) == (problem.counts.used, pytest.approx(0.8), None)


def test_the_recipe_of_a_smaller_log_goes_over_a_large_one_less_often() -> None:
    size, small = ProblemSize(1_000_000, 0.99), ProblemSize(40_000, 0.99)
    assert size.with_recipe(40_000).recipe_rows == 40_000
    assert size.with_recipe(2_000_000) == size
    here, there = fit_size(size.with_recipe(40_000)), fit_size(small)
    assert here.settings() == there.settings()
    assert here.passes == pytest.approx(there.passes * 40_000 / 1_000_000)


@pytest.mark.parametrize(
    ("rows", "recipe", "metrics"),
    [(1_000, 1_000, 30), (100_000, 100_000, 30), (1_000_000, 1_000_000, 15), (1_000_000, 40_000, 6)],
)
def test_a_fit_learns_a_metric_for_every_time_that_it_goes_over_the_log(
    rows: int, recipe: int, metrics: int
) -> None:
    made = make_estimator("kmifqe", size=ProblemSize(rows, 0.99).with_recipe(recipe))
    assert made.default_steps // made.config.target_period == metrics


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("steps", [None, 300])
def test_the_default_preset_gives_exactly_these_sizes(name: str, steps: int | None) -> None:
    for rows in (500, 20_000, 500_000):
        problem_size = ProblemSize(rows, 0.95)
        size, made = fit_size(problem_size, steps), make_estimator(name, size=problem_size, steps=steps)
        sizes = entry_named(name).sized(size).keys() & {"hidden", "batch", "learning_rate", "tau"}
        assert {each: getattr(made.config, each) for each in sizes} == {
            each: getattr(size, each) for each in sizes
        }
        assert made.default_steps == made.config.decay_steps == size.steps


def test_a_setting_wins_over_the_size() -> None:
    assert make_estimator("fqe", settings=["hidden=7", "tau=0.5"]).config.hidden == 7
    assert make_estimator("fqe", settings=["hidden=7", "tau=0.5"]).config.tau == 0.5


def test_other_presets_and_estimators_without_sizes_do_not_look_at_the_problem() -> None:
    small = ProblemSize(100, 0.5)
    for entry in entries():
        preset = "fast" if entry.sized is not None else DEFAULT
        assert make_estimator(entry.name, preset, size=small) is not None
        assert (
            make_estimator(entry.name, preset, size=small).config == make_estimator(entry.name, preset).config
        )


def test_the_default_of_an_estimator_without_sizes_is_the_fast_preset() -> None:
    for entry in entries():
        if entry.sized is None:
            default, fast = make_estimator(entry.name), make_estimator(entry.name, "fast")
            assert (default.config, default.default_steps) == (fast.config, fast.default_steps)


def test_the_study_runs_what_a_user_who_changes_nothing_gets() -> None:
    world_problem, world, _ = lqr_problem()
    log = world.collect(0, 200, 25)
    names, steps = ["kmifqe", "fqe"], 5
    runs = default_runs(world_problem, names, steps=steps)
    result = evaluate(
        log, world.policy, behavior=world.behavior, gamma=0.8, estimators=names, seeds=2, steps=steps
    )
    assert [run.steps for run in runs] == [steps, steps]
    for run in runs:
        estimate = next(e for e in result.estimates if e.estimator == run.estimator.name)
        assert estimate.config == config_dict(run.estimator.config)
    for run in default_runs(world_problem, names):
        assert run.steps == fit_size(size_of(world_problem)).steps
