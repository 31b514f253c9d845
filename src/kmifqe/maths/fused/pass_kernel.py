"""A minibatch's pass through the Q network as one GPU kernel.

Written as XLA operations, a pass is a dozen kernels that each carry batch × hidden numbers through device memory,
and that traffic, not the arithmetic, takes most of the time. Here a block of rows stays on the chip from the input
to the deltas. Matrix products take 10-bit mantissas forwards (float16, as TF32; activations are within ±1) and
bfloat16 backwards (gradients of any size), and accumulate in float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from kmifqe.maths.mlp import QParams

BLOCK = 32  # rows a program
WARPS = 8
STAGES = 3
CHUNK = 64  # of the middle weights, read piece by piece: whole, they would spill out of the registers
MAX_HIDDEN = 256  # a row's activations must fit there too


def fits(shape: tuple[int, ...], hidden: int) -> bool:
    """Whether a minibatch has a shape the kernel takes: whole blocks of rows, a power of two of units."""
    power_of_two = hidden & (hidden - 1) == 0
    return shape[0] % BLOCK == 0 and power_of_two and 16 <= hidden <= MAX_HIDDEN


def fused_pass(
    params: QParams,
    x: Float[Array, "batch inputs"],
    offset: Float[Array, " batch"],
    slope: Float[Array, " batch"],
    interpret: bool = False,
) -> tuple[Float[Array, " batch"], Float[Array, " batch"], QParams]:
    """Return q, ‖∇θQ‖² and Σ c ∇θQ with c = `offset` + `slope`·q, for rows `x` and the network `params`.

    `interpret`: run the kernel without a GPU, for tests; by default no.
    """
    batch, inputs = x.shape
    hidden = params.w2.shape[0]
    chunk = 16 if inputs <= 16 else 64
    padded = -(-inputs // chunk) * chunk
    x = jnp.pad(x, ((0, 0), (0, padded - inputs)))
    w1 = jnp.pad(params.w1, ((0, padded - inputs), (0, 0)))
    rows = lambda width: pl.BlockSpec((BLOCK, width), lambda i: (i, 0))  # noqa: E731
    row = pl.BlockSpec((BLOCK,), lambda i: (i,))
    units = pl.BlockSpec((hidden,), lambda i: (0,))
    middle = pl.BlockSpec((hidden, hidden), lambda i: (0, 0))
    block_sums = pl.BlockSpec((1, 4, hidden), lambda i: (i, 0, 0))  # of b1's, b2's and w3's gradients
    blocks = batch // BLOCK
    half, wide = jnp.float16, jnp.bfloat16
    q, norms, _, cu1, d2, cd1, sums = pl.pallas_call(
        lambda *refs: _kernel(chunk, interpret, *refs),
        grid=(blocks,),
        in_specs=[
            *(rows(padded), row, row, pl.BlockSpec((padded, hidden), lambda i: (0, 0)), units),
            *(middle, middle, units, units, pl.BlockSpec((1,), lambda i: (0,))),
        ],
        out_specs=[row, row, *[rows(hidden)] * 4, block_sums],
        out_shape=[
            *[jax.ShapeDtypeStruct((batch,), jnp.float32)] * 2,
            *[jax.ShapeDtypeStruct((batch, hidden), dtype) for dtype in (half, wide, wide, wide)],
            jax.ShapeDtypeStruct((blocks, 4, hidden), jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=interpret,
        name="kmifqe_pass",
    )(
        x.astype(half),
        offset,
        slope,
        w1.astype(half),
        params.b1,
        params.w2.astype(half),
        params.w2.T.astype(wide),
        params.b2,
        params.w3,
        params.b3[None],
    )
    c = offset + slope * q
    over_rows = (((0,), (0,)), ((), ()))
    w1_gradient = jax.lax.dot_general(x.astype(wide), cd1, over_rows, preferred_element_type=jnp.float32)
    w2_gradient = jax.lax.dot_general(cu1, d2, over_rows, preferred_element_type=jnp.float32)
    b1_gradient, b2_gradient, w3_gradient, _ = sums.sum(0)
    gradient = QParams(w1_gradient[:inputs], b1_gradient, w2_gradient, b2_gradient, w3_gradient, jnp.sum(c))
    return q, norms, gradient


def _kernel(chunk, interpret, x, offset, slope, w1, b1, w2, w2_back, b2, w3, b3, *outputs):  # type: ignore[no-untyped-def]
    """Take one block of rows through the network and back; the refs are as in `fused_pass`.

    Activations that a product reads in pieces go through their place in the output.
    """
    q_out, norms_out, u1_out, cu1_out, d2_out, cd1_out, sums_out = outputs
    hidden = w2.shape[0]
    before = jnp.zeros((BLOCK, hidden), jnp.float32)
    x_squared = jnp.zeros((BLOCK,), jnp.float32)
    for start in range(0, x.shape[1], chunk):
        part = x[:, start : start + chunk]
        before += jnp.dot(part, w1[start : start + chunk, :], preferred_element_type=jnp.float32)
        x_squared += jnp.sum(part.astype(jnp.float32) ** 2, axis=1)
    u1 = _tanh(before + b1[...][None, :])
    u1_out[...] = u1.astype(jnp.float16)
    u2 = _tanh(_product_in_pieces(u1_out, w2, interpret) + b2[...][None, :])
    q = jnp.sum(u2 * w3[...][None, :], axis=1) + b3[0]
    d2 = w3[...][None, :] * (1.0 - u2 * u2)
    d2_out[...] = d2.astype(jnp.bfloat16)
    c = (offset[...] + slope[...] * q)[:, None]
    cu1_out[...] = (c * u1).astype(jnp.bfloat16)
    sums_out[0, 1, :] = jnp.sum(c * d2, axis=0)
    sums_out[0, 2, :] = jnp.sum(c * u2, axis=0)
    square = lambda a: jnp.sum(a * a, axis=1)  # noqa: E731
    norms = square(d2) * (square(u1) + 1.0) + square(u2) + 1.0
    d1 = _product_in_pieces(d2_out, w2_back, interpret) * (1.0 - u1 * u1)
    q_out[...], norms_out[...] = q, norms + square(d1) * (x_squared + 1.0)
    cd1_out[...] = (c * d1).astype(jnp.bfloat16)
    sums_out[0, 0, :] = jnp.sum(c * d1, axis=0)
    sums_out[0, 3, :] = jnp.zeros(hidden, jnp.float32)  # a fourth, so that rows count in powers of two


def _product_in_pieces(left, right, interpret):  # type: ignore[no-untyped-def]
    """Return left @ right of two refs; `left` was written by this program."""
    if not interpret:
        triton.debug_barrier()  # what one thread wrote, another reads
    piece = min(CHUNK, right.shape[0])

    def add(k, total):  # type: ignore[no-untyped-def]
        inner = pl.ds(k * piece, piece)
        return total + jnp.dot(left[:, inner], right[inner, :], preferred_element_type=jnp.float32)

    zeros = jnp.zeros((left.shape[0], right.shape[1]), jnp.float32)
    return jax.lax.fori_loop(0, right.shape[0] // piece, add, zeros)


def _tanh(x: Array) -> Array:
    """Return tanh x to an absolute error of 1e-7, in a quarter of the instructions of the library's."""
    return 1.0 - 2.0 / (1.0 + jnp.exp(2.0 * x))
