from dataclasses import replace

import numpy as np
import pytest

from kmifqe.estimators.base import Estimate
from kmifqe.trust.checks.training import training_diagnostics, value_diagnostics, without_diverged


def estimate(trajectory, gamma=0.9, infos=None, **config):
    trajectory = np.asarray(trajectory, float)
    return Estimate(
        estimator="kmifqe",
        config=config,
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


def notes(estimate):
    return [d.line for d in training_diagnostics(estimate) if d.level != "ok"]


FLAT = np.tile([-4.0, -3.99, -3.98], (8, 1))


def test_a_settled_estimate_has_no_notes():
    assert notes(estimate(FLAT, target_period=20)) == []


def test_too_few_copies_are_counted():
    (note,) = notes(estimate(FLAT, target_period=100))
    assert "10 target copies let at most 65% of the value arrive at gamma 0.9" in note


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
        ([np.nan, -4, -3], "1 of 3 seeds diverged (seed 0); V̂ of the remaining 2 is -3.500 ± 0.707"),
        ([np.inf, -2, -np.inf], "2 of 3 seeds diverged (seeds 0, 2); V̂ of the remaining 1 is -2.000"),
        ([np.nan, np.nan, np.inf], "seeds 0, 1, 2 diverged: there is no value"),
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


def test_too_few_steps_for_a_ratio_is_not_called_divergence():
    none_yet = estimate(np.full((8, 3), np.nan), stages=[300, 700, 2500])
    assert notes(none_yet) == ["1,000 steps end before the density ratio is trained: there is no value yet"]
    assert "diverged" in notes(estimate(np.full((8, 3), np.nan), stages=[100, 200, 700]))[0]


def test_a_seed_on_its_way_out_is_named_though_finite():
    (note,) = notes(estimate(np.tile([-4.0, -3.99, -3.98, 3e20], (8, 1))))
    assert note == "seed 3 ended at 3e+20, far from the other seeds' median -3.990: diverging"


@pytest.mark.parametrize("clip, mean, told", [([1e-3, 2.0], 1e-3, "0.001"), ([0.0, np.inf], 0.0, "0")])
def test_weights_that_tell_no_row_from_another_are_named(clip, mean, told):
    (note,) = notes(estimate(FLAT, clip=clip, infos={"mean_weight": mean}))
    assert note.startswith(f"every importance weight is at its least, {told}: no logged action is near")
    assert notes(estimate(FLAT, clip=clip, infos={"mean_weight": mean + 1e-4})) == []


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_move_is_readable_at_any_scale(scale):
    moving = scale * (FLAT + np.linspace(1, 0, 8)[:, None])
    (note,) = notes(estimate(moving))
    assert note.startswith(f"V̂ moved by {-0.2857 * scale:+.3g} over")


def test_one_seed_can_be_judged_too():
    assert notes(estimate(FLAT[:, :1], target_period=20)) == []


def test_a_target_network_that_follows_softly_counts_its_steps():
    told = notes(estimate(FLAT, gamma=0.99, tau=0.01))
    assert told[0].startswith(
        "1,000 steps of a target network that follows by 0.01 a step let at most 10% of"
    )
    assert notes(estimate(FLAT, gamma=0.9, tau=0.05)) == []  # 0.995^1000 is 0.7 %
    assert notes(estimate(FLAT, gamma=0.99, tau=0.01, stages=[1, 1, 1])) == []  # no value is passed on there


FACTS = {"reward_low": -10.0, "reward_high": 0.0, "return_std": 2.0, "episodes_terminated": 0}


def levels(values, half_width=0.1, **facts):
    found = value_diagnostics(estimate(np.tile(values, (8, 1))), FACTS | facts, half_width)
    return {d.name: d.level for d in found}


@pytest.mark.parametrize(
    "values, terminated, level",
    [
        ([-4.0, -5.0], 0, "ok"),
        ([-4.0, 0.5], 0, "care"),
        ([-4.0, 1.5], 0, "bad"),
        ([-12.0, -4.0], 0, "bad"),
        ([-4.0, np.nan], 0, "ok"),
    ],
)
def test_a_mean_of_rewards_lies_among_them(values, terminated, level):
    assert levels(values, episodes_terminated=terminated)["reward_range"] == level


def test_an_end_is_worth_0_and_widens_the_range():
    facts = {"reward_low": 1.0, "reward_high": 2.0}
    assert levels([0.5, 0.5], **facts)["reward_range"] == "bad"
    assert levels([0.5, 0.5], **facts, episodes_terminated=1)["reward_range"] == "ok"


def test_an_interval_is_held_against_what_single_episodes_would_tell():
    assert levels([-4.0, -4.0], 0.9)["interval_width"] == "ok"
    assert levels([-4.0, -4.0], 1.1)["interval_width"] == "care"
    assert levels([-4.0, -4.0], 3.5)["interval_width"] == "bad"


def test_what_q_misses_counts_beyond_two_standard_errors_only():
    assert levels([-4.0, -4.0], 0.1, start_td=0.23, start_td_error=0.1)["start_td"] == "ok"
    assert levels([-4.0, -4.0], 0.1, start_td=-0.25, start_td_error=0.1)["start_td"] == "care"
    assert levels([-4.0, -4.0], 0.1, start_td=0.4, start_td_error=0.1)["start_td"] == "bad"


def test_a_log_learned_by_heart_is_told():
    assert levels([-4.0, -4.0], td_rms_trained=1.0, td_rms_held_out=1.2)["held_out_td"] == "ok"
    assert levels([-4.0, -4.0], td_rms_trained=1.0, td_rms_held_out=2.0)["held_out_td"] == "care"
