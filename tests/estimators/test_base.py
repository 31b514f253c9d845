"""`Estimate`'s figures and what of it is written; the inputs of a network."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import lqr_problem
from kmifqe.estimators.base import Estimate, action_scale, config_dict, network_input
from kmifqe.estimators.kmifqe import KMIFQEConfig
from kmifqe.io.serialize import plain

VALUES = np.array([1.0, 2.0, 6.0])


def estimate(values: np.ndarray = VALUES, **changes) -> Estimate:
    whole = Estimate(
        estimator="fqe",
        config={},
        gamma=0.75,
        seeds=tuple(range(len(values))),
        steps=10,
        values=values,
        recorded_steps=np.array([5, 10]),
        trajectory=np.stack([np.where(np.isfinite(values), 0.0, values), values]),
        infos={"loss": np.ones((2, len(values)))},
        seconds=1.23456,
        device="cpu",
    )
    return replace(whole, **changes)


def test_value_spread_and_standard_error() -> None:
    assert estimate().value == 3.0
    assert estimate().spread == pytest.approx(np.sqrt(7.0))
    assert estimate().standard_error == pytest.approx(np.sqrt(7.0 / 3.0))


def test_the_discounted_return_is_the_value_over_one_minus_gamma() -> None:
    assert estimate().discounted_return == 12.0


@pytest.mark.parametrize(
    "values, said",
    [
        (VALUES, "V = 3 ± 2.65 over 3 seeds, discounted return 12"),
        (VALUES * 1e-6, "V = 3e-06 ± 2.65e-06 over 3 seeds, discounted return 1.2e-05"),
        ([1.0, np.inf, 2.0, np.nan], "V = 1.5 ± 0.707 over 2 of 4 seeds, discounted return 6"),
    ],
)
def test_one_line_says_it_all_at_any_scale(values: np.ndarray, said: str) -> None:
    assert repr(estimate(np.asarray(values))) == f"Estimate(fqe: {said}, 10 steps, 1.2 s)"


def test_a_seed_that_diverged_leaves_the_figures_of_the_others() -> None:
    mixed, others = estimate(np.array([np.nan, *VALUES, -np.inf])), estimate()
    for figure in ("value", "spread", "standard_error", "discounted_return"):
        assert getattr(mixed, figure) == getattr(others, figure)
    assert (mixed.diverged, others.diverged) == (2, 0)
    none = estimate(np.array([np.nan, np.inf]))
    assert np.isnan([none.value, none.spread, none.standard_error, none.discounted_return]).all()
    assert none.diverged == 2


def test_one_seed_has_no_spread() -> None:
    one = estimate(np.array([2.0]))
    assert np.isnan(one.spread)
    assert np.isnan(one.standard_error)


def test_what_is_not_finite_is_written_as_null() -> None:
    record = plain(estimate(np.array([np.nan, 1.0])))
    assert record["values"] == [None, 1.0]
    assert record["trajectory"] == [[None, 0.0], [None, 1.0]]
    json.dumps(record, allow_nan=False)


def test_a_config_without_a_clip_is_strict_json_too() -> None:
    config = config_dict(KMIFQEConfig(clip=(0.0, float("inf"))))
    record = json.loads(json.dumps(plain(estimate(config=config)), allow_nan=False))
    assert record["config"]["clip"] == [0.0, None]
    assert record["config"]["bandwidth"] is None


@dataclass(frozen=True)
class Config:
    pair: tuple[int, int] = (1, 2)
    word: str = "raw"


def test_a_config_is_a_dict_of_what_json_can_hold() -> None:
    assert config_dict(Config()) == {"pair": [1, 2], "word": "raw"}


def test_standardized_inputs_have_mean_0_and_std_1_and_actions_of_the_box_fill_minus_one_to_one() -> None:
    problem, _, _ = lqr_problem()
    box = replace(problem, action_low=jnp.array([1.0]), action_high=jnp.array([5.0]))
    middle, half = action_scale(box)
    assert (middle[0], half[0]) == (3.0, 2.0)
    ends = network_input(box, problem.states[:2], jnp.array([[1.0], [5.0]]), "standardized")
    np.testing.assert_allclose(ends[:, -1], [-1.0, 1.0])
    scaled = network_input(box, problem.states, problem.actions, "standardized")[:, :-1]
    np.testing.assert_allclose([scaled.mean(), scaled.std()], [0.0, 1.0], atol=1e-3)


def test_raw_inputs_are_the_numbers_themselves() -> None:
    problem, _, _ = lqr_problem()
    raw = network_input(problem, problem.states, problem.actions, "raw")
    np.testing.assert_array_equal(raw, np.concatenate([problem.states, problem.actions], axis=1))


def measured(kernel: SimpleNamespace | None) -> SimpleNamespace:
    """Return what `corrected` reads of measurements."""
    return SimpleNamespace(kernel=kernel)


def test_the_corrected_value_is_less_the_bias_that_was_measured() -> None:
    assert estimate().corrected is None
    assert estimate(measurements=measured(kernel=None)).corrected is None
    left, removed = (SimpleNamespace(kernel_bias=-0.25, bias_removed=moved) for moved in (None, 0.3))
    assert estimate(measurements=measured(kernel=left)).corrected == pytest.approx(3.25)
    assert estimate(measurements=measured(kernel=removed)).corrected is None
