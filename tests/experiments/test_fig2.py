import jax.numpy as jnp
import numpy as np

from kmifqe.experiments.demo import GAMMA
from kmifqe.experiments.fig2 import STATES, exact_q
from kmifqe.worlds.pendulum import value_of_states
from kmifqe.worlds.pendulum_dynamics import observe
from kmifqe.worlds.pendulum_policies import load_pendulum_actors, with_dummies


def test_the_exact_q_obeys_bellman_and_ignores_the_dummy():
    target = with_dummies(load_pendulum_actors()[0], 1)
    states = np.asarray(observe(jnp.array([state[1:] for state in STATES])))
    actions = target(states)
    here = exact_q(states, actions, target)
    np.testing.assert_allclose(here, value_of_states(states, target, GAMMA), atol=1e-5)
    np.testing.assert_array_equal(here, exact_q(states, actions + np.array([[0.0, 1.3]]), target))
    other_way = exact_q(states, -actions, target)
    assert (here - other_way)[1:].min() > 0.1  # there the torque matters, and the target's is the better one
