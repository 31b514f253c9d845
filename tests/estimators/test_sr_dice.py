"""SR-DICE against exact solutions."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import (
    RECORD_EVERY,
    chain_problem,
    chain_value,
    lqr_problem,
    quick,
    run,
    tabular_problem,
    tabular_value,
)


@pytest.mark.parametrize("gamma", [0.0, 0.8])
def test_finds_the_linear_solve_on_a_table(gamma: float) -> None:
    problem = tabular_problem(gamma)
    result = run(quick("sr-dice"), problem)
    assert result.value == pytest.approx(tabular_value(gamma), abs=0.03)


def test_closes_most_of_the_gap_between_the_logs_mean_reward_and_the_value() -> None:
    # A ratio linear in 32 features can only approach the target's singular density: three quarters of the way.
    problem, _, truth = lqr_problem()
    gap = truth - float(problem.rewards.mean())
    assert gap > 0.3
    assert abs(run(quick("sr-dice"), problem).value - truth) < 0.25 * gap


@pytest.mark.parametrize("terminated", [True, False])
def test_only_the_flag_of_the_last_row_tells_an_end_from_a_cut(terminated: bool) -> None:
    result = run(quick("sr-dice"), chain_problem(terminated=terminated))
    assert result.value == pytest.approx(chain_value(terminated=terminated), abs=0.05)


def test_the_reward_is_linear_in_the_features_without_a_constant() -> None:
    """The ratio sees features only: a constant beside them would hide a part of the reward from it."""
    problem, _, _ = lqr_problem()
    estimator = quick("sr-dice")
    state = estimator.init(jax.random.key(0), problem)
    assert state.autoencoder.reward.shape == (estimator.config.features,)
    assert (np.asarray(state.autoencoder.reward) != 0).any()


def test_a_shift_of_the_rewards_passes_through_only_where_they_are_centred() -> None:
    problem, _, _ = lqr_problem()
    moved = replace(problem, rewards=problem.rewards + 100.0)

    def shift(center_rewards: bool) -> float:
        estimator = quick("sr-dice", center_rewards=center_rewards)
        states = [estimator.init(jax.random.key(0), p)._replace(stage=jnp.int32(2)) for p in (problem, moved)]
        before, after = (float(estimator.value(s, p)) for s, p in zip(states, (problem, moved), strict=True))
        return after - before

    assert shift(True) == pytest.approx(100.0, rel=1e-3)
    assert abs(shift(False) - 100.0) > 1.0


def test_says_nothing_before_the_ratio_is_trained() -> None:
    problem, _, _ = lqr_problem()
    estimator = quick("sr-dice")
    ratio_begins = sum(estimator.config.stages[:2])
    trajectory = run(estimator, problem, steps=ratio_begins + RECORD_EVERY).trajectory
    assert np.isnan(trajectory[:-1]).all()
    assert np.isfinite(trajectory[-1]).all()


def test_each_stage_trains_its_part_and_leaves_the_others() -> None:
    problem, _, _ = lqr_problem()
    estimator = quick("sr-dice")
    encoder_ends, ratio_begins = np.cumsum(estimator.config.stages[:2])
    encoded, succeeded, ratioed = (
        run(estimator, problem, steps=int(steps)).final_state
        for steps in (encoder_ends, ratio_begins, ratio_begins + RECORD_EVERY)
    )
    weights = lambda part: np.asarray(part[0][0])  # noqa: E731
    assert (encoded.ratio == 1.0).all()
    assert (succeeded.ratio == 1.0).all()
    assert (ratioed.ratio != 1.0).any()
    np.testing.assert_array_equal(
        weights(encoded.autoencoder.encoder), weights(succeeded.autoencoder.encoder)
    )
    assert (weights(encoded.successor) != weights(succeeded.successor)).any()
    np.testing.assert_array_equal(weights(succeeded.successor), weights(ratioed.successor))
