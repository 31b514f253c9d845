"""From the action Hessian of Q to the kernel metric that minimises the bias bound."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

JACOBI_MAX_DIM = 6  # above, the library's batched routine is as fast and compiles quicker
SWEEPS = 6  # Jacobi converges quadratically; at d = 5 float32 is exhausted after five sweeps


def eigh(S: Float[Array, "d d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Return eigenvalues (unordered) and eigenvectors (columns) of a symmetric matrix.

    For small d by cyclic Jacobi rotations on scalars: under vmap every scalar is a vector over the samples and
    a whole sweep fuses into one elementwise kernel, on any device.
    """
    d = S.shape[0]
    if d > JACOBI_MAX_DIM:
        return jnp.linalg.eigh(S)
    upper = {(i, j): S[i, j] for i in range(d) for j in range(i, d)}
    one, zero = jnp.ones_like(S[0, 0]), jnp.zeros_like(S[0, 0])
    vectors = {(i, j): one if i == j else zero for i in range(d) for j in range(d)}
    upper, vectors = jax.lax.fori_loop(
        0, SWEEPS, lambda _, carry: _sweep(carry[0], carry[1], d), (upper, vectors)
    )
    values = jnp.stack([upper[i, i] for i in range(d)])
    return values, jnp.stack([jnp.stack([vectors[i, j] for j in range(d)]) for i in range(d)])


Entries = dict[tuple[int, int], Array]


def _sweep(upper: Entries, vectors: Entries, d: int) -> tuple[Entries, Entries]:
    for p in range(d):
        for q in range(p + 1, d):
            upper, vectors = _rotate(dict(upper), dict(vectors), p, q, d)
    return upper, vectors


def _rotate(upper: Entries, vectors: Entries, p: int, q: int, d: int) -> tuple[Entries, Entries]:
    """Apply the plane rotation that makes entry (p, q) zero."""
    a_pq = upper[p, q]
    safe = jnp.where(a_pq == 0, 1.0, a_pq)
    theta = (upper[q, q] - upper[p, p]) / (2.0 * safe)
    # |θ| may be huge: bounded, its square cannot overflow, and the rotation is nil either way.
    bounded = jnp.clip(theta, -1e8, 1e8)
    t = jnp.sign(bounded) / (jnp.abs(bounded) + jnp.sqrt(bounded**2 + 1.0))
    t = jnp.where(theta == 0, 1.0, t)
    t = jnp.where(a_pq == 0, 0.0, t)
    c = jax.lax.rsqrt(t**2 + 1.0)
    s = t * c
    upper[p, p], upper[q, q] = upper[p, p] - t * a_pq, upper[q, q] + t * a_pq
    upper[p, q] = jnp.zeros_like(a_pq)
    for r in range(d):
        if r not in (p, q):
            rp, rq = (min(r, p), max(r, p)), (min(r, q), max(r, q))
            upper[rp], upper[rq] = c * upper[rp] - s * upper[rq], s * upper[rp] + c * upper[rq]
        vectors[r, p], vectors[r, q] = (
            c * vectors[r, p] - s * vectors[r, q],
            s * vectors[r, p] + c * vectors[r, q],
        )
    return upper, vectors


# x → ax + bx³ + cx⁵, one after the other, take 0.05 ≤ |x| ≤ 1 to sign(x) within SIGN_ERROR, and rise smoothly in
# between. Each is the best quintic on the interval that the one before leaves, 6 % wider after the first two and 2 %
# after the third, since a GPU rounds products to 10 bits (linear programming on a grid).
SIGN_QUINTICS = (
    (6.75237531, -18.35096926, 13.26326491),
    (2.52476907, -1.73028212, 0.36864072),
    (1.95107104, -1.30011661, 0.35626233),
    (1.87551331, -1.24961636, 0.37410571),
)
SIGN_ERROR = 4e-5
SMALLEST_HESSIAN = 1e-30  # below this no direction can be told from another: the identity
RELATIVE_FLOOR = 1e-6  # keeps A ≻ 0 in float32 when the floor is set to 0


def optimal_metric(H: Float[Array, "d d"], floor: float = 0.1) -> Float[Array, "d d"]:
    """Return A*(s'), positive definite with unit determinant.

    Prop. 3: A* ∝ U diag(d₊Λ₊, −d₋Λ₋) Uᵀ, from H = ∇²ₐQ(s', a')|π̃(s'), with the counts of `sign_counts`.
    `floor`·max(M) is added to every entry of M, which bounds the condition number by 1 + 1/floor. H ≈ 0 gives the
    identity.
    """
    scales, U = _scales(H, floor)
    return (U * scales) @ U.T


def metric_root(H: Float[Array, "d d"], floor: float = 0.1) -> Float[Array, "d d"]:
    """Return the symmetric L with L Lᵀ = A*(s').

    Any root gives the same kernel. The symmetric one turns axis j into the direction nearest to axis j, so that
    a dimension-wise ratio divides kernel and behaviour along (nearly) the same direction; it is also continuous
    in H, whatever the order and signs of the eigenvectors.
    """
    scales, U = _scales(H, floor)
    return (U * jnp.sqrt(scales)) @ U.T


def sign_counts(eigenvalues: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return d₊ and d₋, how many eigenvalues are positive and how many negative.

    An eigenvalue below 0.05 of the Hessian's Frobenius norm counts in part, and to neither at 0: u being its soft
    sign, it adds ½(u² + u³) to d₊ and ½(u² − u³) to d₋. So the metric is continuous in the Hessian.
    """
    norm = jnp.sqrt(jnp.sum(eigenvalues**2))
    u = eigenvalues / jnp.where(norm > 0, norm, 1.0)
    for a, b, c in SIGN_QUINTICS:
        u = u * (a + u**2 * (b + u**2 * c))
    u = jnp.clip((1.0 + SIGN_ERROR) * u, -1.0, 1.0)  # whole counts are exact
    both, difference = jnp.sum(u**2), jnp.sum(u**3)
    return 0.5 * (both + difference), 0.5 * (both - difference)


def _scales(H: Float[Array, "d d"], floor: float) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Return the eigenvalues of A* (product 1) and its eigenvectors."""
    size = jnp.max(jnp.abs(H))
    flat = ~(size > SMALLEST_HESSIAN)
    scaled = jnp.where(flat, jnp.zeros_like(H), H / jnp.where(flat, 1.0, size))
    eigenvalues, U = eigh(0.5 * (scaled + scaled.T))
    M = jnp.where(eigenvalues > 0, *sign_counts(eigenvalues)) * jnp.abs(eigenvalues)
    M = jnp.maximum(M + floor * jnp.max(M), RELATIVE_FLOOR * jnp.max(M))
    M = jnp.where(flat | ~(jnp.max(M) > 0), 1.0, M)
    return M * jnp.exp(-jnp.mean(jnp.log(M))), U
