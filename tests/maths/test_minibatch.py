"""One pass of a minibatch against automatic differentiation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths import mlp
from kmifqe.maths.batches import minibatch_pass


@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_value_norms_and_gradient_equal_automatic_differentiation(precision: str) -> None:
    """On a device without the kernels "mixed" is full precision too."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = jax.tree.map(lambda p: 2.0 * p, mlp.init_q(keys[0], 8, 32))
    x = jax.random.normal(keys[1], (64, 8))
    offset, slope = (jax.random.normal(key, (64,)) for key in keys[2:])

    def values(params: mlp.QParams) -> jax.Array:
        return jax.vmap(mlp.q_value, (None, 0))(params, x)

    q = values(params)
    gradients = jax.vmap(jax.grad(mlp.q_value), (None, 0))(params, x)
    norms = sum(jnp.sum(g.reshape(64, -1) ** 2, axis=1) for g in jax.tree.leaves(gradients))
    weighted = jax.tree.map(lambda g: jnp.tensordot(offset + slope * q, g, 1), gradients)

    p = minibatch_pass(params, x, offset, slope, precision)
    np.testing.assert_allclose(p.q, q, atol=1e-5)
    np.testing.assert_allclose(p.norms, norms, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), p.gradient, weighted)
