import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths import mlp

Q, D, HIDDEN = 5, 3, 32


@pytest.fixture(scope="module")
def network():
    params = mlp.init_q(jax.random.key(0), Q + D, HIDDEN)
    return jax.tree.map(lambda p: 2.0 * p, params)  # away from the linear regime


@pytest.fixture(scope="module")
def x():
    return jax.random.normal(jax.random.key(1), (16, Q + D))


def test_written_out_hessian_equals_automatic_differentiation(network, x):
    def by_autodiff(x):
        return jax.hessian(lambda a: mlp.q_value(network, jnp.concatenate([x[:Q], a])))(x[Q:])

    written = jax.vmap(lambda x: mlp.action_hessian(network, x, D))(x)
    expected = jax.vmap(by_autodiff)(x)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(written, expected, atol=1e-5)


def test_gradient_norms_equal_automatic_differentiation(network, x):
    def by_autodiff(x):
        gradient = jax.grad(mlp.q_value)(network, x)
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient))

    norms = jax.vmap(lambda x: mlp.gradient_norm_squared(mlp.q_pass(network, x)))(x)
    np.testing.assert_allclose(norms, jax.vmap(by_autodiff)(x), rtol=1e-4)


def test_weighted_gradient_equals_automatic_differentiation(network, x):
    c = jax.random.normal(jax.random.key(2), (len(x),))
    expected = jax.grad(lambda p: c @ jax.vmap(mlp.q_value, (None, 0))(p, x))(network)
    written = mlp.weighted_gradient(jax.vmap(mlp.q_pass, (None, 0))(network, x), c)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), written, expected)


def test_pass_and_value_agree(network, x):
    passes = jax.vmap(mlp.q_pass, (None, 0))(network, x)
    np.testing.assert_allclose(passes.q, jax.vmap(mlp.q_value, (None, 0))(network, x), atol=1e-6)


def test_initial_parameters_fill_their_interval():
    params = mlp.init_q(jax.random.key(0), 4, 256)
    assert float(jnp.abs(params.w2).max()) <= 256**-0.5
    assert float(jnp.std(params.w2)) == pytest.approx(256**-0.5 / np.sqrt(3), rel=0.02)


def test_layers_apply_relu_between_and_nothing_after():
    layers = [(jnp.array([[1.0, -1.0]]), jnp.zeros(2)), (jnp.array([[1.0], [1.0]]), jnp.array([-5.0]))]
    assert mlp.apply_layers(layers, jnp.array([-3.0])).tolist() == [-2.0]
