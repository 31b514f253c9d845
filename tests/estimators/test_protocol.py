"""What every estimator in the registry that trains does, whatever it estimates with."""

from __future__ import annotations

import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import RECORD_EVERY, SEEDS, TRAINED, lqr_problem, quick, run
from kmifqe.estimators import Estimate, fit
from kmifqe.estimators.fit import _init
from kmifqe.io.serialize import plain

STEPS = 2 * RECORD_EVERY

every_estimator = pytest.mark.parametrize("name", TRAINED)


@cache
def short_run(name: str) -> Estimate:
    problem, _, _ = lqr_problem()
    return run(quick(name), problem, steps=STEPS)


def assert_same_bits(one: Estimate, other: Estimate) -> None:
    leaves, other_leaves = jax.tree.leaves(one.final_state), jax.tree.leaves(other.final_state)
    for leaf, other_leaf in zip(leaves, other_leaves, strict=True):
        np.testing.assert_array_equal(leaf, other_leaf)
    np.testing.assert_array_equal(one.values, other.values)


@every_estimator
def test_the_registry_names_what_it_makes(name: str) -> None:
    assert quick(name).name == name
    assert quick(name) is quick(name), "one object per config, or jit compiles again"


@every_estimator
def test_fit_is_step_after_step_whoever_runs_beside(name: str) -> None:
    """One seed alone, neither scanned nor under vmap, arrives where it does among others."""
    problem, _, _ = lqr_problem()
    e, seed = quick(name), 1
    keys = jnp.stack([jax.random.key(s) for s in range(SEEDS)])
    state = jax.tree.map(lambda leaf: leaf[seed], _init(e, keys, problem))
    step = jax.jit(e.step)
    for t in range(10):
        state, info = step(jax.random.fold_in(keys[seed], t), jnp.int32(t), state, problem)
        assert all(value.shape == () for value in info.values())
    ended = lambda steps, values: steps[-1] == 10  # noqa: E731
    beside = fit(e, problem, seeds=SEEDS, steps=STEPS, record_every=10, stop=ended)
    for leaf, together in zip(jax.tree.leaves(state), jax.tree.leaves(beside.final_state), strict=True):
        np.testing.assert_allclose(leaf, together[seed], rtol=1e-3, atol=1e-4)


@every_estimator
def test_the_same_seeds_give_the_same_bits_and_other_seeds_others(name: str) -> None:
    problem, _, _ = lqr_problem()
    again = run(quick(name), problem, steps=STEPS)
    assert_same_bits(short_run(name), again)
    for series in again.infos:
        np.testing.assert_array_equal(short_run(name).infos[series], again.infos[series])
    assert len(set(again.infos["loss"][-1])) == SEEDS


@every_estimator
def test_the_bits_do_not_depend_on_how_often_is_recorded(name: str) -> None:
    problem, _, _ = lqr_problem()
    often = fit(quick(name), problem, seeds=SEEDS, steps=STEPS, record_every=10)
    assert_same_bits(short_run(name), often)
    at_the_same_steps = np.isin(often.recorded_steps, short_run(name).recorded_steps)
    np.testing.assert_array_equal(often.trajectory[at_the_same_steps], short_run(name).trajectory)


@every_estimator
def test_trajectories_have_a_row_a_record_and_a_column_a_seed(name: str) -> None:
    result = short_run(name)
    assert result.estimator == name
    assert result.recorded_steps.tolist() == [RECORD_EVERY, STEPS]
    assert result.trajectory.shape == (2, SEEDS)
    assert "loss" in result.infos
    assert all(series.shape == (2, SEEDS) for series in result.infos.values())
    if quick(name).final_value is None:
        np.testing.assert_array_equal(result.values, result.trajectory[-1])


@every_estimator
def test_an_estimate_is_strict_json(name: str) -> None:
    record = json.loads(json.dumps(plain(short_run(name).without_state()), allow_nan=False))
    assert record["estimator"] == name
    assert record["seeds"] == list(range(SEEDS))
    assert len(record["trajectory"]) == len(record["recorded_steps"]) == 2
    assert record["config"]["hidden"] == 32
