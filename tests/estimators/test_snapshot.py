"""Snapshots: what is kept of a state, and how it is put together again."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from estimators.small import SEEDS, TRAINED, lqr_problem, quick
from kmifqe.errors import InputError
from kmifqe.estimators.fit import Plan, kept_state, rebuilt_state, restartable, rule_name


@pytest.mark.parametrize("name", TRAINED)
def test_all_is_kept_but_what_a_refresh_recomputes(name: str) -> None:
    problem, estimator = lqr_problem()[0], quick(name)
    keys = jax.random.split(jax.random.key(0), SEEDS)
    like = jax.eval_shape(jax.vmap(estimator.init, in_axes=(0, None)), keys, problem)
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: (100 * rng.random(leaf.shape)).astype(leaf.dtype), like)
    recomputed = estimator.refresh.recomputed if estimator.refresh else ()
    kept = kept_state(estimator, state)
    there = {name for name, part in zip(state._fields, state) if jax.tree.leaves(part)}
    assert {path.split(".")[1].split("[")[0] for path in kept} == there - set(recomputed)
    again = rebuilt_state(estimator, kept, like)
    zeros = {field: jax.tree.map(np.zeros_like, getattr(state, field)) for field in recomputed}
    jax.tree.map(np.testing.assert_array_equal, again, state._replace(**zeros))


def test_a_state_with_a_field_too_many_or_too_few_is_refused() -> None:
    estimator, like = quick("fqe"), {"a": jax.ShapeDtypeStruct((2,), np.float32)}
    kept = kept_state(estimator, {"a": np.ones(2, np.float32)})
    np.testing.assert_array_equal(rebuilt_state(estimator, kept, like)["a"], [1, 1])
    with pytest.raises(InputError, match=r"has \['b'\], which fqe of this version does not"):
        rebuilt_state(estimator, kept | {"['b']": np.ones(1)}, like)
    with pytest.raises(InputError, match=r"holds nothing as \['a'\]; expected float32 \(2,\)"):
        rebuilt_state(estimator, {}, like)


def test_a_fit_can_begin_again_at_any_step_or_at_multiples() -> None:
    for name in ("kmifqe", "kmifqe-paper"):
        assert [step for step in (25, 50, 75, 100) if restartable(quick(name), step)] == [50, 100]
    assert all(restartable(quick("fqe"), step) for step in (1, 25))


def test_a_rule_has_one_name_in_every_process() -> None:
    assert rule_name(None) == ""
    assert rule_name(np.all) == "numpy.all"
    assert rule_name(Plan("e", {}, (0,), 1, 1, 0.5, "")).startswith("Plan(estimator='e'")
