import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths.kernel import optimal_bandwidth, variance_term
from maths.formulas import leading_order_mse


@pytest.mark.parametrize("d", [1, 3, 17])
def test_optimal_bandwidth_minimises_the_leading_order_mse(d):
    v, b2, n = jnp.float32(0.3), jnp.float32(0.02), 5_000
    h = optimal_bandwidth(v, b2, n, d)
    at, below, above = (float(leading_order_mse(h * f, v, b2, n, d)) for f in (1.0, 0.97, 1.03))
    assert at < below
    assert at < above


@pytest.mark.parametrize("d", [1, 4])
def test_bandwidth_shrinks_with_n_at_the_stated_rate(d):
    h = np.array([float(optimal_bandwidth(jnp.float32(1), jnp.float32(1), n, d)) for n in (10**3, 10**6)])
    assert np.log(h[1] / h[0]) / np.log(10**3) == pytest.approx(-1 / (d + 4), rel=1e-4)


def test_constants_of_any_size_do_not_overflow():
    assert float(optimal_bandwidth(jnp.float32(1e-30), jnp.float32(1e-30), 100, 2)) == pytest.approx(
        (2 / 400) ** (1 / 6)
    )
    assert np.isinf(float(optimal_bandwidth(jnp.float32(1.0), jnp.float32(0.0), 100, 2)))


def test_variance_term_is_the_formula():
    term = variance_term(jnp.float32(3.0), jnp.float32(2.0), jnp.float32(0.5), 2)
    assert float(term) == pytest.approx(9 * 2 / 0.5 / (4 * np.pi), rel=1e-5)
