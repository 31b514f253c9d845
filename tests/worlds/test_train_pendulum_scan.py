from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.worlds.td3 import Td3Config, Td3State, td3
from kmifqe.worlds.train_pendulum import Environment, train

SMALL = Td3Config(actor_hidden=(32, 32), critic_hidden=(64, 64), learning_rate=1e-3, batch=128, gamma=0.9)


def point_step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    state = jnp.clip(state + 0.3 * action, -1.0, 1.0)
    return state, -(state[..., 0] ** 2), jnp.zeros(state.shape[:-1], bool)


POINT = Environment(
    reset=lambda key, batch: jax.random.uniform(key, (batch, 1), minval=-1.0, maxval=1.0),
    observe=lambda state: state,
    step=point_step,
    observation_dim=1,
    low=(-1.0,),
    high=(1.0,),
    time_limit=10,
)


LEARNER = td3(SMALL, 1, POINT.low, POINT.high)


def train_point(seed: int) -> Iterator[tuple[int, Td3State]]:
    return train(seed, POINT, LEARNER, steps=3_000, n_envs=10, warmup=500, report_every=500)


def test_it_learns_to_bring_a_point_to_the_origin():
    *_, (_, state) = train_point(0)
    states = jnp.linspace(-1.0, 1.0, 101)[:, None]
    for _ in range(8):
        states, _, _ = POINT.step(states, LEARNER.act(state, states))
    assert float(jnp.abs(states).max()) < 0.1


def test_it_reports_as_often_as_asked_and_the_seed_decides_all():
    assert [steps for steps, _ in train_point(0)] == [1_000, 1_500, 2_000, 2_500, 3_000]
    one, same, other = (np.asarray(next(train_point(seed))[1].actor[0][0]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_warmup_that_fills_nothing_is_refused():
    with pytest.raises(InputError, match="warmup at least n_envs"):
        next(train(0, POINT, LEARNER, steps=100, n_envs=8, warmup=4))
