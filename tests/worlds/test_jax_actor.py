from dataclasses import replace

import jax
import numpy as np
import pytest

from kmifqe.io.policies.actor import Actor
from kmifqe.worlds.pendulum_policies import jax_actor


def random_actor(**settings: object) -> Actor:
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 8), (8, 8), (8, 2))]
    biases = [rng.normal(size=n).astype(np.float32) for n in (8, 8, 2)]
    actor = Actor(
        tuple(weights),
        tuple(biases),
        hidden="relu",
        output="tanh",
        low=np.array([-2.0, 0.0], np.float32),
        high=np.array([2.0, 1.0], np.float32),
    )
    return replace(actor, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"hidden": "tanh"},
        {"output": "clip"},
        {"mean_clip": 0.3},
        {"obs_mean": np.ones(3, np.float32), "obs_var": np.full(3, 4.0, np.float32), "obs_clip": 0.5},
    ],
    ids=["plain", "tanh", "clip", "mean_clip", "normalised"],
)
def test_it_acts_as_the_numpy_actor_does(settings):
    actor = random_actor(**settings)
    states = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32)
    inside_jax = jax.jit(lambda a, s: a(s))(jax_actor(actor), states)
    np.testing.assert_allclose(inside_jax, actor(states), atol=2e-6)
    assert np.ptp(inside_jax, axis=0).min() > 0.1, "a constant actor would prove nothing"
