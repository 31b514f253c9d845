import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kmifqe.maths import metric as eigen
from kmifqe.maths.metric import metric_root, optimal_metric

finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def symmetric(rng, d, signs=None):
    U, _ = np.linalg.qr(rng.standard_normal((d, d)))
    eigenvalues = rng.uniform(0.5, 3.0, d) * (np.ones(d) if signs is None else signs)
    return (U * eigenvalues) @ U.T


def bound(A, H):
    """tr(A⁻¹H)², what the metric minimises."""
    return np.trace(np.linalg.solve(np.asarray(A, np.float64), H)) ** 2


@pytest.mark.parametrize("d", [1, 2, 3, 5, 8])
def test_metric_is_positive_definite_with_unit_determinant(d):
    rng = np.random.default_rng(d)
    for _ in range(5):
        A = np.asarray(optimal_metric(jnp.asarray(symmetric(rng, d, rng.choice([-1, 1], d)), jnp.float32)))
        np.testing.assert_allclose(A, A.T, atol=1e-5)
        assert np.linalg.eigvalsh(A).min() > 0
        assert np.linalg.det(A) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("d", [2, 3, 5, 8])
def test_metric_turns_with_the_hessian(d):
    rng = np.random.default_rng(d)
    H = symmetric(rng, d, rng.choice([-1, 1], d))
    R, _ = np.linalg.qr(rng.standard_normal((d, d)))
    A, turned = (np.asarray(optimal_metric(jnp.asarray(X, jnp.float32))) for X in (H, R @ H @ R.T))
    np.testing.assert_allclose(turned, R @ A @ R.T, atol=2e-4)


@pytest.mark.parametrize("d", [2, 3, 6])
def test_mixed_signs_without_floor_leave_no_bias(d):
    rng = np.random.default_rng(d)
    signs = np.where(np.arange(d) == 0, -1, 1)
    H = symmetric(rng, d, signs)
    A = optimal_metric(jnp.asarray(H, jnp.float32), floor=0.0)
    assert np.sqrt(bound(A, H)) < 1e-3 * np.abs(np.linalg.eigvalsh(H)).sum()


@pytest.mark.parametrize("d", [2, 3, 6])
def test_definite_hessian_without_floor_attains_the_minimum(d):
    """For H ≻ 0, tr(A⁻¹H) ≥ d |H|^(1/d) by the means' inequality, with equality at A*."""
    H = symmetric(np.random.default_rng(d), d)
    A = optimal_metric(jnp.asarray(H, jnp.float32), floor=0.0)
    assert np.sqrt(bound(A, H)) == pytest.approx(d * np.linalg.det(H) ** (1 / d), rel=1e-3)


def test_metric_never_raises_the_bias_bound_of_the_identity():
    rng = np.random.default_rng(0)
    for d in (1, 2, 3):
        hessians = [symmetric(rng, d, rng.choice([-1, 1], d)) for _ in range(50)]
        metrics = jax.vmap(lambda H: optimal_metric(H, floor=0.0))(jnp.asarray(hessians, jnp.float32))
        for A, H in zip(metrics, hessians):
            assert bound(A, H) <= bound(np.eye(d), H) * (1 + 1e-3) + 1e-5


def test_floor_bounds_the_condition_number():
    H = jnp.diag(jnp.array([1.0, 0.0, 0.0]))
    eigenvalues = np.linalg.eigvalsh(np.asarray(optimal_metric(H, floor=0.1)))
    assert eigenvalues.max() / eigenvalues.min() == pytest.approx(11.0, rel=1e-3)


@pytest.mark.parametrize("H", [np.zeros((3, 3)), np.full((2, 2), 1e-38), -np.zeros((1, 1))])
def test_flat_q_gives_the_identity(H):
    np.testing.assert_allclose(optimal_metric(jnp.asarray(H, jnp.float32)), np.eye(len(H)), atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (3, 3), elements=finite32))
def test_no_finite_hessian_gives_nan(H):
    A, L = jax.jit(optimal_metric)(H), jax.jit(metric_root)(H)
    assert np.isfinite(A).all()
    assert np.isfinite(L).all()
    assert np.linalg.eigvalsh(np.asarray(A, np.float64)).min() > 0


def test_root_is_symmetric_and_squares_to_the_metric():
    H = jnp.asarray(symmetric(np.random.default_rng(3), 4, np.array([1, -1, 1, 1])), jnp.float32)
    L = np.asarray(metric_root(H))
    np.testing.assert_allclose(L, L.T, atol=1e-5)
    np.testing.assert_allclose(L @ L.T, optimal_metric(H), atol=1e-4)


def test_root_follows_a_permutation_of_the_axes():
    """Why dimension-wise clipping uses the symmetric root: renaming axes renames factors, no more."""
    rng = np.random.default_rng(4)
    H, delta, order = symmetric(rng, 4), rng.standard_normal(4), np.array([2, 0, 3, 1])
    z = metric_root(jnp.asarray(H, jnp.float32)) @ delta
    permuted = metric_root(jnp.asarray(H[np.ix_(order, order)], jnp.float32)) @ delta[order]
    np.testing.assert_allclose(permuted, z[order], atol=1e-4)


def test_root_of_a_diagonal_hessian_keeps_to_the_axes():
    L = np.asarray(metric_root(jnp.diag(jnp.array([4.0, 1.0, 0.2]))))
    np.testing.assert_allclose(L, np.diag(np.diag(L)), atol=1e-6)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6, 7])
def test_eigenvectors_diagonalise(d):
    rng = np.random.default_rng(d)
    S = rng.standard_normal((200, d, d))
    S = jnp.asarray(S + S.transpose(0, 2, 1), jnp.float32)
    values, U = jax.vmap(eigen.eigh)(S)
    np.testing.assert_allclose((U * values[:, None, :]) @ U.transpose(0, 2, 1), S, atol=2e-5)
    np.testing.assert_allclose(U @ U.transpose(0, 2, 1), np.broadcast_to(np.eye(d), S.shape), atol=1e-5)
    np.testing.assert_allclose(np.sort(values, axis=1), np.linalg.eigvalsh(S), atol=2e-5)


@pytest.mark.parametrize("d", [3, 5, 8, 17])
def test_metric_is_continuous_where_eigenvalues_pass_zero(d):
    rng = np.random.default_rng(d)
    eigenvalues = rng.uniform(0.5, 3.0, d) * np.where(np.arange(d) % 2, -1.0, 1.0)
    crossing = np.arange(d) >= d - max(1, d // 4)
    U, _ = np.linalg.qr(rng.standard_normal((d, d)))
    root = jax.jit(metric_root)
    roots = []
    for size in np.linspace(-0.5, 0.5, 1001):
        eigenvalues[crossing] = size
        roots.append(np.asarray(root(jnp.asarray((U * eigenvalues) @ U.T, jnp.float32)), np.float64))
    roots = np.stack(roots)
    steps = np.linalg.norm(np.diff(roots, axis=0), axis=(1, 2)) / np.linalg.norm(roots[1:], axis=(1, 2))
    assert steps.max() < 0.03
    assert np.linalg.norm(roots[-1] - roots[0]) > 0.1 * np.linalg.norm(roots[0])


@pytest.mark.parametrize("d", [2, 3, 6, 17])
def test_counts_are_whole_where_no_eigenvalue_is_small(d):
    rng = np.random.default_rng(d)
    for _ in range(10):
        signs = rng.choice([-1, 1], d)
        positive, negative = eigen.sign_counts(jnp.asarray(signs * rng.uniform(0.3, 1.0, d), jnp.float32))
        assert float(positive) == pytest.approx((signs > 0).sum(), abs=1e-5 * d)
        assert float(negative) == pytest.approx((signs < 0).sum(), abs=1e-5 * d)


def test_an_eigenvalue_of_zero_counts_to_neither_sign():
    positive, negative = eigen.sign_counts(jnp.array([1.0, 0.5, -0.7, 0.0, 0.0]))
    assert float(positive) == pytest.approx(2.0, abs=1e-5)
    assert float(negative) == pytest.approx(1.0, abs=1e-5)
