import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths.sampling import draw, partial_sums
from maths.formulas import resample


@pytest.mark.parametrize("n", [1, 63, 64, 65, 5000])
def test_draws_follow_the_weights(n):
    """Resampled means equal weighted means within their standard errors."""
    rng = np.random.default_rng(n)
    w = rng.exponential(size=n) ** 3
    f = rng.standard_normal(n)
    size = 200_000
    rows = np.asarray(resample(jax.random.key(0), jnp.asarray(w, jnp.float32), size))
    mean = (w * f).sum() / w.sum()
    spread = np.sqrt((w * (f - mean) ** 2).sum() / w.sum())
    assert abs(f[rows].mean() - mean) <= 4 * spread / np.sqrt(size) + 1e-6


def test_every_row_is_drawn_as_often_as_its_weight_says():
    n, size = 300, 300_000
    w = np.random.default_rng(0).uniform(0.2, 2.0, n)
    counts = np.bincount(resample(jax.random.key(1), jnp.asarray(w, jnp.float32), size), minlength=n)
    expected = size * w / w.sum()
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_squared - (n - 1)) < 4 * np.sqrt(2 * (n - 1))


def test_rows_of_weight_zero_are_never_drawn():
    w = np.zeros(10_000, np.float32)
    w[[17, 8_000]] = [1e-6, 3e-6]
    rows = np.asarray(resample(jax.random.key(2), jnp.asarray(w), 50_000))
    assert set(np.unique(rows)) == {17, 8_000}
    assert abs((rows == 17).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 50_000)


def test_neighbours_stay_apart_among_a_million_rows():
    """One float32 running sum resolves 1/16 here: rows of weight 0.01 would be merged or lost."""
    n = 1_000_000
    w = np.full(n, 0.01, np.float32)
    w[: n // 2] = 1.99
    rows = np.asarray(resample(jax.random.key(3), jnp.asarray(w), 400_000))
    late = rows[rows >= n // 2]
    share = 0.01 / 2.0
    assert abs(len(late) / len(rows) - share) < 4 * np.sqrt(share / len(rows))
    assert abs((late % 2).mean() - 0.5) < 4 * 0.5 / np.sqrt(len(late))


@pytest.mark.parametrize("n", [1, 65, 5000])
def test_the_least_and_the_largest_number_lead_to_the_first_and_the_last_row(n):
    sums = partial_sums(jnp.ones(n))
    u = jnp.array([0.0, 1.0 - 2.0**-24])
    rows = draw(jnp.broadcast_to(u, (len(sums), 2)), sums)
    assert rows.tolist() == [0, n - 1]
