"""The metric's root without an eigendecomposition, interpreted, against its definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths.fused import metric_kernel
from kmifqe.maths.metric import metric_root

ROWS, FLOOR = 32, 0.1
TOLERANCE = 3e-3  # of ‖Lz‖; the largest of 512 rows of any kind and d below is 2.9e-3
ROUNDED_TOLERANCE = (
    2e-2  # with products rounded as tensor cores round them; the largest of 512 rows is 1.5e-2
)

widths = pytest.mark.parametrize("d", [7, 17, 30])


def turned(rng: np.random.Generator, eigenvalues: np.ndarray) -> np.ndarray:
    """Return symmetric matrices with these eigenvalues in random directions."""
    U, _ = np.linalg.qr(rng.standard_normal((*eigenvalues.shape, eigenvalues.shape[-1])))
    return (U * eigenvalues[:, None, :]) @ U.transpose(0, 2, 1)


def hessians(kind: str, d: int) -> np.ndarray:
    rng = np.random.default_rng(d)
    signs = rng.choice([-1.0, 1.0], (ROWS, d))
    if kind == "graded":  # a thousand to one, signs mixed
        return turned(rng, signs * np.geomspace(1e-3, 1.0, d))
    if kind == "definite":
        return turned(rng, np.broadcast_to(np.geomspace(1e-3, 1.0, d), (ROWS, d)))
    if (
        kind == "flat"
    ):  # most directions of no curvature to speak of, of either sign, and some of exactly none
        eigenvalues = signs * rng.uniform(0.5, 1.0, (ROWS, d))
        small = np.exp(rng.uniform(np.log(1e-6), np.log(0.3), (ROWS, d))) * (rng.random((ROWS, d)) < 0.8)
        return turned(rng, np.where(np.arange(d) < 2, eigenvalues, signs * small))
    H = rng.standard_normal((ROWS, d, d))
    return {"random": 1.0, "small": 1e-12, "large": 1e12}[kind] * (H + H.transpose(0, 2, 1))


@jax.jit
def rooted(H: jax.Array, z: jax.Array) -> jax.Array:
    return metric_kernel.rooted(H, z, FLOOR, interpret=True)


@jax.jit
def by_definition(H: jax.Array, z: jax.Array) -> jax.Array:
    return jax.vmap(lambda H, z: metric_root(H, FLOOR) @ z)(H, z)


def both(H: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = jnp.asarray(H, jnp.float32), jnp.asarray(z, jnp.float32)
    return np.asarray(rooted(*rows), np.float64), np.asarray(by_definition(*rows), np.float64)


@widths
@pytest.mark.parametrize("kind", ["random", "graded", "definite", "flat", "small", "large"])
def test_the_kernel_is_the_metrics_root_to_three_digits(kind: str, d: int) -> None:
    z = np.random.default_rng(1).standard_normal((ROWS, d))
    ours, exact = both(hessians(kind, d), z)
    error = np.linalg.norm(ours - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert error.max() <= TOLERANCE
    assert np.abs(exact - z).max() > 0.1, "not the identity"


def rounded(x: jax.Array) -> jax.Array:
    """Return x with a mantissa of 10 bits."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + jnp.uint32(0x1000)
    return jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF_E000), jnp.float32)


@pytest.mark.parametrize("kind", ["random", "graded", "flat"])
def test_rounded_products_cost_two_hundredths_at_most(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's tensor cores read 10 bits of every factor."""
    exact_product = metric_kernel._product
    monkeypatch.setattr(metric_kernel, "_product", lambda a, b: exact_product(rounded(a), rounded(b)))
    d = 7
    H = jnp.asarray(hessians(kind, d), jnp.float32)
    z = jnp.asarray(np.random.default_rng(1).standard_normal((ROWS, d)), jnp.float32)
    ours = np.asarray(metric_kernel.rooted(H, z, FLOOR, interpret=True), np.float64)
    exact = np.asarray(by_definition(H, z), np.float64)
    error = np.linalg.norm(ours - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert 1e-4 < np.median(error) < TOLERANCE
    assert error.max() <= ROUNDED_TOLERANCE


@widths
def test_a_flat_q_leaves_every_vector_as_it_is(d: int) -> None:
    z = np.random.default_rng(1).standard_normal((ROWS, d)).astype(np.float32)
    np.testing.assert_array_equal(rooted(jnp.zeros((ROWS, d, d)), jnp.asarray(z)), z)


@widths
def test_the_root_has_unit_determinant_is_symmetric_and_well_conditioned(d: int) -> None:
    """Applied to the unit vectors of one Hessian the kernel spells out L."""
    H = np.broadcast_to(hessians("graded", d)[0], (ROWS, d, d))
    L = np.asarray(rooted(jnp.asarray(H, jnp.float32), jnp.eye(ROWS, d)), np.float64)[:d].T
    np.testing.assert_allclose(L, L.T, atol=5e-3)
    eigenvalues = np.linalg.eigvalsh(0.5 * (L + L.T))
    assert np.mean(np.log(eigenvalues)) == pytest.approx(0.0, abs=TOLERANCE)
    assert eigenvalues.max() / eigenvalues.min() <= np.sqrt(1 + 1 / FLOOR) * 1.01


def test_rows_that_fill_no_whole_program_are_computed_too() -> None:
    z = np.random.default_rng(1).standard_normal((ROWS, 7)).astype(np.float32)
    H = jnp.asarray(hessians("random", 7), jnp.float32)
    odd = metric_kernel.rooted(H[:5], jnp.asarray(z[:5]), FLOOR, interpret=True)
    np.testing.assert_allclose(odd, rooted(H, jnp.asarray(z))[:5], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "d, floor, whether", [(7, 0.1, True), (32, 0.05, True), (33, 0.1, False), (7, 0.0, False)]
)
def test_which_widths_and_floors_fit(d: int, floor: float, whether: bool) -> None:
    assert metric_kernel.fits(d, floor) is whether
