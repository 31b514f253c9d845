import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.worlds.pendulum_dynamics import EPISODE_STEPS, MAX_SPEED, observe, reset, state_of, step
from kmifqe.worlds.train_pendulum import PENDULUM


def random_states_and_actions(n: int) -> tuple[np.ndarray, np.ndarray]:
    """States all over the space, some spun far past π, actions in and out of the box."""
    rng = np.random.default_rng(0)
    states = np.stack([rng.uniform(-10, 10, n), rng.uniform(-8, 8, n)], axis=1)
    return states.astype(np.float32), rng.uniform(-4, 4, (n, 3)).astype(np.float32)


def gymnasium_step(env: gymnasium.Env, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, float]:
    env.unwrapped.state = np.asarray(state, np.float64)
    observation, reward, *_ = env.unwrapped.step(action)
    return observation, reward


def test_one_step_is_gymnasiums_from_any_state():
    env = gymnasium.make("Pendulum-v1")
    states, actions = random_states_and_actions(1_000)
    next_states, rewards, terminated = step(jnp.asarray(states), jnp.asarray(actions))
    expected = [gymnasium_step(env, s, a[:1]) for s, a in zip(states, actions)]
    np.testing.assert_allclose(observe(next_states), [o for o, _ in expected], atol=2e-5)
    np.testing.assert_allclose(rewards, [r for _, r in expected], atol=2e-4)
    assert not terminated.any()


def test_a_whole_episode_is_gymnasiums():
    env = gymnasium.make("Pendulum-v1")
    first, _ = env.reset(seed=3)
    state = state_of(jnp.asarray(first))
    actions = np.random.default_rng(1).uniform(-2.5, 2.5, (EPISODE_STEPS, 1)).astype(np.float32)
    truncated = False
    for t, action in enumerate(actions):
        assert not truncated, f"Gymnasium cut the episode after {t} steps"
        # Gymnasium's checker wants actions inside the box, and clips what it gets; ours are logged as drawn.
        observation, reward, terminated, truncated, _ = env.step(np.clip(action, -2, 2))
        state, our_reward, _ = step(state, jnp.asarray(action))
        np.testing.assert_allclose(observe(state), observation, atol=2e-3, err_msg=f"step {t}")
        assert our_reward == pytest.approx(reward, abs=2e-3)
        assert not terminated
    assert truncated


def test_dummy_actions_do_nothing():
    states, actions = random_states_and_actions(50)
    with_dummies = step(jnp.asarray(states), jnp.asarray(actions))
    without = step(jnp.asarray(states), jnp.asarray(actions[:, :1]))
    for ours, plain in zip(with_dummies, without):
        np.testing.assert_array_equal(ours, plain)


def test_an_observation_gives_its_state_back():
    states = np.asarray(reset(jax.random.key(0), 500))
    np.testing.assert_allclose(state_of(observe(jnp.asarray(states))), states, atol=1e-6)


def test_first_states_fill_gymnasiums_range_uniformly():
    n = 20_000
    states = np.asarray(reset(jax.random.key(0), n))
    bound = np.array([np.pi, 1.0])
    assert (np.abs(states) <= bound).all()
    unit = states / bound
    assert np.abs(unit.mean(axis=0)).max() < 4 / np.sqrt(3 * n)  # four standard errors of a mean of U[-1, 1]
    assert np.abs((unit**2).mean(axis=0) - 1 / 3).max() < 4 * np.sqrt(4 / 45 / n)


def test_bounds_are_gymnasiums():
    env = gymnasium.make("Pendulum-v1")
    assert env.spec.max_episode_steps == PENDULUM.time_limit
    np.testing.assert_array_equal(env.action_space.low, PENDULUM.low)
    np.testing.assert_array_equal(env.action_space.high, PENDULUM.high)
    np.testing.assert_array_equal(env.observation_space.high, [1.0, 1.0, MAX_SPEED])
    assert env.observation_space.shape == (PENDULUM.observation_dim,)
