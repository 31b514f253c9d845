"""The fused pass, interpreted, against the plain one."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths import mlp
from kmifqe.maths.batches import MinibatchPass, minibatch_pass
from kmifqe.maths.fused import pass_kernel

SEEDS, BATCH, HIDDEN = 2, 128, 128
Inputs = tuple[mlp.QParams, jax.Array, jax.Array, jax.Array]


def some_inputs(width: int) -> Inputs:
    """Return parameters away from the linear regime, rows and coefficients, with a leading axis of seeds."""
    keys = jax.random.split(jax.random.key(width), 4)
    params = jax.vmap(lambda key: mlp.init_q(key, width, HIDDEN))(jax.random.split(keys[0], SEEDS))
    params = jax.tree.map(lambda p: 2.0 * p, params)
    x = jax.random.normal(keys[1], (SEEDS, BATCH, width))
    return params, x, *(jax.random.normal(key, (SEEDS, BATCH)) for key in keys[2:])


@jax.jit
def fused(params: mlp.QParams, x: jax.Array, offset: jax.Array, slope: jax.Array) -> MinibatchPass:
    return MinibatchPass(*pass_kernel.fused_pass(params, x, offset, slope, interpret=True))


def assert_close(p: MinibatchPass, plain: MinibatchPass) -> None:
    assert np.abs(plain.q).max() > 0.1
    np.testing.assert_allclose(p.q, plain.q, atol=1e-3 * max(1.0, np.abs(plain.q).max()))
    np.testing.assert_allclose(p.norms, plain.norms, rtol=1e-2)
    for name, ours, exact in zip(mlp.QParams._fields, p.gradient, plain.gradient, strict=True):
        error, largest = np.abs(np.asarray(ours) - exact).max(), np.abs(exact).max()
        assert error <= 1e-2 * largest, f"{name} is off by {error / largest:.1e} of its largest entry"


@pytest.mark.parametrize("width", [14, 70])
def test_the_kernel_does_the_plain_pass_to_its_precision_alone_and_under_vmap(width: int) -> None:
    """Inputs are padded to 16, or to a multiple of 64 that the kernel takes piece by piece."""
    inputs = some_inputs(width)
    plain = jax.vmap(partial(minibatch_pass, precision="float32"))(*inputs)
    together = jax.jit(jax.vmap(fused))(*inputs)
    for seed in range(SEEDS):
        of_seed = partial(jax.tree.map, lambda leaf, seed=seed: leaf[seed])
        assert_close(of_seed(together), of_seed(plain))
    first = jax.tree.map(lambda leaf: leaf[0], (inputs, plain))
    assert_close(fused(*first[0]), first[1])


@pytest.mark.parametrize(
    "shape, hidden, whether",
    [
        ((128, 14), 256, True),
        ((64, 400), 16, True),
        ((100, 14), 256, False),  # not whole blocks
        ((128, 14), 96, False),  # not a power of two
        ((128, 14), 8, False),
        ((128, 14), 512, False),  # does not fit the registers
    ],
)
def test_which_shapes_fit(shape: tuple[int, int], hidden: int, whether: bool) -> None:
    assert pass_kernel.fits(shape, hidden) is whether


def test_rows_of_coefficient_zero_leave_the_gradient_alone() -> None:
    params, x, offset, _ = jax.tree.map(lambda leaf: leaf[0], some_inputs(14))
    half = jnp.where(jnp.arange(BATCH) < BATCH // 2, offset, 0.0)
    moved = x.at[BATCH // 2 :].add(1.0)
    one, other = (fused(params, rows, half, jnp.zeros(BATCH)).gradient for rows in (x, moved))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, other)
