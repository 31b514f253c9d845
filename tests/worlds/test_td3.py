from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.worlds.td3 import Batch, Buffer, Td3Config, Td3State, add, init_buffer, sample, td3

SMALL = Td3Config(
    actor_hidden=(16, 16), critic_hidden=(32, 32), learning_rate=3e-3, batch=64, gamma=0.5, tau=0.1
)
LOW, HIGH = (-2.0, 1.0), (2.0, 4.0)
ROWS = 2_048
LEARNER = td3(SMALL, 2, LOW, HIGH)  # one for all tests, so that its functions compile once


def numbered(first: int, n: int) -> Batch:
    """Rows whose reward is their number."""
    number = jnp.arange(first, first + n, dtype=jnp.float32)
    return Batch(number[:, None], number[:, None], number, number[:, None] + 1, jnp.zeros(n, bool))


def random_batch(reward_of: Callable[[jax.Array, jax.Array], jax.Array], terminated: bool) -> Batch:
    state_key, action_key = jax.random.split(jax.random.key(0))
    states = jax.random.uniform(state_key, (ROWS, 2), minval=-1.0, maxval=1.0)
    actions = jax.random.uniform(action_key, (ROWS, 2), minval=jnp.array(LOW), maxval=jnp.array(HIGH))
    return Batch(states, actions, reward_of(states, actions), states, jnp.full(ROWS, terminated))


def filled(batch: Batch) -> Buffer:
    return add(init_buffer(ROWS, 2, 2), batch)


def trained(batch: Batch, hundreds: int) -> Td3State:
    """The learner after so many hundred updates."""
    state, buffer = LEARNER.init(jax.random.key(0)), filled(batch)
    for key in jax.random.split(jax.random.key(1), hundreds):
        state, _ = LEARNER.update(key, state, buffer, 100)
    return state


def test_the_buffer_keeps_the_latest_rows():
    buffer = init_buffer(10, 1, 1)
    for first in (0, 4, 8):
        buffer = add(buffer, numbered(first, 4))
    assert (int(buffer.size), int(buffer.position)) == (10, 2)
    assert sorted(buffer.rows.rewards.tolist()) == list(range(2, 12))
    np.testing.assert_array_equal(buffer.rows.next_states[:, 0], buffer.rows.rewards + 1)


def test_samples_are_whole_rows_from_the_filled_part_only():
    buffer = add(init_buffer(1_000, 1, 1), numbered(1, 20))
    batch = sample(jax.random.key(0), buffer, 2_000)
    assert set(batch.rewards.tolist()) == set(range(1, 21))
    np.testing.assert_array_equal(batch.next_states[:, 0], batch.rewards + 1)


def test_exploration_stays_in_the_box_around_the_policy():
    state = LEARNER.init(jax.random.key(0))
    states = jnp.zeros((20_000, 2))
    noisy = np.asarray(LEARNER.explore(jax.random.key(1), state, states), np.float64)
    assert (noisy >= LOW).all()
    assert (noisy <= HIGH).all()
    noise = (noisy - np.asarray(LEARNER.act(state, states))) / ((np.array(HIGH) - LOW) / 2)
    assert np.abs(noise.mean(axis=0)).max() < 4 * 0.1 / np.sqrt(20_000)
    np.testing.assert_allclose(noise.std(axis=0), 0.1, atol=4 * 0.1 / np.sqrt(2 * 20_000))


def test_the_policy_moves_every_second_update_only_and_the_targets_trail():
    start = LEARNER.init(jax.random.key(0))
    buffer = filled(random_batch(lambda s, a: a[:, 0], terminated=False))
    once, _ = LEARNER.update(jax.random.key(1), start, buffer, 1)
    twice, _ = LEARNER.update(jax.random.key(2), once, buffer, 1)
    assert same(once.actor, start.actor)
    assert not same(once.critics, start.critics)
    assert not same(twice.actor, start.actor)
    assert same(once.target_critics, start.target_critics)
    trailing = jax.tree.map(
        lambda new, old: SMALL.tau * new + (1 - SMALL.tau) * old, twice.critics, start.critics
    )
    for expected, found in zip(jax.tree.leaves(trailing), jax.tree.leaves(twice.target_critics)):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def same(one: object, other: object) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)))


@pytest.mark.parametrize("terminated, expected", [(True, 1.0), (False, 2.0)])
def test_a_constant_reward_is_worth_its_geometric_sum_unless_the_end_is_real(terminated, expected):
    """r = 1 for ever at γ = 0.5 is worth 2; r = 1 and then the end is worth 1."""
    batch = random_batch(lambda s, a: jnp.ones(len(s)), terminated)
    _, info = LEARNER.update(jax.random.key(2), trained(batch, 6), filled(batch), 1)
    assert float(info.mean_q) == pytest.approx(expected, abs=0.05)
    assert float(info.critic_loss) < 0.01


def test_it_finds_the_best_action_of_a_bandit():
    """One-step episodes, reward −|a − a*(s)|²: the policy must become a*, in the environment's own scale."""

    def best(states: jax.Array) -> jax.Array:
        return jnp.stack([states[:, 0], 2.5 + states[:, 1]], axis=1)

    batch = random_batch(lambda s, a: -((a - best(s)) ** 2).sum(axis=1), terminated=True)

    def regret(state: Td3State) -> float:
        return float(jnp.abs(LEARNER.act(state, batch.states) - best(batch.states)).mean())

    blind = 0.5  # the least a policy that ignores the state can miss by: E|U[-1, 1]|
    assert regret(trained(batch, 30)) < 0.3 * blind


def test_same_key_same_bits():
    batch = random_batch(lambda s, a: a[:, 0], terminated=False)
    assert same(trained(batch, 1), trained(batch, 1))


def test_the_exported_actor_acts_as_the_learner_does():
    state = LEARNER.init(jax.random.key(0))
    states = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    actor = LEARNER.export(state, "mine")
    np.testing.assert_allclose(actor(states), LEARNER.act(state, states), atol=2e-6)
    assert (actor.hidden, actor.output, actor.name) == ("relu", "tanh", "mine")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"gamma": 1.0}, "gamma is 1.0"),
        ({"tau": 0.0}, "tau is 0.0"),
        ({"policy_delay": 0}, "policy_delay is 0"),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        Td3Config(**settings)


def test_an_unbounded_action_space_is_refused():
    with pytest.raises(InputError, match="finite bounds"):
        td3(SMALL, 2, (-np.inf,), (np.inf,))
