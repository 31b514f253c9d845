from __future__ import annotations

import numpy as np
import pytest

from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.summary import inspect
from kmifqe.mdp.transitions import Transitions


def walk(lengths, terminated, actions=None, seed=0) -> Transitions:
    """Random-walk episodes of the given lengths, without next_observations."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    last = np.zeros(n, bool)
    last[np.cumsum(lengths) - 1] = True
    ended = last.copy()
    ended[last] = terminated
    actions = rng.uniform(-1, 1, (n, 2)) if actions is None else actions
    states = rng.standard_normal((n, 3)).cumsum(axis=0)
    return Transitions.from_arrays(states, actions, np.ones(n), ended, last & ~ended)


def test_counts_of_the_encoded_log(log):
    summary = inspect(log)
    assert (summary.transitions, summary.episodes, summary.state_dim, summary.action_dim) == (16, 6, 2, 3)
    assert (summary.length_min, summary.length_median, summary.length_max) == (1, 2.5, 5)
    assert (summary.terminated, summary.truncated) == (3, 3)
    assert summary.unusable == {
        "the next action was not logged (last row of a cut episode, or before lost rows)": 3
    }
    assert summary.no_next_state == 0
    assert summary.logged_densities == "total"
    assert summary.rewards.low == 0
    assert summary.rewards.high == 503
    assert summary.rewards.mean == pytest.approx(log.rewards.mean())
    assert summary.returns.high == 500 + 501 + 502 + 503


def test_last_states_that_were_not_logged_are_counted():
    summary = inspect(walk([4, 4, 4], [True, False, False]))
    assert summary.no_next_state == 2
    assert sum(summary.unusable.values()) == 2


def test_atoms_are_counted_only_where_an_extreme_repeats():
    actions = np.random.default_rng(3).normal(0, 1, (1000, 2))
    actions[:, 0] = np.clip(actions[:, 0], -1, 1)
    summary = inspect(walk([1000], [True], actions))
    clipped, free = summary.actions
    assert (clipped.low, clipped.high) == (-1, 1)
    assert clipped.at_low == (actions[:, 0] == -1).sum() > 100
    assert clipped.at_high == (actions[:, 0] == 1).sum() > 100
    assert (free.at_low, free.at_high) == (0, 0)
    assert summary.rows_on_bound == clipped.at_low + clipped.at_high
    assert any("sit exactly on a bound (dimensions 0)" in warning for warning in summary.warnings)


def test_uniform_actions_raise_no_warning():
    assert inspect(walk([100] * 9 + [50], [False] * 9 + [True])).warnings == ()


@pytest.mark.parametrize("rows", [60, 400, 3_000])
@pytest.mark.parametrize("usual", ["uniform", "bang-bang", "mostly zero"])
def test_one_action_of_a_million_is_warned_of_in_a_log_of_any_length(rows, usual):
    rng = np.random.default_rng(rows)
    actions = rng.uniform(-1, 1, (rows, 2))
    if usual != "uniform":
        actions = (
            np.sign(actions) if usual == "bang-bang" else np.where(rng.random((rows, 2)) < 0.05, actions, 0)
        )

    def far(log):
        return [warning for warning in inspect(log).warnings if "far outside" in warning]

    lengths, ends = [20] * (rows // 20), [False] * (rows // 20)
    assert far(walk(lengths, ends, actions)) == []
    actions[rows // 2, 1] = 1e6
    (warning,) = far(walk(lengths, ends, actions))
    assert warning.startswith("1 of the actions lies far outside all others in dimension 1")


def test_constant_columns_are_named():
    actions = np.random.default_rng(0).normal(size=(50, 3))
    actions[:, 1] = 0.25
    log = walk([25, 25], [False, True], actions)
    log.states[:, 2] = -7
    summary = inspect(log)
    assert summary.constant_states == (2,)
    assert summary.constant_actions == (1,)
    assert summary.actions[1].at_low == 0
    assert any("action dimensions 1 never change" in warning for warning in summary.warnings)


@pytest.mark.parametrize(
    "lengths, terminated, suspicious",
    [
        ([20] * 5 + [7], [True] * 6, True),  # every episode at the limit "terminates"
        ([20] * 5 + [7], [False] * 5 + [True], False),  # the limit is a timeout, as it should be
        ([20] * 5 + [7], [True] * 4 + [False, True], True),  # one honest label clears nothing of the others
        ([20, 19, 18, 7], [True] * 4, False),  # a single longest episode proves nothing
    ],
)
def test_timeouts_marked_as_terminals_are_suspected(lengths, terminated, suspicious):
    warnings = inspect(walk(lengths, terminated)).warnings
    assert any("20 steps is a time limit" in warning for warning in warnings) == suspicious


def test_broken_values_are_counted_not_refused(tmp_path, encoded):
    encoded["rewards"][3] = np.nan
    encoded["actions"][4:6, 1] = -np.inf
    encoded["observations"] = encoded["observations"].astype(np.float64)
    encoded["observations"][7, 0] = 1e200
    np.savez(tmp_path / "log.npz", **encoded)
    summary = inspect(load_dataset(tmp_path / "log.npz", check_finite=False))
    assert (summary.nan["rewards"], summary.nan["actions"]) == (1, 0)
    assert (summary.infinite["actions"], summary.infinite["observations"]) == (2, 1)
    assert summary.unusable["NaN or infinity in the row"] == 3  # row 3 is a cut row, unusable already
    assert np.isfinite(summary.rewards.mean)
    assert np.isfinite(summary.actions[1].low)
    assert any("NaN or infinity" in warning for warning in summary.warnings)
