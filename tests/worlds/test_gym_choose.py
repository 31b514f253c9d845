from __future__ import annotations

import pytest

from kmifqe.worlds.gym_train import Checkpoint, choose, level


def curve(*returns: float) -> list[Checkpoint]:
    return [Checkpoint(100 * i, value, 1.0, 10) for i, value in enumerate(returns)]


def same(point: Checkpoint) -> Checkpoint:
    return point


def test_with_positive_returns_the_level_is_the_papers_ratio():
    assert level(75.0, 100.0, initial_return=-50.0) == 0.75


def test_with_costs_it_is_the_share_of_the_way_up_from_the_untrained_policy():
    assert level(-400.0, -100.0, initial_return=-1300.0) == 0.75
    assert level(-1300.0, -100.0, initial_return=-1300.0) == 0.0
    assert level(-100.0, -100.0, initial_return=-100.0) == 1.0


def test_the_best_becomes_the_target_and_the_one_nearest_to_three_quarters_the_behaviour():
    choice = choose(curve(0, 20, 60, 78, 95, 100, 98), same)
    assert (choice.target.steps, choice.behavior.steps, choice.behavior_level) == (500, 300, 0.78)
    assert choice.notes == ()


def test_a_dip_after_the_climb_is_taken_only_if_the_way_up_has_none():
    assert choose(curve(0, 50, 71, 95, 75, 100), same).behavior.steps == 200
    assert choose(curve(0, 50, 95, 75, 100), same).behavior.steps == 300


def test_the_fresh_evaluation_decides_and_not_the_lucky_one():
    fresh = {0: 0.0, 100: 60.0, 200: 76.0, 300: 100.0, 400: 90.0}
    measured = []

    def measure(point: Checkpoint) -> Checkpoint:
        measured.append(point.steps)
        return Checkpoint(point.steps, fresh[point.steps], 0.1, 100)

    choice = choose(curve(0, 76, 70, 99, 120), measure)
    assert choice.target == Checkpoint(300, 100.0, 0.1, 100)
    assert choice.behavior == Checkpoint(200, 76.0, 0.1, 100)


def test_a_gap_on_the_way_up_is_said():
    choice = choose(curve(0, 10, 100), same)
    assert choice.behavior.steps == 100
    assert "no checkpoint at 70% to 80% of the target's level; the nearest is at 10%" in choice.notes[0]


def test_a_run_that_only_got_worse_has_no_behaviour_mean():
    choice = choose(curve(-10, -20, -30), same)
    assert choice.target.steps == 0
    assert choice.behavior is None
    assert len(choice.notes) == 1


@pytest.mark.parametrize("returns", [(100.0, 5.0, 100.0), (95.0, 75.0, 100.0)])
def test_an_untrained_policy_that_is_already_good_is_no_obstacle(returns):
    assert choose(curve(*returns), same).target.episode_return == 100.0
