import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from kmifqe.behavior.mixture import (
    MAX_LOG_STD,
    MIN_LOG_STD,
    Components,
    components_at,
    conditional_cdf,
    init_network,
    mixture_log_prob,
    sample_latent,
)

# Compiled as the library calls them; one by one, their operations would each be compiled alone.
jitted_components_at, jitted_conditional_cdf, jitted_mixture_log_prob = map(
    jax.jit, (components_at, conditional_cdf, mixture_log_prob)
)
EDGES = jnp.array([[-3.0, -3.0], [3.0, 3.0]])
BETWEEN = jnp.zeros(2, jnp.int8)
MIXTURE = Components(
    log_weight=jnp.log(jnp.array([0.3, 0.7])),
    mean=jnp.array([[-1.0, 0.5], [1.0, -0.5]]),
    log_std=jnp.log(jnp.array([[0.5, 1.0], [0.8, 0.3]])),
)


def scipy_density(z):
    parts = stats.norm.pdf(z, np.asarray(MIXTURE.mean), np.exp(MIXTURE.log_std)).prod(axis=1)
    return (np.array([0.3, 0.7]) * parts).sum()


def test_density_is_the_weighted_sum_of_normals():
    z = jnp.array([0.2, -0.4])
    np.testing.assert_allclose(
        np.exp(jitted_mixture_log_prob(MIXTURE, z, BETWEEN, EDGES)), scipy_density(z), rtol=1e-5
    )


def test_in_a_layer_the_density_is_the_mass_beyond_the_edge():
    value = jitted_mixture_log_prob(MIXTURE, jnp.array([3.0, -3.0]), jnp.array([1, -1], jnp.int8), EDGES)
    mean, std = np.asarray(MIXTURE.mean), np.exp(np.asarray(MIXTURE.log_std))
    upper, lower = stats.norm.sf(3.0, mean[:, 0], std[:, 0]), stats.norm.cdf(-3.0, mean[:, 1], std[:, 1])
    np.testing.assert_allclose(np.exp(value), (np.array([0.3, 0.7]) * upper * lower).sum(), rtol=1e-4)


def test_padding_components_change_nothing():
    network = init_network(np.random.default_rng(0), 3, (16,), 8, 2)
    state, z = jnp.array([0.1, -1.0, 2.0]), jnp.array([0.3, 0.6])
    mask = jnp.where(jnp.arange(8) < 5, 0.0, -jnp.inf)
    *hidden, (weight, bias) = network
    small = (*hidden, (weight[:, :25], bias[:25]))
    padded = jitted_mixture_log_prob(jitted_components_at(network, mask, state), z, BETWEEN, EDGES)
    plain = jitted_mixture_log_prob(jitted_components_at(small, jnp.zeros(5), state), z, BETWEEN, EDGES)
    np.testing.assert_allclose(padded, plain, rtol=1e-6)


def test_gradients_stay_finite_with_padding_far_actions_and_layers():
    network = init_network(np.random.default_rng(1), 3, (16,), 8, 2)
    mask = jnp.where(jnp.arange(8) < 2, 0.0, -jnp.inf)

    def loss(net, z, side):
        return jitted_mixture_log_prob(jitted_components_at(net, mask, jnp.full(3, 50.0)), z, side, EDGES)

    for z, side in ((jnp.array([30.0, -30.0]), BETWEEN), (jnp.array([3.0, -3.0]), jnp.array([1, -1]))):
        value, gradient = jax.jit(jax.value_and_grad(loss))(network, z, side)
        assert np.isfinite(value)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_log_stds_stay_within_their_bounds():
    network = init_network(np.random.default_rng(2), 1, (8,), 4, 1)
    for scale in (0.0, 1e4, -1e4):
        log_std = jitted_components_at(network, jnp.zeros(4), jnp.array([scale])).log_std
        assert (log_std >= MIN_LOG_STD).all()
        assert (log_std <= MAX_LOG_STD).all()


def test_the_product_of_conditional_slopes_is_the_density():
    z, step, uniform = jnp.array([0.4, -0.2]), 1e-2, jnp.zeros(2)

    def cdf(z):
        return jitted_conditional_cdf(MIXTURE, z, BETWEEN, EDGES, uniform)

    slopes = [(cdf(z.at[j].add(step)) - cdf(z.at[j].add(-step)))[j] / (2 * step) for j in range(2)]
    np.testing.assert_allclose(np.prod(slopes), scipy_density(z), rtol=1e-3)


def test_the_cdf_runs_through_the_layers_without_a_gap():
    def first(z, side, uniform):
        return jitted_conditional_cdf(
            MIXTURE, jnp.array([z, 0.0]), jnp.array([side, 0]), EDGES, jnp.full(2, uniform)
        )[0]

    np.testing.assert_allclose(first(-3.0, -1, 0.0), 0.0, atol=1e-7)
    np.testing.assert_allclose(first(-3.0, -1, 1.0), first(-3.0, 0, 0.0), atol=1e-6)
    np.testing.assert_allclose(first(3.0, 1, 0.0), first(3.0, 0, 0.0), atol=1e-6)
    np.testing.assert_allclose(first(3.0, 1, 1.0), 1.0, atol=1e-6)


def test_draws_have_the_mixtures_mean():
    rng = np.random.default_rng(3)
    uniform, normal = rng.random(20_000), rng.normal(size=(20_000, 2))
    drawn = jax.vmap(sample_latent, (None, 0, 0))(MIXTURE, uniform, normal)
    expected = np.array([0.3, 0.7]) @ np.asarray(MIXTURE.mean)
    standard_error = np.asarray(drawn).std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(np.asarray(drawn).mean(axis=0) - expected) < 4 * standard_error).all()
