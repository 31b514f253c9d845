"""Values and Hessians of many rows against those of one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths import mlp
from kmifqe.maths.batches import metric_distances, state_part, taylor_terms, values, values_and_hessians
from kmifqe.maths.metric import metric_root

Q, D, ROWS = 5, 3, 40


@pytest.fixture(scope="module")
def network() -> mlp.QParams:
    return jax.tree.map(lambda p: 2.0 * p, mlp.init_q(jax.random.key(0), Q + D, 32))


@pytest.fixture(scope="module")
def x() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (ROWS, Q + D))


def test_values_are_those_of_the_network(network: mlp.QParams, x: jax.Array) -> None:
    q = values(network, state_part(network, x[:, :Q], "float32"), x[:, Q:], "float32")
    np.testing.assert_allclose(q, jax.vmap(mlp.q_value, (None, 0))(network, x), atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
def test_hessians_equal_automatic_differentiation_whatever_the_scale_of_q(
    network: mlp.QParams, x: jax.Array, scale: float
) -> None:
    def by_autodiff(x: jax.Array) -> jax.Array:
        return jax.hessian(lambda a: mlp.q_value(network, jnp.concatenate([x[:Q], a])))(x[Q:])

    scaled = network._replace(w3=scale * network.w3, b3=scale * network.b3)
    q, H = values_and_hessians(scaled, state_part(network, x[:, :Q], "float32"), x[:, Q:], "float32")
    expected = np.asarray(jax.vmap(by_autodiff)(x))
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(np.asarray(H) / scale, expected, atol=1e-5)
    written = jax.vmap(lambda x: mlp.action_hessian(network, x, D))(x)
    np.testing.assert_allclose(np.asarray(H) / scale, written, atol=1e-5)
    exact = np.asarray(jax.vmap(mlp.q_value, (None, 0))(network, x))
    np.testing.assert_allclose(np.asarray(q) / scale, exact, atol=1e-5)


def test_taylor_terms_are_gradient_and_half_the_hessian_along_a_direction(
    network: mlp.QParams, x: jax.Array
) -> None:
    from_states = state_part(network, x[:, :Q], "float32")
    directions = jax.random.normal(jax.random.key(2), (ROWS, D))
    _, H = values_and_hessians(network, from_states, x[:, Q:], "float32")
    terms = taylor_terms(network, from_states, x[:, Q:], directions, "float32")
    gradient = jax.vmap(jax.grad(lambda x: mlp.q_value(network, x)))(x)[:, Q:]
    expected = np.sum(gradient * directions, axis=1) + 0.5 * np.einsum(
        "ni,nij,nj->n", directions, H, directions
    )
    np.testing.assert_allclose(terms, expected, atol=1e-5)


def test_a_network_that_is_zero_has_no_curvature(network: mlp.QParams, x: jax.Array) -> None:
    flat = network._replace(w3=jnp.zeros_like(network.w3))
    q, H = values_and_hessians(flat, state_part(flat, x[:, :Q], "float32"), x[:, Q:], "float32")
    np.testing.assert_array_equal(q, np.full(ROWS, network.b3))
    np.testing.assert_array_equal(H, np.zeros((ROWS, D, D)))


@pytest.mark.parametrize("d", [3, 7])
def test_distances_are_taken_through_the_metrics_root(d: int) -> None:
    rng = np.random.default_rng(d)
    G = jnp.asarray(rng.standard_normal((6, d, d)), jnp.float32)
    H, z = G + G.mT, jnp.asarray(rng.standard_normal((6, d)), jnp.float32)
    ours = metric_distances(H, z, 0.1, "mixed")
    one_by_one = jnp.stack([metric_root(H[i], 0.1) @ z[i] for i in range(2)])
    np.testing.assert_allclose(ours[:2], one_by_one, rtol=1e-4, atol=1e-5)
