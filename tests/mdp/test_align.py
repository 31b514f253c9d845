from __future__ import annotations

import numpy as np
import pytest

from kmifqe.mdp import columns as fill
from kmifqe.mdp.columns import Columns
from kmifqe.mdp.transitions import Transitions


def columns(n: int, **changes) -> Columns:
    states = np.arange(n, dtype=np.float32)[:, None]
    fields = {
        "states": states,
        "actions": states + 0.5,
        "rewards": states[:, 0],
        "terminated": np.zeros(n, bool),
        "cut": np.zeros(n, bool),
        "cuts_are_marked": True,
    }
    return Columns(**{**fields, **changes})


@pytest.mark.parametrize(
    "limit, ends", [(4, [3, 7, 9]), (5, [4, 9]), (10, [9]), (99, [9]), (1, range(10)), (0, [9])]
)
def test_no_episode_is_longer_than_max_episode_steps(limit, ends):
    assert np.flatnonzero(
        Transitions.from_columns(columns(10), max_episode_steps=limit).ends
    ).tolist() == list(ends)


def test_the_count_of_steps_restarts_at_every_end():
    terminated = np.zeros(10, bool)
    terminated[2] = True
    result = Transitions.from_columns(columns(10, terminated=terminated), max_episode_steps=4)
    assert np.flatnonzero(result.ends).tolist() == [2, 6, 9]
    assert result.notes == ("1 cut was added where an episode reached the time limit of 4 steps",)


@pytest.mark.parametrize("chunk_bytes", [4, 12, 1 << 20])
def test_alignment_does_not_depend_on_the_chunk_size(monkeypatch, chunk_bytes):
    cut = np.zeros(50, bool)
    cut[[6, 7, 30, 49]] = True
    monkeypatch.setattr(fill, "CHUNK_BYTES", chunk_bytes)
    plain = Transitions.from_columns(columns(50, cut=cut))
    given = Transitions.from_columns(
        columns(50, cut=cut, next_states=np.arange(1, 51, dtype=np.float32)[:, None])
    )
    expected = np.where(cut, 0, np.arange(1, 51))
    assert np.array_equal(plain.next_states[:, 0], expected)
    assert np.array_equal(plain.next_actions[:, 0], np.where(cut, 0, expected + 0.5))
    assert np.array_equal(given.next_states[:, 0], np.arange(1, 51))
    assert np.array_equal(given.next_actions, plain.next_actions)
    assert np.array_equal(plain.has_next_state, ~cut)
    assert given.has_next_state.all()


def test_a_single_row_is_one_episode():
    result = Transitions.from_columns(columns(1))
    assert result.ends.tolist() == [True]
    assert result.next_actions.shape == (1, 1)


@pytest.mark.parametrize("chunk_bytes", [8, 1 << 20])
def test_a_rounding_is_not_the_end_of_an_episode(monkeypatch, chunk_bytes):
    """As an observation may round where its program works it out twice, also where its column passes by zero."""
    monkeypatch.setattr(fill, "CHUNK_BYTES", chunk_bytes)
    states = np.stack([np.arange(-5, 6), np.cos(np.arange(11))], axis=1).astype(np.float32)
    states[5] = 0.0
    rounded = np.concatenate([states[1:], states[:1]]) + np.array([9e-7, -9e-7], np.float32)
    assert Transitions.from_columns(columns(11, states=states, next_states=rounded)).ends.nonzero()[
        0
    ].tolist() == [10]

    # Two millionths of the column's largest: another episode's first state.
    rounded[4, 1] = states[5, 1] + 2e-6
    rounded[7] = np.nan  # not logged
    again = Transitions.from_columns(columns(11, states=states, next_states=rounded, cuts_are_marked=False))
    assert again.ends.nonzero()[0].tolist() == [4, 7, 10]
    assert again.has_next_state.nonzero()[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]


def test_a_state_that_is_not_finite_sets_no_size_for_roundings():
    states = np.array([[0.0], [1.0], [np.inf], [2.0], [3.0]], np.float32)
    next_states = np.array([[1.1], [np.inf], [2.0], [3.0], [4.0]], np.float32)
    found = Transitions.from_columns(columns(5, states=states, next_states=next_states), check_finite=False)
    assert found.ends.nonzero()[0].tolist() == [0, 4]
