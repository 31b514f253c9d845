from __future__ import annotations

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.mdp.columns import columns_from_arrays
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions


def test_successors_stay_inside_episodes(encoded, log):
    e, t = log.states.T
    assert np.array_equal(log.next_states, np.stack([e, t + 1], axis=1))
    ends = log.terminated | log.truncated
    assert np.array_equal(ends, encoded["terminals"] | encoded["timeouts"])
    assert np.array_equal(log.has_next_action, ~ends)
    expected = np.where(ends[:, None], 0, np.stack([e, t + 1, e * (t + 1)], axis=1))
    assert np.array_equal(log.next_actions, expected)
    assert np.array_equal(log.episode, e.astype(np.int32))
    assert log.has_next_state.all()


def test_without_next_observations_the_last_state_of_an_episode_is_unknown(encoded):
    del encoded["next_observations"]
    log = Transitions.from_arrays(**encoded)
    ends = log.terminated | log.truncated
    assert np.array_equal(log.has_next_state, ~ends)
    assert (log.next_states[ends] == 0).all()
    e, t = log.states[~ends].T
    assert np.array_equal(log.next_states[~ends], np.stack([e, t + 1], axis=1))


def test_the_last_row_ends_an_episode_even_if_unmarked(encoded):
    encoded["timeouts"][-1] = False
    assert Transitions.from_arrays(**encoded).truncated[-1]


def test_terminated_wins_over_a_timeout_on_the_same_row(encoded):
    encoded["timeouts"] |= encoded["terminals"]
    log = Transitions.from_arrays(**encoded)
    assert np.array_equal(log.terminated, encoded["terminals"])
    assert not (log.terminated & log.truncated).any()


def test_unmarked_ends_are_found_from_next_observations(encoded, same_log):
    marked = Transitions.from_arrays(**encoded)
    encoded["timeouts"] = None
    found = Transitions.from_arrays(**encoded)
    same_log(found, marked)
    assert "timeouts is missing; 2 episode ends" in found.notes[0]


def test_a_contradicted_timeouts_field_is_corrected_and_said(encoded, same_log):
    marked = Transitions.from_arrays(**encoded)
    row = int(np.flatnonzero(encoded["timeouts"])[0])
    encoded["timeouts"][row] = False
    corrected = Transitions.from_arrays(**encoded)
    same_log(corrected, marked)
    assert "1 episode ends were not marked" in corrected.notes[0]


def flat(episodes, length, **ids):
    """Return a log of `episodes` equally long ones whose states all differ, with next observations and timeouts."""
    n = episodes * length
    states = np.random.default_rng(0).normal(size=(n + episodes, 2)).astype(np.float32)
    states = states.reshape(episodes, length + 1, 2)
    return {
        "observations": states[:, :-1].reshape(n, 2),
        "next_observations": states[:, 1:].reshape(n, 2),
        "actions": np.arange(n, dtype=np.float32)[:, None],
        "rewards": np.zeros(n, np.float32),
        "terminals": np.zeros(n, bool),
        "timeouts": np.arange(1, n + 1) % length == 0,
    }


@pytest.mark.parametrize("ids", [False, True], ids=["timeouts", "episode ids"])
def test_a_row_that_was_lost_inside_an_episode_begins_no_episode(ids):
    fields = flat(episodes=20, length=10)
    whole = Transitions.from_arrays(**fields)
    lost = np.array([3, 57, 58, 123])  # two of them neighbours
    kept = np.delete(np.arange(200), lost)
    columns = columns_from_arrays({name: array[kept] for name, array in fields.items()}, "log")
    columns.has_episode_ids = ids
    log = Transitions.from_columns(columns)
    assert log.n_episodes == whole.n_episodes
    np.testing.assert_array_equal(log.states[log.first_rows], whole.states[whole.first_rows])
    np.testing.assert_array_equal(log.episode, whole.episode[kept])
    assert "rows are missing in 3 places inside episodes" in log.notes[0]
    # Only the row before a gap is lost with it: its next row is not its successor.
    before = np.isin(kept, [2, 56, 122])
    np.testing.assert_array_equal(log.before_lost_rows, before)
    np.testing.assert_array_equal(log.has_next_action, whole.has_next_action[kept] & ~before)
    problem = Problem.build(log, lambda s: np.zeros((len(s), 1)), None, 0.9)
    assert problem.counts.used == len(kept) - 3
    np.testing.assert_array_equal(problem.first_states, whole.states[whole.first_rows])


def test_an_end_that_was_not_marked_is_no_lost_row():
    """Where two episodes would have to be longer together than any whole one, the end was not marked."""
    fields = flat(episodes=20, length=10)
    fields["timeouts"][59] = False
    log = Transitions.from_arrays(**fields)
    assert log.n_episodes == 20
    assert "1 episode ends were not marked" in log.notes[0]
    fields["timeouts"][:] = False  # the field is there and says nothing
    assert Transitions.from_arrays(**fields).n_episodes == 20


def test_an_episode_with_an_id_begins_once_however_it_is_cut():
    fields = flat(episodes=2, length=10)
    columns = columns_from_arrays(fields, "log")
    columns.has_episode_ids = True
    log = Transitions.from_columns(columns, max_episode_steps=4)
    assert log.first_rows.tolist() == [0, 10]
    assert np.flatnonzero(~log.has_next_action).tolist() == [3, 7, 9, 13, 17, 19]


def test_nan_next_observation_at_an_end_means_not_logged(encoded):
    ends = np.flatnonzero(encoded["timeouts"])
    encoded["next_observations"][ends[0]] = np.nan
    before = encoded["next_observations"].copy()
    log = Transitions.from_arrays(**encoded)
    assert not log.has_next_state[ends[0]]
    assert log.has_next_state.sum() == len(log) - 1
    assert (log.next_states[ends[0]] == 0).all()
    assert np.array_equal(encoded["next_observations"], before, equal_nan=True), (
        "the caller's array was changed"
    )


def test_shuffled_rows_are_refused(encoded):
    order = np.random.default_rng(0).permutation(len(encoded["rewards"]))
    encoded = {field: array[order] for field, array in encoded.items()}
    encoded["timeouts"] = encoded["timeouts"] & False
    with pytest.raises(InputError, match=r"next_observations differs .* expected rows in time order"):
        Transitions.from_arrays(**encoded)


def test_float32_arrays_are_not_copied_and_read_only_ones_work(encoded):
    states = encoded["observations"]
    states.flags.writeable = False
    assert np.shares_memory(Transitions.from_arrays(**encoded).states, states)


def test_vectors_and_single_columns_are_the_same(encoded, same_log):
    flat = Transitions.from_arrays(
        encoded["observations"][:, 1], encoded["actions"][:, 0], encoded["rewards"], encoded["terminals"]
    )
    columns = Transitions.from_arrays(
        encoded["observations"][:, 1:],
        encoded["actions"][:, :1],
        encoded["rewards"][:, None],
        encoded["terminals"][:, None],
    )
    same_log(flat, columns)
    assert flat.states.shape == (16, 1)


@pytest.mark.parametrize(
    "field, change, message",
    [
        ("rewards", lambda a: a[:-1], "rewards has 15 rows; observations has 16"),
        ("timeouts", lambda a: a[:-2], "timeouts has 14 rows; observations has 16"),
        (
            "rewards",
            lambda a: np.where(a == 2, np.nan, a),
            "rewards holds NaN or infinity in 1 of 16 values, first at row 2",
        ),
        ("actions", lambda a: np.where(a == 2, np.inf, a), "actions holds NaN or infinity"),
        (
            "observations",
            lambda a: a.astype(np.float64) * 1e300,
            r"observations holds 1e\+300 at row 1, beyond float32",
        ),
        ("observations", lambda a: a[:0], "observations is empty"),
        ("observations", lambda a: a.reshape(16, 2, 1), r"observations has shape \(16, 2, 1\); expected"),
        ("actions", lambda a: a[:, :0], r"actions has shape \(16, 0\); expected"),
        ("actions", lambda a: a.astype(str), "actions has type <U.*; expected numbers"),
        ("actions", lambda a: a.astype(object), "actions has type object; expected numbers"),
        ("actions", lambda a: a.astype(complex), "actions has type complex128; expected numbers"),
        ("terminals", lambda a: a * 2, r"terminals holds 2 at row 2; expected true/false flags"),
        (
            "terminals",
            lambda a: np.where(a, np.nan, 0.0),
            "terminals holds nan at row 2; expected true/false",
        ),
        ("timeouts", lambda a: a.astype(str), "timeouts has type <U5; expected true/false flags"),
        ("next_observations", lambda a: a[:, :1], "next_observations has 1 columns; observations has 2"),
        (
            "next_observations",
            lambda a: np.where(a == 4, np.nan, a),
            "next_observations holds NaN or infinity at row",
        ),
        ("action_log_probs", lambda a: np.stack([a, a], 1), "action_log_probs has 2 columns; actions has 3"),
        ("action_log_probs", lambda a: a - np.inf, "action_log_probs holds NaN or infinity in 16 of 16"),
    ],
)
def test_broken_arrays_are_refused_with_a_sentence(encoded, field, change, message):
    with pytest.raises(InputError, match=f"^mylog: {message}"):
        Transitions.from_arrays(**{**encoded, field: change(encoded[field])}, name="mylog")


def test_some_episodes_are_whole_and_in_time_order(log):
    lengths = np.bincount(log.episode)
    part = log.some_episodes(int(lengths.sum() - lengths.min()))
    assert 0 < part.n_episodes < log.n_episodes
    numbers = part.states[:, 0]  # a state is its episode's number and its step
    kept = np.isin(log.states[:, 0], numbers)
    for name in ("states", "actions", "rewards", "next_states", "terminated", "truncated", "has_next_action"):
        np.testing.assert_array_equal(getattr(part, name), getattr(log, name)[kept])
    np.testing.assert_array_equal(part.episode, np.searchsorted(np.unique(numbers), numbers))
    assert log.some_episodes(len(log)).n_episodes == log.n_episodes
