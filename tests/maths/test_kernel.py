import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths.kernel import clipped_weight, effective_sample_size, kernel_roughness, log_kernel

UNCLIPPED = (0.0, float("inf"))


def grid(d, reach=8.0, points=161):
    axis = np.linspace(-reach, reach, points)
    z = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), -1).reshape(-1, d)
    return jnp.asarray(z, jnp.float32), (axis[1] - axis[0]) ** d


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("h", [0.7, 1.0])
def test_kernel_integrates_to_one_with_covariance_h_squared(d, h):
    z, cell = grid(d)
    density = np.exp(
        np.asarray(jax.vmap(log_kernel, (0, None, None))(jnp.sum(z**2, axis=1), h, d), np.float64)
    )
    assert density.sum() * cell == pytest.approx(1.0, abs=1e-5)
    covariance = (density[:, None, None] * np.asarray(z)[:, :, None] * np.asarray(z)[:, None, :]).sum(
        0
    ) * cell
    np.testing.assert_allclose(covariance, h**2 * np.eye(d), atol=1e-4)


@pytest.mark.parametrize("d", [1, 2])
def test_roughness_is_the_integral_of_the_squared_kernel(d):
    z, cell = grid(d)
    density = np.exp(
        np.asarray(jax.vmap(log_kernel, (0, None, None))(jnp.sum(z**2, axis=1), 1.0, d), np.float64)
    )
    assert kernel_roughness(d) == pytest.approx((density**2).sum() * cell, rel=1e-5)


def test_total_weight_is_kernel_over_density():
    z, h, log_mu = jnp.array([0.3, -0.2, 0.1]), 0.4, jnp.array([-1.3])
    w = clipped_weight(jnp.sum(z**2, keepdims=True), h, log_mu, 3, UNCLIPPED)
    assert float(w) == pytest.approx(float(jnp.exp(log_kernel(jnp.sum(z**2), h, 3) + 1.3)), rel=1e-5)


def test_unclipped_factors_multiply_to_the_total_weight():
    z, h, log_mu = jnp.array([0.3, -0.2, 0.1]), 0.4, jnp.array([-1.3, 0.2, -0.4])
    by_dimension = clipped_weight(z**2, h, log_mu, 3, UNCLIPPED)
    total = clipped_weight(jnp.sum(z**2, keepdims=True), h, jnp.sum(log_mu, keepdims=True), 3, UNCLIPPED)
    assert float(by_dimension) == pytest.approx(float(total), rel=1e-5)


def test_clip_bounds_the_total_or_each_factor():
    far, near, log_mu = jnp.array([1e6, 1e6]), jnp.zeros(2), jnp.full(2, -20.0)
    low, high = 1e-3, 2.0
    for squared, bound in ((far, low), (near, high)):
        total = clipped_weight(squared.sum(keepdims=True), 0.5, log_mu.sum(keepdims=True), 2, (low, high))
        each = clipped_weight(squared, 0.5, log_mu, 2, (low, high))
        assert float(total) == pytest.approx(bound, rel=1e-5)
        assert float(each) == pytest.approx(bound**2, rel=1e-5)


def test_mean_weight_is_one_when_the_density_is_exact():
    """E_μ[wᴷ] = ∫ K = 1, within its standard error, whatever the target action and the bandwidth."""
    rng, n, d = np.random.default_rng(0), 200_000, 2
    mean, std, target = np.array([0.2, -0.1]), np.array([0.6, 0.9]), np.array([0.5, 0.3])
    actions = mean + std * rng.standard_normal((n, d))
    log_mu = -0.5 * ((actions - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    z2 = jnp.asarray((actions - target) ** 2, jnp.float32)
    for h in (0.15, 0.4):
        w = jax.vmap(lambda s, m, h=h: clipped_weight(s, h, m, d, UNCLIPPED))(
            z2, jnp.asarray(log_mu, jnp.float32)
        )
        w = np.asarray(w, np.float64)
        assert abs(w.mean() - 1.0) < 4 * w.std() / np.sqrt(n)


def test_effective_sample_size_counts_equal_weights():
    assert float(effective_sample_size(jnp.full(7, 1e-25))) == pytest.approx(7.0, rel=1e-5)
    assert float(effective_sample_size(jnp.array([5.0, 0.0, 0.0]))) == pytest.approx(1.0)
