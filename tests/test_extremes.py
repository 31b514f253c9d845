"""Numbers stay numbers: at the edges of what a log may hold, estimates are finite, or the log is refused.

All runs share a few shapes and settings, so that each program is compiled once; steps are few and networks tiny.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.small import UNCLIPPED, estimator_with
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, Estimator, fit
from kmifqe.mdp.ask import Logged
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks import checks_of, measure
from kmifqe.trust.verdict import judge

N, BATCH, STEPS, RECORD_EVERY = 60, 16, 20, 10
SICK = 13  # the seed whose networks are broken from the start

SETTINGS: dict[str, dict[str, Any]] = {
    "fqe": {"tau": 0.1},
    "sr-dice": {"features": 8, "ratio_batch": BATCH, "stages": (5, 5, 10), "value_rows": 40},
    "kmifqe": {"target_period": RECORD_EVERY},
}
every_estimator = pytest.mark.parametrize("name", SETTINGS)


@cache
def tiny(name: str, **more: Any) -> Estimator:
    """Return a tiny estimator that is well for every seed but SICK, whose state is NaN from the start."""
    common = {"hidden": 8, "batch": BATCH, "learning_rate": 0.02}
    well = estimator_with(name, **(common | SETTINGS[name] | more))
    sick_key = jax.random.key_data(jax.random.fold_in(jax.random.key(SICK), 2**31 - 1))

    def init(key: jax.Array, problem: Problem) -> Any:
        sick = jnp.all(jax.random.key_data(key) == sick_key)
        spoil = lambda x: jnp.where(sick, jnp.nan, x) if jnp.issubdtype(x.dtype, jnp.floating) else x  # noqa: E731
        return jax.tree.map(spoil, well.init(key, problem))

    return well._replace(init=init)


def reasons(result: Estimate) -> tuple[str, ...]:
    """Return what speaks against the estimate: its trajectory alone, where it has no measurements."""
    return judge(checks_of(result)).reasons


def measured(result: Estimate, problem: Problem, **more: Any) -> Estimate:
    """Return an estimate of KMIFQE with its measurements."""
    return replace(result, measurements=measure(tiny("kmifqe", **more), result, problem))


def run(
    name: str, problem: Problem, seeds: tuple[int, ...] = (0, 1, 2), steps: int = STEPS, **more: Any
) -> Estimate:
    return fit(tiny(name, **more), problem, seeds=seeds, steps=steps, record_every=RECORD_EVERY)


def arrays(
    n: int = N, q: int = 2, d: int = 2, length: int = 20, terminal: str = "some"
) -> dict[str, np.ndarray]:
    """Return a log of random states and actions; of the episodes' ends some, all or none are terminal."""
    rng = np.random.default_rng(0)
    states, noise = rng.normal(size=(n, q)), rng.normal(size=(n, d))
    ends = np.arange(n) % length == length - 1
    terminals = ends & {"some": np.arange(n) < n // 2, "all": True, "none": False}[terminal]
    return {
        "observations": states,
        "actions": 0.5 * noise,
        "rewards": np.tanh(states[:, 0]) + 0.5 * noise[:, 0],
        "terminals": terminals,
        "timeouts": ends & ~terminals,
        "action_log_probs": -0.5 * noise**2 - np.log(0.5 * np.sqrt(2 * np.pi)),
    }


def middle(states: np.ndarray) -> np.ndarray:
    return np.full((len(states), 2), 0.1)


def problem_of(log: dict[str, np.ndarray], policy: Any = None, gamma: float = 0.9) -> Problem:
    d = log["actions"].shape[1]
    inside = 0.2 * log["actions"].std(axis=0)  # by default the target acts where the log does, in its units
    ask = policy if policy is not None else lambda s: np.broadcast_to(inside, (len(s), d))
    return Problem.build(Transitions.from_arrays(**log), ask, Logged(), gamma)


def assert_finite(result: Estimate) -> None:
    assert np.isfinite(result.values).all(), result.values
    assert all(np.isfinite(series).all() for series in result.infos.values()), result.infos


# --- At the door


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    field=st.sampled_from(["observations", "actions", "rewards", "next_observations", "action_log_probs"]),
    row=st.integers(0, N - 1),
    column=st.integers(0, 1),
    bad=st.sampled_from([np.nan, np.inf, -np.inf, 1e39]),
)
def test_what_is_not_a_finite_float32_is_refused_by_field_and_row(
    field: str, row: int, column: int, bad: float
) -> None:
    log = arrays()
    log["next_observations"] = np.roll(log["observations"], -1, axis=0)
    log[field] = log[field].copy()
    log[field][(row, column)[: log[field].ndim]] = bad
    with pytest.raises(InputError, match=rf"{field} holds .* at row {row}\b"):
        Transitions.from_arrays(**log)


@pytest.mark.parametrize("field", ["terminals", "timeouts"])
def test_a_flag_that_is_not_a_number_is_refused_too(field: str) -> None:
    log = arrays()
    log[field] = log[field].astype(float)
    log[field][7] = np.nan
    with pytest.raises(InputError, match=f"{field} holds nan at row 7"):
        Transitions.from_arrays(**log)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_policy_that_returns_no_number_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="the policy returned NaN or infinity"):
        problem_of(arrays(), lambda s: np.where(s[:, :1] > 1.0, bad, middle(s)))


class BrokenAtTheTarget:
    """A density that knows every logged action, and is NaN exactly where the target acts."""

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.where((actions == np.float32(0.1)).all(axis=1), np.nan, -1.0)


def test_a_density_that_is_not_a_number_at_the_target_is_refused() -> None:
    with pytest.raises(InputError, match="density"):
        Problem.build(Transitions.from_arrays(**arrays()), middle, BrokenAtTheTarget(), 0.9)


@pytest.mark.parametrize("gamma", [-0.1, 1.0, np.nan, np.inf])
def test_a_discount_that_is_none_is_refused(gamma: float) -> None:
    with pytest.raises(InputError, match="expected 0 <= gamma < 1"):
        problem_of(arrays(), gamma=gamma)


def test_a_log_with_nothing_to_learn_from_is_refused() -> None:
    for log in (arrays(n=1, terminal="none"), arrays(length=1, terminal="none")):
        with pytest.raises(InputError, match="no row has a next state"):
            problem_of(log)


# --- One shape, many scales

SCALES = {
    "as it is": {},
    "rewards of a million": {"rewards": lambda r: 1e6 * r},
    "rewards of a millionth": {"rewards": lambda r: 1e-6 * r},
    "rewards near float32's end": {"rewards": lambda r: 1e37 * r},
    "rewards below float32's normal numbers": {"rewards": lambda r: 1e-40 * r},
    "no reward": {"rewards": lambda r: 0 * r},
    "one reward": {"rewards": lambda r: 0 * r + 7.0},
    "states of mixed scale": {"observations": lambda s: s * [1e-8, 1e8]},
    "a constant column": {"observations": lambda s: s * [1, 0] + [0, 5e5]},
    "constant states": {"observations": lambda s: 0 * s + 3.0},
    "actions of mixed scale": {"actions": lambda a: a * [1e-6, 1e6]},
    "one action everywhere": {"actions": lambda a: 0 * a + 0.3},
    "densities near 0": {"action_log_probs": lambda p: 0 * p - 1e4},
    "densities without bound": {"action_log_probs": lambda p: 0 * p + 1e4},
}


def scaled(case: str) -> dict[str, np.ndarray]:
    log = arrays()
    return log | {field: np.asarray(change(log[field])) for field, change in SCALES[case].items()}


@every_estimator
@pytest.mark.parametrize("case", SCALES)
def test_a_value_is_finite_and_of_the_size_of_the_rewards(name: str, case: str) -> None:
    log = scaled(case)
    result = run(name, problem_of(log))
    assert_finite(result)
    # V is a mean of rewards. Twenty steps leave an untrained network's output in it, at the rewards' scale.
    size = np.abs(log["rewards"]).max()
    assert np.abs(result.values).max() <= (5 * size if size > 1e-37 else 1.0)


@every_estimator
@pytest.mark.parametrize("gamma", [0.0, 0.9999])
def test_the_ends_of_the_discount(name: str, gamma: float) -> None:
    assert_finite(run(name, problem_of(arrays(), gamma=gamma)))


@every_estimator
@pytest.mark.parametrize("low, high", [(2.0**12, 2.0**30), (2.0**-40, 2.0**-12)])
def test_a_power_of_two_in_the_rewards_is_a_power_of_two_in_the_value_to_the_bit(
    name: str, low: float, high: float
) -> None:
    log = arrays()
    small, large = (run(name, problem_of(log | {"rewards": log["rewards"] * scale})) for scale in (low, high))
    np.testing.assert_array_equal(small.trajectory / np.float32(low), large.trajectory / np.float32(high))


@pytest.mark.parametrize("name", ["fqe", "kmifqe"])
@pytest.mark.parametrize("reward", [1e6, -1e-6])
def test_a_constant_reward_of_any_scale_is_the_value(name: str, reward: float) -> None:
    log = arrays()
    result = run(name, problem_of(log | {"rewards": np.full(N, reward)}, gamma=0.0), steps=300)
    assert result.values == pytest.approx(reward, rel=0.05)


def test_a_target_that_is_the_logged_action_everywhere_weighs_no_row_down() -> None:
    log = arrays()
    by_state = {s.tobytes(): a for s, a in zip(log["observations"].astype(np.float32), log["actions"])}
    followed = problem_of(log, lambda s: np.array([by_state[row.tobytes()] for row in s]))
    for name in SETTINGS:
        assert_finite(run(name, followed))


@every_estimator
def test_a_target_far_from_every_logged_action(name: str) -> None:
    assert_finite(run(name, problem_of(arrays(), lambda s: middle(s) + 1e4)))


def test_kmifqe_says_that_no_logged_action_is_near_the_target() -> None:
    far = problem_of(arrays(), lambda s: middle(s) + 1e4)
    result = measured(run("kmifqe", far), far)
    assert any("Every importance weight is at its least, 0.001" in note for note in reasons(result))


@pytest.mark.parametrize("case", ["densities near 0", "densities without bound", "as it is"])
def test_without_a_clip_weights_of_any_size_leave_finite_numbers(case: str) -> None:
    assert_finite(run("kmifqe", problem_of(scaled(case)), clip=UNCLIPPED, bandwidth=0.5))


def test_without_a_clip_weights_that_vanish_are_named() -> None:
    far = problem_of(arrays(), lambda s: middle(s) + 1e4)
    result = run("kmifqe", far, clip=UNCLIPPED, bandwidth=0.5)
    assert_finite(result)
    known = measured(result, far, clip=UNCLIPPED, bandwidth=0.5)
    assert any("Every importance weight is at its least, 0:" in note for note in reasons(known))


# --- Other shapes

SHAPES: dict[str, dict[str, Any]] = {
    "thirty dimensions, one episode shorter than a minibatch, no terminal row": {
        "n": 5,
        "d": 30,
        "length": 6,
        "terminal": "none",
    },
    "one dimension, one row, and it is terminal": {"n": 1, "q": 1, "d": 1, "length": 1, "terminal": "all"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_at_the_edge(shape: str) -> None:
    problem = problem_of(arrays(**SHAPES[shape]))
    result = run("kmifqe", problem)
    assert_finite(result)
    assert (result.infos["ess"] <= problem.counts.in_sample * (1 + 1e-5)).all()


def test_five_episodes_of_one_step_in_thirty_dimensions_are_enough_for_fqe_and_too_little_for_kmifqe() -> (
    None
):
    log = arrays(n=5, d=30, length=1, terminal="none")
    short = problem_of(log | {"next_observations": -log["observations"]})
    assert_finite(run("fqe", short))
    with pytest.raises(InputError, match="KMIFQE learns from logged next actions, and no row has one"):
        run("kmifqe", short)


# --- A seed that diverges


@every_estimator
def test_a_sick_seed_is_reported_and_changes_no_bit_of_the_others(name: str) -> None:
    problem = problem_of(arrays())
    well, mixed = run(name, problem, seeds=(0, 1, 2)), run(name, problem, seeds=(0, SICK, 2))
    assert np.isnan(mixed.values[1])
    others = [0, 2]
    np.testing.assert_array_equal(well.trajectory[:, others], mixed.trajectory[:, others])
    for series in well.infos:
        np.testing.assert_array_equal(well.infos[series][:, others], mixed.infos[series][:, others])
    for a, b in zip(jax.tree.leaves(well.final_state), jax.tree.leaves(mixed.final_state)):
        np.testing.assert_array_equal(np.asarray(a)[others], np.asarray(b)[others])
    expected = replace(well, seeds=(0, 2), values=well.values[others])
    told = f"1 of 3 seeds diverged (seed {SICK}); V̂ of the remaining 2 is {expected.value:.3f}"
    assert any(note.startswith(told) for note in reasons(mixed))
