"""Draws by proposal and acceptance against the weights they stand for."""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths.kernel import log_clipped_weight
from kmifqe.maths.sampling import (
    LARGEST_LOG,
    Accepted,
    Envelope,
    Interval,
    build_envelope,
    draw_accepted,
    log_bound,
)

D = 3
PAPER_CLIP = (1e-3, 2.0)
UNCLIPPED = (0.0, float("inf"))
INTERVAL = (0.35, 0.75)
MIDDLE = float(np.sqrt(np.prod(INTERVAL)))

factors = pytest.mark.parametrize("k", [1, D])


class Rows(NamedTuple):
    squared: jax.Array
    log_mu: jax.Array


def interval() -> Interval:
    return Interval(*map(jnp.float32, INTERVAL))


@cache
def some_rows(k: int, n: int = 300) -> Rows:
    """Return rows from on top of the target action to far away, some where the density is nearly 0."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((n, D)) * np.exp(rng.uniform(-3, 1, (n, 1)))
    log_mu = -1.0 + rng.standard_normal((n, D))
    z[0] = 0.0
    if k == 1:
        z, log_mu = np.sqrt((z**2).sum(axis=1, keepdims=True)), log_mu.sum(axis=1, keepdims=True)
    return Rows(jnp.asarray(z**2, jnp.float32), jnp.asarray(log_mu, jnp.float32))


def log_weights(rows: Rows, h: float, clip: tuple[float, float]) -> np.ndarray:
    log_w = jax.vmap(lambda s, m: log_clipped_weight(s, jnp.float32(h), m, D, clip))(*rows)
    return np.asarray(log_w, np.float64)


# --- The bound


@factors
@pytest.mark.parametrize("clip", [PAPER_CLIP, UNCLIPPED, (0.0, 2.0), (1e-3, float("inf"))])
@pytest.mark.parametrize("ends", [INTERVAL, (0.01, 2.0), (0.5, 0.5)])
def test_no_bandwidth_of_the_interval_gives_a_weight_above_the_bound(
    k: int, clip: tuple[float, float], ends: tuple[float, float]
) -> None:
    rows = some_rows(k)
    low, high = map(jnp.float32, ends)
    inner = jnp.exp(jnp.linspace(jnp.log(low), jnp.log(high), 201)).clip(low, high)
    grid = jnp.stack([low, *inner[1:-1], high])
    bound = np.asarray(jax.vmap(lambda s, m: log_bound(s, Interval(low, high), m, D, clip))(*rows))
    at_all = jax.vmap(lambda h: jax.vmap(lambda s, m: log_clipped_weight(s, h, m, D, clip))(*rows))
    log_w = np.asarray(at_all(grid))
    rounding = 2e-6 * (1.0 + np.abs(log_w))
    assert (log_w <= bound + rounding).all()
    if k == 1:
        # One factor: the bound is the largest weight itself, up to the grid's step.
        np.testing.assert_allclose(bound, log_w.max(axis=0), atol=0.02 * D * np.log(ends[1] / ends[0]) + 1e-5)


@factors
def test_the_bound_of_one_bandwidth_is_the_weight(k: int) -> None:
    h = jnp.float32(MIDDLE)
    bound = jax.vmap(lambda s, m: log_bound(s, Interval(h, h), m, D, PAPER_CLIP))(*some_rows(k))
    np.testing.assert_allclose(bound, log_weights(some_rows(k), MIDDLE, PAPER_CLIP), rtol=1e-5, atol=1e-5)


# --- Draws

BATCHES, PROPOSALS = 600, 256


@cache
def paper_envelope(k: int) -> Envelope:
    rows = some_rows(k)
    return build_envelope(rows.squared, interval(), rows.log_mu, D, PAPER_CLIP)


@partial(jax.jit, static_argnames=("clip", "size"))
def many_draws(
    envelope: Envelope, rows: Rows, h: jax.Array, clip: tuple[float, float], size: int
) -> Accepted:
    """Return `BATCHES` minibatches of `size` rows, each from `PROPOSALS` proposals."""
    u = jax.random.uniform(jax.random.key(0), (BATCHES, len(envelope.sums) + 1, PROPOSALS))

    def of_rows(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        return rows.squared[i], rows.log_mu[i]

    return jax.vmap(lambda u: draw_accepted(u, envelope, h, of_rows, D, clip, size))(u)


def assert_drawn_in_proportion(rows: np.ndarray, weights: np.ndarray) -> None:
    """Pearson's χ² of row counts against weights, the rarest rows as one cell, within 4 standard errors."""
    expected = len(rows) * weights / weights.sum()
    counts = np.bincount(rows, minlength=len(weights)).astype(float)
    rare = expected < 10
    expected = np.append(expected[~rare], expected[rare].sum())
    counts = np.append(counts[~rare], counts[rare].sum())
    freedom = len(expected) - 1
    assert freedom > 30
    chi_squared = ((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    assert abs(chi_squared - freedom) < 4 * np.sqrt(2 * freedom)


@factors
@pytest.mark.parametrize("h", [INTERVAL[0], 0.45, MIDDLE, INTERVAL[1]])
@pytest.mark.parametrize("size", [64, PROPOSALS], ids=["full", "short"])
def test_rows_are_drawn_in_proportion_to_their_weights_at_any_bandwidth_of_the_interval(
    k: int, h: float, size: int
) -> None:
    """As full resampling does. With as many places as proposals every minibatch comes out short."""
    drawn = many_draws(paper_envelope(k), some_rows(k), jnp.float32(h), PAPER_CLIP, size)
    filled = np.asarray(drawn.filled)
    assert filled.all() if size == 64 else not filled.all(axis=1).any()
    weights = np.exp(log_weights(some_rows(k), h, PAPER_CLIP))
    assert_drawn_in_proportion(np.asarray(drawn.rows)[filled], weights)


def test_the_proposals_alone_are_not_drawn_from_the_weights() -> None:
    """What acceptance is for: the test above can tell the bound from the weight."""
    rows = some_rows(1)
    bound = jax.vmap(lambda s, m: log_bound(s, interval(), m, D, PAPER_CLIP))(*rows)
    drawn = many_draws(paper_envelope(1), rows, jnp.float32(INTERVAL[0]), PAPER_CLIP, 64)
    with pytest.raises(AssertionError):
        assert_drawn_in_proportion(np.asarray(drawn.rows).ravel(), np.exp(np.asarray(bound, np.float64)))


@factors
@pytest.mark.parametrize("h", [INTERVAL[0], MIDDLE, INTERVAL[1]])
def test_mean_and_mean_square_of_the_weights_are_estimated_without_bias(k: int, h: float) -> None:
    drawn = many_draws(paper_envelope(k), some_rows(k), jnp.float32(h), PAPER_CLIP, 64)
    w = np.exp(log_weights(some_rows(k), h, PAPER_CLIP))
    for estimates, exact in ((drawn.mean_weight, w.mean()), (drawn.mean_square, (w**2).mean())):
        e = np.asarray(estimates, np.float64)
        assert abs(e.mean() - exact) < 4 * e.std(ddof=1) / np.sqrt(BATCHES)
        assert e.std() < exact, "an estimate this wide would show nothing"


@factors
def test_weights_beyond_float32_are_drawn_alike_and_their_mean_is_capped(k: int) -> None:
    """A density e⁻¹²⁰ times as high multiplies all weights by e¹²⁰, which changes no draw."""
    rows, h = some_rows(k), jnp.float32(MIDDLE)
    thin = Rows(rows.squared, rows.log_mu - 120.0 / k)
    one, other = (
        many_draws(build_envelope(r.squared, interval(), r.log_mu, D, UNCLIPPED), r, h, UNCLIPPED, 64)
        for r in (rows, thin)
    )
    same = np.asarray(one.rows) == np.asarray(other.rows)
    assert same.mean() > 0.99, "up to rounding of a logarithm"
    assert np.isfinite(other.mean_square).all()
    assert (np.asarray(other.mean_weight) <= np.exp(LARGEST_LOG) * 1.001).all()
    ratio = lambda drawn: float(np.mean(drawn.mean_weight**2 / drawn.mean_square))  # noqa: E731
    assert ratio(other) == pytest.approx(ratio(one), rel=1e-3)
