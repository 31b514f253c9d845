from __future__ import annotations

import numpy as np
import pytest

from kmifqe.data import fill
from kmifqe.data.align import Columns, align


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
    assert np.flatnonzero(align(columns(10), max_episode_steps=limit).ends).tolist() == list(ends)


def test_the_count_of_steps_restarts_at_every_end():
    terminated = np.zeros(10, bool)
    terminated[2] = True
    result = align(columns(10, terminated=terminated), max_episode_steps=4)
    assert np.flatnonzero(result.ends).tolist() == [2, 6, 9]
    assert result.notes == ("1 episodes were cut after max_episode_steps = 4",)


@pytest.mark.parametrize("chunk_bytes", [4, 12, 1 << 20])
def test_alignment_does_not_depend_on_the_chunk_size(monkeypatch, chunk_bytes):
    cut = np.zeros(50, bool)
    cut[[6, 7, 30, 49]] = True
    monkeypatch.setattr(fill, "CHUNK_BYTES", chunk_bytes)
    plain = align(columns(50, cut=cut))
    given = align(columns(50, cut=cut, next_states=np.arange(1, 51, dtype=np.float32)[:, None]))
    expected = np.where(cut, 0, np.arange(1, 51))
    assert np.array_equal(plain.next_states[:, 0], expected)
    assert np.array_equal(plain.next_actions[:, 0], np.where(cut, 0, expected + 0.5))
    assert np.array_equal(given.next_states[:, 0], np.arange(1, 51))
    assert np.array_equal(given.next_actions, plain.next_actions)
    assert np.array_equal(plain.has_next_state, ~cut)
    assert given.has_next_state.all()


def test_a_single_row_is_one_episode():
    result = align(columns(1))
    assert result.ends.tolist() == [True]
    assert result.next_actions.shape == (1, 1)
