from dataclasses import replace

import numpy as np
import pytest

from kmifqe.estimators import SRDICEConfig, make_sr_dice
from kmifqe.estimators.base import Estimate
from kmifqe.experiments.planted import log_of, problem_of, world_of
from kmifqe.trust.checks.base import Reach
from kmifqe.trust.checks.overlap import next_actions
from kmifqe.trust.checks.training import (
    StartFacts,
    TdFacts,
    _discounted_mean,
    _Early,
    _early_rows,
    _weighted_rms,
    consistency_checks,
    start_facts,
    td_facts,
    trained_q,
    training_checks,
    without_diverged,
)
from kmifqe.trust.influence import ChanceFacts
from trust.fitted import fqe_estimator, kernel_estimator, sound_fit


def estimate(trajectory, gamma=0.9, infos=None):
    trajectory = np.asarray(trajectory, float)
    return Estimate(
        estimator="kmifqe",
        config={},
        gamma=gamma,
        seeds=tuple(range(trajectory.shape[1])),
        steps=1000,
        values=trajectory[-1],
        recorded_steps=np.linspace(0, 1000, len(trajectory) + 1)[1:].astype(int),
        trajectory=trajectory,
        infos={k: np.full(trajectory.shape, v) for k, v in (infos or {}).items()},
        seconds=1.0,
        device="cpu",
    )


def notes(estimate, arrived=None):
    return [check.finding for check in training_checks(estimate, arrived) if check.level != "ok"]


FLAT = np.tile([-4.0, -3.99, -3.98], (8, 1))


def test_a_settled_estimate_has_no_notes():
    assert notes(estimate(FLAT), arrived=0.99) == []


def test_a_value_that_cannot_have_arrived_is_named():
    (note,) = notes(estimate(FLAT), arrived=0.65)
    assert "1,000 steps" in note
    assert "65%" in note
    for arrived, level in ((0.99, "ok"), (0.9, "care"), (0.7, "bad")):
        checks = {check.name: check.level for check in training_checks(estimate(FLAT), arrived)}
        assert checks["target_copies"] == level


def test_a_value_that_still_moves_is_named():
    moving = FLAT + np.linspace(1, 0, 8)[:, None]
    (note,) = notes(estimate(moving))
    assert note.startswith(f"V̂ moved by {moving[-1].mean() - moving[5].mean():+.3f}")


def test_a_mean_over_the_last_steps_does_not_hide_that_the_network_moves():
    moving = FLAT + np.linspace(1, 0, 8)[:, None]
    averaged = replace(estimate(moving), values=moving[5])
    (note,) = notes(averaged)
    assert note.startswith("V̂ moved by -0.286")


@pytest.mark.parametrize(
    "bad, told",
    [
        ([np.nan, -4, -3], "1 of 3 seeds diverged (seed 0); V̂ of the remaining 2 is -3.500 ± 0.707."),
        ([np.inf, -2, -np.inf], "2 of 3 seeds diverged (seeds 0, 2); V̂ of the remaining 1 is -2.000."),
        ([np.nan, np.nan, np.inf], "Seeds 0, 1, 2 diverged: there is no value."),
    ],
)
def test_a_seed_that_diverged_is_named_and_the_others_still_speak(bad, told):
    assert notes(estimate(np.tile(bad, (8, 1))))[0] == told


def test_convergence_is_judged_on_the_seeds_that_did_not_diverge():
    moving = FLAT + np.linspace(1, 0, 8)[:, None]
    lost, still_moves = notes(estimate(np.where([True, False, False], np.nan, moving)))
    assert "(seed 0)" in lost
    assert still_moves.startswith("V̂ moved by -0.286")


def test_without_diverged_leaves_the_other_seeds_as_they_were():
    whole = estimate(np.vstack([FLAT, [np.nan, -4, -3]]), infos={"loss": 2.0})
    rest = without_diverged(whole)
    assert rest.seeds == (1, 2)
    assert (rest.value, rest.infos["loss"].shape) == (-3.5, (9, 2))
    np.testing.assert_array_equal(rest.trajectory, whole.trajectory[:, 1:])
    assert without_diverged(rest) is rest


def test_too_few_steps_for_a_value_are_not_called_divergence():
    nothing = estimate(np.full((8, 3), np.nan))
    (note,) = notes(nothing, arrived=0.0)
    assert "diverged" not in note
    assert "no value yet" in note
    assert "diverged" in notes(nothing)[0]


def test_a_seed_on_its_way_out_is_named_though_finite():
    (note,) = notes(estimate(np.tile([-4.0, -3.99, -3.98, 3e20], (8, 1))))
    assert note == "Seed 3 ended at 3e+20, far from the other seeds' median -3.990: diverging."


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_move_is_readable_at_any_scale(scale):
    moving = scale * (FLAT + np.linspace(1, 0, 8)[:, None])
    (note,) = notes(estimate(moving))
    assert note.startswith(f"V̂ moved by {-0.2857 * scale:+.3g} over")


def test_one_seed_can_be_judged_too():
    assert notes(estimate(FLAT[:, :1]), arrived=0.99) == []


def test_each_estimator_says_what_can_have_arrived():
    kernel, gamma = kernel_estimator(target_period=100), 0.9
    assert kernel.arrived(1000, gamma) == pytest.approx(1 - gamma**10)  # a copy contracts by γ
    soft = fqe_estimator(tau=0.01)
    assert soft.arrived(1000, 0.99) == pytest.approx(
        1 - (1 - 0.01 * 0.01) ** 1000
    )  # a soft step by 1 − τ(1 − γ)
    dice = make_sr_dice(SRDICEConfig(stages=(300, 700, 2500)))
    assert dice.arrived(1000, gamma) == 0.0  # no value before the last stage
    assert dice.arrived(1001, gamma) is None  # and none is passed on from step to step in it


def consistency(**changes):
    td = {"td_rms_trained": 1.0, "td_rms_held_out": 1.2}
    start = {"start_td": 0.23, "start_td_error": 0.1}
    td |= {name: value for name, value in changes.items() if name in td}
    start |= {name: value for name, value in changes.items() if name in start}
    chance = {"unsolved": 0.0, "negative_visits": 0.0}
    chance |= {name: value for name, value in changes.items() if name in chance}
    facts = ChanceFacts(log_std=0.1, first_std=0.1, visited_rows=100.0, **chance)
    found = consistency_checks(TdFacts(**td), StartFacts(**start), facts, Reach(0.1, 0.1))
    return {check.name: check.level for check in found}


def test_what_q_misses_counts_beyond_two_standard_errors_only():
    assert consistency(start_td=0.22, start_td_error=0.1)["start_td"] == "ok"
    assert consistency(start_td=-0.25, start_td_error=0.1)["start_td"] == "care"
    assert consistency(start_td=0.4, start_td_error=0.1)["start_td"] == "bad"


def test_a_log_learned_by_heart_is_told():
    assert consistency(td_rms_trained=1.0, td_rms_held_out=1.2)["held_out_td"] == "ok"
    assert consistency(td_rms_trained=1.0, td_rms_held_out=2.0)["held_out_td"] == "care"


def test_what_least_squares_would_still_add_counts_against_the_interval():
    assert consistency(unsolved=-0.04)["unsolved"] == "ok"
    assert consistency(unsolved=0.06)["unsolved"] == "care"
    assert consistency(unsolved=-0.3)["unsolved"] == "bad"


def test_negative_visits_tell_that_the_target_leaves_the_log():
    assert consistency(negative_visits=0.1)["state_coverage"] == "ok"
    assert consistency(negative_visits=0.4)["state_coverage"] == "care"
    assert consistency(negative_visits=0.7)["state_coverage"] == "bad"


def test_without_a_bootstrap_nothing_is_held_out():
    estimator, estimate, problem = sound_fit()
    assert td_facts(estimator, replace(estimate, bootstrap=False), problem) is None


def test_an_estimate_read_back_has_no_q_to_look_at():
    estimator, estimate, problem = sound_fit()
    assert td_facts(estimator, replace(estimate, final_state=None), problem) is None


def test_a_small_network_on_many_rows_does_as_well_on_episodes_it_hardly_saw():
    facts = td_facts(*sound_fit())
    assert facts.td_rms_held_out / facts.td_rms_trained < 1.5


def test_root_mean_squares_are_weighted():
    errors, part = np.array([1.0, 2.0, 3.0, 9.0]), np.array([True, True, True, False])
    assert _weighted_rms(errors, np.ones(4), part) == pytest.approx(np.sqrt((1 + 4 + 9) / 3))
    assert _weighted_rms(errors, np.array([0.0, 0.0, 2.0, 1.0]), part) == pytest.approx(3.0)


def test_rows_come_with_their_time_and_the_target_s_action_at_their_own_state():
    world = world_of(0)
    problem = problem_of(world, log_of(world, 0, 20, 10))
    early = _early_rows(problem)
    assert len(early.rows) == 200  # 0.8⁹ still matters
    np.testing.assert_array_equal(early.time, np.tile(np.arange(10), 20))
    states = np.asarray(problem.states)[early.rows]
    np.testing.assert_allclose(early.targets, world.policy(states), rtol=1e-5, atol=1e-6)


def episodes_of(count, length, ends=False):
    time, episode = np.tile(np.arange(length), count), np.repeat(np.arange(count), length)
    return _Early(
        np.arange(count * length), time, episode, np.zeros((count * length, 1)), ends & (time == length - 1)
    )


@pytest.mark.parametrize("length", [5, 40])
def test_a_constant_error_b_of_q_is_found_whole_however_soon_episodes_are_cut(length):
    """Q + b has δ = −(1−γ) b at every step: discounted and summed over an endless episode, −b."""
    gamma, b, early = 0.8, 3.0, episodes_of(100, length)
    g = np.random.default_rng(0).uniform(size=len(early.rows))
    missed, error = _discounted_mean(np.full(len(g), -(1 - gamma) * b), g, early, gamma)
    assert missed == pytest.approx(-b)
    assert error == pytest.approx(0.0, abs=1e-12)


def test_an_episode_that_terminates_has_nothing_after_it():
    early = episodes_of(10, 3, ends=True)
    missed, _ = _discounted_mean(np.ones(30), np.ones(30), early, 0.5)
    assert missed == pytest.approx(1 + 0.5 + 0.25)


def test_the_standard_error_is_that_of_repeated_logs():
    rng = np.random.default_rng(0)
    early = episodes_of(100, 6)
    found = []
    for _ in range(200):
        errors = rng.standard_normal(100)[early.episode] + rng.standard_normal(600)
        found.append(_discounted_mean(errors, rng.uniform(size=600), early, 0.8))
    missed, errors = np.array(found).T
    assert errors.mean() == pytest.approx(missed.std(), rel=4 / np.sqrt(2 * 200))


def test_a_state_that_is_not_there_has_no_q():
    estimator, estimate, problem = sound_fit()
    near = next_actions(problem)
    assert start_facts(estimator, replace(estimate, final_state=None), problem, near) is None
    facts = start_facts(estimator, estimate, problem, near)
    assert np.isfinite(facts.start_td)
    assert facts.start_td_error > 0


def test_the_q_that_is_judged_cuts_actions_where_training_cuts_them():
    _, estimate, problem = sound_fit()
    narrow = replace(problem, action_low=0.3 * problem.action_low, action_high=0.3 * problem.action_high)
    states, actions = np.asarray(problem.states), np.asarray(problem.actions)
    inside = np.clip(actions, narrow.action_low, narrow.action_high)
    for cuts in (True, False):
        q = trained_q(kernel_estimator(cut_actions=cuts), estimate, narrow)[1]
        assert np.array_equal(q(states, actions), q(states, inside)) == cuts


def test_a_seed_without_a_value_has_no_q_to_look_at():
    estimator, estimate, problem = sound_fit()
    values = np.where(np.arange(len(estimate.values)) == 1, np.nan, estimate.values)
    assert list(trained_q(estimator, replace(estimate, values=values), problem)) == [0, 2, 3]
