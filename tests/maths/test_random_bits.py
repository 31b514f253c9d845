"""Random bits to uniform numbers and row numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths.sampling import row_numbers, uniforms

EXTREMES = np.array([0, 1, 0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF], np.uint32)


def random_bits(count: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    return np.concatenate([EXTREMES, drawn])


def test_uniforms_start_at_zero_and_end_below_one() -> None:
    u = np.asarray(uniforms(jnp.asarray(EXTREMES)))
    assert u[0] == 0.0
    assert u[-1] == 1.0 - 2.0**-24
    np.testing.assert_array_equal(u, (EXTREMES >> 8) / 2.0**24)


def test_uniforms_have_the_moments_of_the_uniform_law() -> None:
    u = np.asarray(uniforms(jax.random.bits(jax.random.key(0), (200_000,))), np.float64)
    assert abs(u.mean() - 0.5) < 4 * np.sqrt(1 / 12 / len(u))
    assert abs((u**2).mean() - 1 / 3) < 4 * np.sqrt(4 / 45 / len(u))


@pytest.mark.parametrize(
    "n", [1, 3, 40_000, 65_535, 65_536, 65_537, 100_003, 1_000_000, 10_000_019, 2**31 - 1]
)
def test_a_row_number_is_the_upper_half_of_the_product_of_bits_and_count(n: int) -> None:
    """⌊bits·n/2³²⌋: every row is the image of as many numbers as any other, give or take one."""
    w = random_bits(20_000)
    rows = np.asarray(row_numbers(jnp.asarray(w), n))
    np.testing.assert_array_equal(rows, (w.astype(np.uint64) * np.uint64(n)) >> np.uint64(32))
    assert rows.min() == 0
    assert rows.max() == n - 1


@pytest.mark.parametrize("n", [40_000, 100_003])
def test_rows_are_drawn_equally_often(n: int) -> None:
    """Where 16 bits would give some rows twice the others' share, or leave rows out."""
    size = 20 * n
    rows = np.asarray(row_numbers(jax.random.bits(jax.random.key(1), (size,)), n))
    counts = np.bincount(rows, minlength=n)
    chi_squared = ((counts - 20.0) ** 2 / 20.0).sum()
    assert counts.min() > 0
    assert abs(chi_squared - (n - 1)) < 4 * np.sqrt(2 * (n - 1))
