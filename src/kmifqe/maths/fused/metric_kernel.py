"""The metric of many rows at once on a GPU, without an eigendecomposition.

The metric needs three things of the Hessian's spectrum: signs, magnitudes and a determinant. All are matrix
functions, and matrix functions of a small symmetric matrix are a few dozen products of 32 × 32 blocks, which tensor
cores do faster than a batched eigensolver does one sweep. `metric.metric_root` is the definition; this is its
product with a vector: to 3e-3 of its length with products in float32, to 2e-2 and typically 1e-3 with products of
10-bit factors, as tensor cores take them. The rarer and larger errors are those of eigenvalues that count in part.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from kmifqe.maths.metric import SIGN_QUINTICS, SMALLEST_HESSIAN

SIDE = 32  # matrices are padded to it
MATRICES = 4  # a program
SMALLEST_FLOOR = 0.05  # below, the polynomials of the root and the determinant would need a higher degree
DEGREE = 8  # of the root's polynomial, half that of the determinant's: errors below 1e-3 at a floor of 0.1

# The quintics of the soft sign, once more on what they gave, take 10⁻³ ≤ |x| to sign(x). A smaller |x| is a direction
# in which Q is flat to a thousandth of the Hessian's norm; there the floor rules.
SHRUNK = 0.98  # before the second time: rounded products leave eigenvalues just above 1


def fits(d: int, floor: float) -> bool:
    """Whether `rooted` can stand in for the eigendecomposition at this width and floor."""
    return d <= SIDE and floor >= SMALLEST_FLOOR


def rooted(
    H: Float[Array, "n d d"], z: Float[Array, "n d"], floor: float, interpret: bool = False
) -> Float[Array, "n d"]:
    """Return L z for every row of `z`, L the symmetric root of A*(`H`) with relative floor `floor`.

    `interpret`: run the kernel without a GPU, for tests; by default no.
    """
    n, d, _ = H.shape
    programs = -(-n // MATRICES)
    rows, side = programs * MATRICES - n, SIDE - d
    largest = jnp.max(jnp.abs(H), axis=(1, 2), keepdims=True)  # first, or squares leave float32's range
    H = jnp.where(largest > SMALLEST_HESSIAN, H / jnp.maximum(largest, SMALLEST_HESSIAN), 0.0)
    H = jnp.pad(0.5 * (H + H.mT), ((0, rows), (0, side), (0, side)))
    z = jnp.pad(z, ((0, rows), (0, side)))
    block = lambda *shape: pl.BlockSpec((MATRICES, *shape), lambda i: (i, *([0] * len(shape))))  # noqa: E731
    numbers = _coefficients(floor)
    result = pl.pallas_call(
        lambda *refs: _kernel(d, floor, *refs),
        grid=(programs,),
        in_specs=[block(SIDE, SIDE), block(SIDE), pl.BlockSpec(numbers.shape, lambda i: (0, 0))],
        out_specs=block(SIDE),
        out_shape=jax.ShapeDtypeStruct(z.shape, jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name="kmifqe_metric",
    )(H, z, jnp.asarray(numbers))
    return result[:n, :d]


def _coefficients(floor: float) -> np.ndarray:
    """Return the kernel's table, a column a use: three of the sign, one of the root, three of the determinant.

    The eigenvalues lie in [floor, 1 + floor], as T ranges over [−1, 1]. The traces of the polynomials Tₖ of even
    and odd order beyond half the degree come from 2 tr TⱼTⱼ − tr T₀ and 2 tr TⱼTⱼ₋₁ − tr T₁, so a table for
    log det = Σ cₖ tr Tₖ has columns for tr Tⱼ, tr TⱼTⱼ and tr TⱼTⱼ₋₁.
    """
    table = np.zeros((SIDE, 8), np.float32)
    table[: len(SIGN_QUINTICS), :3] = SIGN_QUINTICS

    def series(function: np.ufunc, degree: int) -> np.ndarray:
        return np.polynomial.chebyshev.chebinterpolate(lambda t: function(0.5 + floor + 0.5 * t), degree)

    table[: DEGREE + 1, 3] = series(np.sqrt, DEGREE)
    log = series(np.log, 2 * DEGREE)
    table[: DEGREE + 1, 4] = log[: DEGREE + 1]
    for j in range(DEGREE // 2 + 1, DEGREE + 1):
        table[j, 5] = 2.0 * log[2 * j]
        table[0, 4] -= log[2 * j]
        if 2 * j - 1 > DEGREE:
            table[j, 6] = 2.0 * log[2 * j - 1]
            table[1, 4] -= log[2 * j - 1]
    return table


def _kernel(d, floor, H_ref, z_ref, numbers, out_ref):  # type: ignore[no-untyped-def]
    def one(i, _):  # type: ignore[no-untyped-def]
        out_ref[i, :] = _rooted_one(H_ref[i], z_ref[i, :], numbers, d, floor)
        return 0

    jax.lax.fori_loop(0, MATRICES, one, 0)


def _rooted_one(H: Array, z: Array, numbers, d: int, floor: float) -> Array:  # type: ignore[no-untyped-def]
    """Return L z of one padded matrix; loops, not unrolled code, or compiling takes minutes."""
    row = jax.lax.broadcasted_iota(jnp.int32, (SIDE, SIDE), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (SIDE, SIDE), 1)
    identity = jnp.where(row == column, 1.0, 0.0)
    inside = jnp.where((row == column) & (row < d), 1.0, 0.0)
    size = jnp.sqrt(jnp.sum(H * H))
    flat = jnp.logical_not(size > 0)
    H = jnp.where(flat, inside, H / jnp.where(flat, 1.0, size))
    soft = _soft_sign(H, numbers)
    # The counts of `metric.sign_counts`: traces of the square and the cube.
    counts_sum, counts_difference = jnp.sum(soft * soft), jnp.sum(soft * _product(soft, soft))
    M = 0.5 * (counts_difference * H + counts_sum * _product(H, _soft_sign(SHRUNK * soft, numbers)))
    # The largest eigenvalue: the mean of M under its own 32nd power.
    power = jax.lax.fori_loop(0, 5, lambda _, P: _product(P, P) / jnp.sum(P * P), M)
    largest = jnp.sum(M * power) / jnp.sum(power * identity)
    F = M / largest + floor * inside + (identity - inside)
    T1 = 2.0 * (F - (0.5 + floor) * identity)  # within [−1, 1]; the padding is where log det is 0

    def polynomial(j, carry):  # type: ignore[no-untyped-def]
        before, now, root, log_determinant = carry
        log_determinant += numbers[j, 4] * jnp.sum(now * identity) + numbers[j, 5] * jnp.sum(now * now)
        log_determinant += numbers[j, 6] * jnp.sum(now * before)
        return now, 2.0 * _product(T1, now) - before, root + numbers[j, 3] * now, log_determinant

    start = (identity, T1, numbers[0, 3] * identity, numbers[0, 4] * jnp.sum(identity))
    *_, root, log_determinant = jax.lax.fori_loop(1, DEGREE + 1, polynomial, start)
    result = jnp.sum(root * z[None, :], axis=1)
    return jnp.where(flat, z, result * jnp.exp(-0.5 * log_determinant / d))


def _soft_sign(X: Array, numbers) -> Array:  # type: ignore[no-untyped-def]
    return jax.lax.fori_loop(0, len(SIGN_QUINTICS), lambda k, X: _quintic(k, X, numbers), X)


def _quintic(k: Array, X: Array, numbers) -> Array:  # type: ignore[no-untyped-def]
    squared = _product(X, X)
    even = numbers[k, 1] * squared + numbers[k, 2] * _product(squared, squared)
    return numbers[k, 0] * X + _product(X, even)


def _product(a: Array, b: Array) -> Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)
