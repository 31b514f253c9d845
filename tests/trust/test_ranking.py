"""What is said of several policies from one log: paired, simultaneous, and as often right as it claims."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from kmifqe.estimators.base import Estimate
from kmifqe.trust.checks import Measurements
from kmifqe.trust.checks.log import LogFacts
from kmifqe.trust.influence import ChanceFacts, moves_of_mean
from kmifqe.trust.interval import LEAST_ERROR, SHARED, interval_of
from kmifqe.trust.ranking import (
    PolicyValue,
    alone,
    combined,
    critical_value,
    groups,
    joint,
    p_best,
    rank_intervals,
    value_draws,
)
from kmifqe.trust.verdict import Judgement, Verdict

NETWORKS, EPISODES = 10, 40
UNIT = 2.0  # of values


def estimate_of(values: np.ndarray, moves: np.ndarray, name: str = "fqe") -> Estimate:
    log = {field: 0 for field in LogFacts.__struct_fields__} | {"return_std": UNIT, "reward_std": UNIT}
    chance = ChanceFacts(
        log_std=float(np.sqrt(np.sum(moves**2))),
        first_std=0.0,
        unsolved=0.0,
        visited_rows=1.0,
        negative_visits=0.0,
        moves=tuple(moves),
    )
    return Estimate(
        estimator=name,
        config={},
        gamma=0.9,
        seeds=tuple(range(len(values))),
        steps=1,
        values=values,
        recorded_steps=np.array([1]),
        trajectory=values[None],
        infos={},
        seconds=0.0,
        device="",
        bootstrap=True,
        episodes=EPISODES,
        measurements=Measurements(log=LogFacts(**log), uses_density=False, chance=chance),
    )


def known_of(values: np.ndarray, moves: list, least: float = 0.0):
    return joint([PolicyValue(own, move, least) for own, move in zip(values, moves)], EPISODES)


def paired_setting(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return values (3, networks) and moves (3, episodes) of which most is common to all policies."""
    rng = np.random.default_rng(seed)
    common, own = rng.standard_normal(NETWORKS), 0.1 * rng.standard_normal((3, NETWORKS))
    shared, single = rng.standard_normal(EPISODES), 0.1 * rng.standard_normal((3, EPISODES))
    moves = 0.1 * (shared + single)
    return np.array([[0.5], [0.0], [-1.0]]) + common + own, moves - moves.mean(axis=1, keepdims=True)


def test_one_policy_has_the_interval_that_evaluate_gives_it() -> None:
    values, moves = paired_setting()
    known = joint([alone(estimate_of(*each)) for each in zip(values, moves)], EPISODES)
    for policy in range(3):
        interval = interval_of(estimate_of(values[policy], moves[policy]), 0.9)
        assert interval is not None
        np.testing.assert_allclose(known.interval(policy, 0.9)[1:], (interval.low, interval.high), rtol=1e-6)


def test_what_two_policies_have_in_common_drops_out_of_their_difference() -> None:
    values, moves = paired_setting()
    known = known_of(values, list(moves))
    value, low, high = known.difference(0, 1, 0.9)
    np.testing.assert_allclose(value, values[0].mean() - values[1].mean())
    spread = np.std(values[0] - values[1], ddof=1)
    variance = np.sum((moves[0] - moves[1]) ** 2) + spread**2 * (SHARED + 1 / NETWORKS)
    contrast = np.array([1.0, -1.0, 0.0])
    np.testing.assert_allclose(known.variance(contrast)[0], variance, rtol=1e-6)
    # What is left where networks agree is as common to both as what the log does to them.
    correlation = moves[0] @ moves[1] / np.sqrt(np.sum(moves[0] ** 2) * np.sum(moves[1] ** 2))
    with_least = known_of(values, list(moves), 0.3).variance(contrast)[0]
    np.testing.assert_allclose(with_least, variance + 2 * 0.3**2 * (1 - correlation), rtol=1e-6)
    own = [known.interval(policy, 0.9) for policy in (0, 1)]
    assert high - low < 0.3 * np.hypot(*(each[2] - each[1] for each in own))


def test_policies_share_what_networks_have_wrong_alike_as_far_as_they_act_alike() -> None:
    """Exactly for policies that act the same; as two policies of their own where they act at random apart."""
    values, moves = paired_setting()
    std = values.std(axis=1, ddof=1)
    paired = np.std(values[0] - values[1], ddof=1) ** 2 / NETWORKS + np.sum((moves[0] - moves[1]) ** 2)

    def variance(one: np.ndarray, other: np.ndarray) -> float:
        each = [PolicyValue(values[i], moves[i], actions=actions) for i, actions in enumerate((one, other))]
        return joint(each, EPISODES).variance(np.array([1.0, -1.0]))[0]

    still = np.zeros(64)
    np.testing.assert_allclose(variance(still, still), paired + SHARED * (std[0] - std[1]) ** 2, rtol=1e-6)
    far = paired + SHARED * (std[0] ** 2 + std[1] ** 2)
    np.testing.assert_allclose(variance(still, still + 10.0), far, rtol=1e-6)
    half = np.sqrt(np.log(2.0))  # exp(-d²) = 1/2
    np.testing.assert_allclose(variance(still, still + half), far - SHARED * std[0] * std[1], rtol=1e-6)


def test_networks_that_carry_the_log_stand_in_for_moves_that_are_not_known() -> None:
    values, moves = paired_setting()
    known = known_of(values, [moves[0], None, moves[2]])
    interval = interval_of(replace(estimate_of(values[1], moves[1]), measurements=None), 0.9)
    assert interval is not None
    np.testing.assert_allclose(known.interval(1, 0.9)[1:], (interval.low, interval.high), rtol=1e-6)


def test_a_policy_with_fewer_networks_is_compared_by_those_that_both_have() -> None:
    values, moves = paired_setting()
    values[1, 4:] = np.nan
    known = known_of(values, list(moves))
    assert known.training_freedom[0, 1] == 3
    assert known.training_freedom[0, 2] == NETWORKS - 1
    assert np.linalg.eigvalsh(known.training).min() > -1e-9
    np.testing.assert_allclose(known.values[1], np.nanmean(values[1]))


def test_simultaneous_intervals_hold_all_differences_as_often_as_they_claim() -> None:
    """Of 400 made-up logs, 90 % intervals for all 6 pairs of 4 equal policies; three standard errors are 4.5 %."""
    rng = np.random.default_rng(1)
    pairs = list(combinations(range(4), 2))
    held = single = 0
    for _ in range(400):
        scale = np.sqrt(SHARED + 1 / NETWORKS)  # so that the claimed variance is the true one
        values = rng.standard_normal((4, NETWORKS))
        centred = values - values.mean(axis=1, keepdims=True)
        known = known_of(centred + scale * rng.standard_normal((4, 1)), list(np.zeros((4, EPISODES))))
        draws = value_draws(known, 2_000)
        critical = critical_value(known, draws, pairs, 0.9)
        errors = []
        for one, other in pairs:
            contrast = np.eye(4)[one] - np.eye(4)[other]
            errors.append(abs(contrast @ known.values) / np.sqrt(known.variance(contrast)[0]))
        held += max(errors) <= critical
        single += known.difference(0, 1, 0.9)[1] <= 0.0 <= known.difference(0, 1, 0.9)[2]
    assert 0.9 - 0.045 < held / 400 < 1.0
    assert 0.9 - 0.045 < single / 400 < 0.9 + 0.045


def test_equal_policies_share_the_chance_to_be_best_and_a_clear_one_has_it() -> None:
    values, moves = paired_setting()
    draws = value_draws(known_of(values, list(moves)))
    assert p_best(draws).sum() == pytest.approx(1.0)
    assert p_best(draws)[0] > 0.9
    assert rank_intervals(draws, 0.9).tolist()[2] == [3, 3]
    twins = known_of(np.stack([values[0], values[0][::-1]]), [moves[0], moves[0]])
    np.testing.assert_allclose(p_best(value_draws(twins)), 0.5, atol=0.02)


def test_groups_are_the_longest_runs_that_nothing_separates() -> None:
    apart = {(0, 1): False, (1, 2): False, (0, 2): True, (2, 3): True, (0, 3): True, (1, 3): True}
    assert groups([0, 1, 2, 3], apart) == [[0, 1], [1, 2], [3]]
    assert groups([2], {}) == [[2]]


def test_usable_estimates_count_by_their_precision_over_all_policies() -> None:
    values, moves = paired_setting()
    precise = [estimate_of(0.1 * row, 0.1 * move, "kmifqe") for row, move in zip(values, moves)]
    rough = [estimate_of(row + 1.0, move, "fqe") for row, move in zip(values, moves)]
    bad, fine = Verdict("do not use", ("a reason",)), Verdict("trustworthy", ())
    both = [{"kmifqe": k, "fqe": f} for k, f in zip(precise, rough)]
    judgements = [
        Judgement((), {"kmifqe": fine, "fqe": fine}),
        Judgement((), {"kmifqe": fine, "fqe": fine}),
        Judgement((), {"kmifqe": bad, "fqe": fine}),
    ]
    first, second, third = combined(both, judgements)
    assert first.weights == second.weights
    assert first.weights["kmifqe"] > 0.9
    assert first.least == LEAST_ERROR * UNIT
    assert third.weights == {"fqe": 1.0}
    np.testing.assert_allclose(third.values, rough[2].values)
    np.testing.assert_allclose(
        first.values, first.weights["kmifqe"] * precise[0].values + first.weights["fqe"] * rough[0].values
    )
    assert first.moves is not None
    assert first.verdict.word == "trustworthy"


def test_moves_of_a_mean_add_up_to_its_variance() -> None:
    returns = np.random.default_rng(0).standard_normal(500)
    everything, some = np.arange(500), np.arange(0, 500, 5)
    variance = returns.var(ddof=1) / 500
    np.testing.assert_allclose(np.sum(moves_of_mean(returns, everything) ** 2), variance)
    np.testing.assert_allclose(np.sum(moves_of_mean(returns, some) ** 2), variance, rtol=0.5)


def test_estimators_that_differ_alike_about_two_policies_agree_about_their_difference() -> None:
    values, moves = paired_setting()

    def policy(own: np.ndarray, move: np.ndarray, apart: float) -> PolicyValue:
        return PolicyValue(own, move, 0.0, {"a": 0.5, "b": 0.5}, {"a": apart, "b": -apart})

    contrast = np.array([1.0, -1.0])
    plain = known_of(values[:2], list(moves[:2])).variance(contrast)[0]
    alike, other = (
        joint([policy(values[0], moves[0], 1.0), policy(values[1], moves[1], apart)], EPISODES)
        for apart in (1.0, -1.0)
    )
    np.testing.assert_allclose(alike.variance(contrast)[0], plain, rtol=1e-6)
    np.testing.assert_allclose(other.variance(contrast)[0], plain + 4.0, rtol=1e-6)
    np.testing.assert_allclose(
        alike.variance(np.array([1.0, 0.0]))[0]
        - known_of(values[:1], moves[:1]).variance(np.array([1.0]))[0],
        1.0,
        rtol=1e-6,
    )
