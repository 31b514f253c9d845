from __future__ import annotations

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.mdp import columns as fill


def test_slices_cover_every_row_once_in_whole_multiples():
    rows = [r for part in fill.row_slices(10_000_001, 44, multiple=7) for r in (part.start, part.stop)]
    assert rows[0] == 0
    assert rows[-1] == 10_000_001
    assert rows[1:-1:2] == rows[2::2]
    assert all(start % 7 == 0 for start in rows[::2])


def test_counts_of_bad_values_span_pieces(monkeypatch):
    monkeypatch.setattr(fill, "CHUNK_BYTES", 16)
    values = np.zeros((10, 2), np.float32)
    values[3, 1] = np.nan
    values[8] = np.inf
    with pytest.raises(InputError, match="x: f holds NaN or infinity in 3 of 20 values, first at row 3"):
        fill.fill_numbers(np.empty((10, 2), np.float32), fill.pieces_of(values), "f", "x")


def test_unchecked_values_pass_through_and_overflow_to_infinity():
    target = np.empty(3, np.float32)
    fill.fill_numbers(target, fill.pieces_of(np.array([1e300, np.nan, 2.0])), "f", "x", check_finite=False)
    assert np.array_equal(target, [np.inf, np.nan, 2.0], equal_nan=True)
