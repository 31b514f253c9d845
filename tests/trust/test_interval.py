"""Intervals against the theory of means."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from kmifqe.errors import InputError
from kmifqe.estimators import Estimate
from kmifqe.trust.influence import ChanceFacts
from kmifqe.trust.interval import LEAST_ERROR, SHARED, interval_of, narrowing, variance_of


def estimate(values: np.ndarray | list[float], *, episodes: int = 10**9, bootstrap: bool = True) -> Estimate:
    values = np.asarray(values, np.float64)
    return Estimate(
        estimator="kmifqe",
        config={},
        gamma=0.9,
        seeds=tuple(range(len(values))),
        steps=1,
        values=values,
        recorded_steps=np.array([1]),
        trajectory=values[None],
        infos={},
        seconds=0.0,
        device="cpu",
        bootstrap=bootstrap,
        episodes=episodes,
    )


def test_half_the_width_is_students_t_times_the_spread() -> None:
    values = [1.0, 2.0, 4.0, 5.0]
    interval = interval_of(estimate(values), 0.95)
    assert interval is not None
    half = stats.t.ppf(0.975, 3) * np.std(values, ddof=1) * np.sqrt(1 + 1 / 4)
    assert (interval.low, interval.high) == (pytest.approx(3 - half), pytest.approx(3 + half))
    assert (interval.level, interval.freedom) == (0.95, pytest.approx(3))
    assert interval.contains(3 + 0.99 * half)
    assert not interval.contains(3 - 1.01 * half)


def test_the_discounted_interval_is_the_same_in_other_units() -> None:
    interval = interval_of(estimate([1.0, 2.0]), 0.9)
    assert interval is not None
    discounted = interval.discounted(0.9)
    assert discounted.width == pytest.approx(10 * interval.width)
    assert discounted.low == pytest.approx(10 * interval.low)
    assert discounted.to_dict() == {"low": discounted.low, "high": discounted.high, "level": 0.9}


def test_a_lower_level_and_more_episodes_give_a_narrower_interval() -> None:
    seeds = estimate([1.0, 2.0, 4.0, 5.0])
    widths = [
        interval.width
        for interval in (
            interval_of(seeds, 0.5),
            interval_of(seeds, 0.9),
            interval_of(replace(seeds, episodes=20), 0.9),
            interval_of(replace(seeds, episodes=3), 0.9),
        )
        if interval is not None
    ]
    assert len(widths) == 4
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    "of",
    [
        estimate([1.0, 2.0], bootstrap=False),
        estimate([1.0]),
        estimate([1.0, 2.0, np.nan]),
        estimate([1.0, 2.0], episodes=1),
    ],
    ids=["no bootstrap", "one seed", "a diverged seed", "one episode"],
)
def test_seeds_that_cannot_tell_give_no_interval(of: Estimate) -> None:
    assert interval_of(of) is None


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 90.0, float("nan")])
def test_a_level_that_is_no_probability_is_refused(level: float) -> None:
    with pytest.raises(InputError, match="expected a number between 0 and 1"):
        interval_of(estimate([1.0, 2.0]), level)


@pytest.mark.parametrize("episodes, seeds", [(5, 10), (40, 3), (40, 10)])
def test_intervals_of_a_mean_cover_it_as_often_as_they_say(episodes: int, seeds: int) -> None:
    """The estimator is a mean over episodes, with training noise of a third of the log's."""
    rng = np.random.default_rng(0)
    trials = 4_000
    logs = rng.standard_normal((trials, episodes))
    weights = rng.exponential(size=(trials, seeds, episodes))
    weights /= weights.mean(axis=2, keepdims=True)
    noise = rng.standard_normal((trials, seeds)) / (3 * np.sqrt(episodes))
    values = np.einsum("tse,te->ts", weights, logs) / episodes + noise
    intervals = [interval_of(estimate(v, episodes=episodes), 0.9) for v in values]
    covered = np.mean([interval is not None and interval.contains(0.0) for interval in intervals])
    # Training noise is counted in full, though the mean over seeds has less of it, and no seed has anything wrong
    # here that the others have right: a little too wide.
    error = np.sqrt(0.9 * 0.1 / trials)
    assert 0.9 - 4 * error < covered < 0.97


def with_chance(
    values: list[float],
    log_std: float,
    *,
    episodes: int = 10**9,
    unit: float = 0.0,
    between_std: float = 0.0,
) -> Estimate:
    chance = ChanceFacts(
        log_std=log_std,
        first_std=0.0,
        unsolved=0.0,
        visited_rows=1.0,
        negative_visits=0.0,
        between_std=between_std,
    )
    measurements = SimpleNamespace(chance=chance, log=SimpleNamespace(value_unit=unit))
    return replace(estimate(values, episodes=episodes, bootstrap=False), measurements=measurements)


def test_both_sources_add_up_where_the_log_s_part_is_known() -> None:
    values = [1.0, 2.0, 4.0, 5.0]
    networks = np.var(values, ddof=1) * (SHARED + 1 / 4)
    interval = interval_of(with_chance(values, 3.0), 0.95)
    assert interval is not None
    freedom = (9.0 + networks) ** 2 / (
        networks**2 / 3
    )  # Satterthwaite; so many episodes know their part exactly
    half = stats.t.ppf(0.975, freedom) * np.sqrt(9.0 + networks)
    assert 0.5 * interval.width == pytest.approx(half, rel=1e-6)
    assert interval.freedom == pytest.approx(freedom, rel=1e-6)


def test_more_networks_of_one_spread_narrow_the_interval_down_to_what_they_have_wrong_alike() -> None:
    few, many = [-1.0, 1.0] * 3, [-1.0, 1.0] * 300
    widths = [interval_of(with_chance(values, 0.5), 0.9).width for values in (few, many)]  # type: ignore[union-attr]
    assert widths[1] < widths[0]
    least = 2 * stats.norm.ppf(0.95) * np.sqrt(0.25 + SHARED)
    assert widths[1] == pytest.approx(least, rel=0.01)


def test_more_networks_narrow_only_what_the_networks_differ_by() -> None:
    values = [1.0, 2.0, 4.0, 5.0]
    by_networks, by_log = with_chance(values, 0.0), with_chance(values, 1e3)
    t = stats.t.ppf(0.975, 9) / stats.t.ppf(0.975, 3)
    expected = 1 - t * np.sqrt((SHARED + 1 / 10) / (SHARED + 1 / 4))
    assert narrowing(by_networks, 10) == pytest.approx(expected, rel=1e-6)
    assert narrowing(by_log, 10) == pytest.approx(0.0, abs=1e-4)
    assert narrowing(by_networks, len(values)) == 0.0
    assert narrowing(estimate([1.0]), 10) is None


def test_networks_that_agree_are_still_wrong_by_a_share_of_what_episodes_scatter() -> None:
    assert variance_of(with_chance([1.0, 1.0], 0.0, unit=2.0)) == pytest.approx((LEAST_ERROR * 2.0) ** 2)


def test_what_averaged_estimators_differ_by_widens_the_interval() -> None:
    alike, apart = (with_chance([1.0, 2.0], 0.5, between_std=between) for between in (0.0, 3.0))
    assert variance_of(apart) == pytest.approx(variance_of(alike) + 9.0)


def test_there_is_no_variance_where_there_is_no_interval() -> None:
    assert variance_of(estimate([1.0])) is None
