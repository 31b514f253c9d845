from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.estimators.kmifqe.algorithm import KMIFQEConfig
from kmifqe.maths.mlp import QParams, init_q
from kmifqe.trust.checks.weights import kernel_facts
from trust.fitted import KERNEL, SEEDS, sound_fit
from trust.planted import log_of, problem_of, world_of


def test_the_bias_is_that_of_theorem_2_for_a_nearly_quadratic_network():
    """Q = −c·u·tanh-layers of tiny argument is linear; curvature comes from one unit's bend, known in closed form."""
    _, estimate, problem = sound_fit()
    q, d = problem.state_dim, problem.action_dim
    b = 0.5  # where the first unit bends: tanh''(b) = −2 tanh(b)(1 − tanh²(b))
    w1 = jnp.zeros((q + d, 2)).at[q, 0].set(0.01)
    params = QParams(
        w1=w1[None],
        b1=jnp.array([[b, 0.0]]),
        w2=0.01 * jnp.eye(2)[None],
        b2=jnp.zeros((1, 2)),
        w3=jnp.array([[3e4, 0.0]]),
        b3=jnp.zeros(1),
    )
    h = 0.3
    state = estimate.final_state._replace(
        params=params, h=jnp.array([h]), reward_scale=jnp.array([2.0]), ahead=None
    )
    facts = kernel_facts(KMIFQEConfig(metric="identity"), state, problem)
    t = np.tanh(b)
    curvature = 3e4 * 0.01 * (-2 * t * (1 - t**2)) * 0.01**2
    gamma = float(problem.gamma)
    expected = gamma / (1 - gamma) * 0.5 * h**2 * curvature * 2.0
    assert facts["kernel_bias"] == pytest.approx(expected, rel=0.05)
    assert facts["metric_condition_quantiles"] == [1.0, 1.0, 1.0]


def test_mass_outside_is_that_of_a_gaussian_beyond_the_range():
    _, estimate, problem = sound_fit()
    actions = np.asarray(problem.actions)[:, 0]
    low, high = actions.min(), actions.max()
    half = 0.5 * float(problem.action_high[0] - problem.action_low[0])
    at_bound = replace(problem, target_actions=jnp.full_like(problem.target_actions, high))
    h = jnp.full(SEEDS, 0.05 * (high - low) / half)
    state = estimate.final_state._replace(h=h)
    config = KMIFQEConfig(metric="identity")
    error = 0.5 / np.sqrt(SEEDS * 1000 * 16)
    assert abs(kernel_facts(config, state, at_bound)["kernel_outside"] - 0.5) < 4 * error
    middle = replace(problem, target_actions=jnp.full_like(problem.target_actions, 0.5 * (low + high)))
    assert kernel_facts(config, state, middle)["kernel_outside"] == 0


def test_condition_numbers_keep_the_floor_s_bound():
    _, estimate, _ = sound_fit()
    world = world_of(0, 2)
    problem = problem_of(world, log_of(world, 0, 20, 10))
    params = jax.tree.map(lambda part: 3.0 * part[None], init_q(jax.random.key(0), 4, 16))
    state = estimate.final_state._replace(params=params, h=jnp.array([0.3]), reward_scale=jnp.ones(1))
    low, median, high = kernel_facts(KERNEL, state, problem)["metric_condition_quantiles"]
    assert 1.0 <= low <= median <= high <= 1 + 1 / KERNEL.metric_floor
    assert high > 1.5
