from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.worlds.gym_train import TrainState, load_state, save_state
from kmifqe.worlds.td3 import Batch, Td3Config, add, init_buffer, td3

LEARNER = td3(Td3Config(actor_hidden=(4,), critic_hidden=(4,), batch=8), 2, [-1.0], [1.0])


def rows(start: int, n: int) -> Batch:
    values = jnp.arange(start, start + n, dtype=jnp.float32)
    pairs = jnp.stack([values, -values], axis=1)
    return Batch(pairs, values[:, None], values, pairs + 1, values % 2 == 0)


def state(seed: int, capacity: int, filled: int) -> TrainState:
    buffer = init_buffer(capacity, 2, 1)
    for start in range(0, filled, 5):
        buffer = add(buffer, rows(start, 5))
    return TrainState(LEARNER.init(jax.random.key(seed)), buffer, steps=filled, rounds=filled // 5)


def test_a_state_comes_back_bit_for_bit(tmp_path):
    kept = state(0, capacity=100, filled=20)
    save_state(kept, tmp_path / "s.safetensors")
    back = load_state(tmp_path / "s.safetensors", state(1, capacity=100, filled=0))
    assert (back.steps, back.rounds) == (20, 4)
    jax.tree.map(np.testing.assert_array_equal, kept.learner, back.learner)
    jax.tree.map(np.testing.assert_array_equal, kept.buffer, back.buffer)


@pytest.mark.parametrize("capacity", [10, 15, 40])
def test_a_ring_that_went_round_is_kept_from_the_oldest_row_to_the_newest(tmp_path, capacity):
    save_state(state(0, capacity=15, filled=35), tmp_path / "s.safetensors")
    buffer = load_state(tmp_path / "s.safetensors", state(0, capacity, filled=0)).buffer
    kept = min(capacity, 15)
    assert int(buffer.size) == kept
    assert buffer.rows.rewards[:kept].tolist() == list(range(35 - kept, 35))
    assert buffer.rows.terminated[:kept].tolist() == [i % 2 == 0 for i in range(35 - kept, 35)]
    assert int(buffer.position) == kept % capacity


def test_a_state_of_another_network_or_a_broken_file_is_refused(tmp_path):
    path = tmp_path / "s.safetensors"
    save_state(state(0, 10, 5), path)
    wider = state(0, 10, 0)
    wider = wider._replace(learner=wider.learner._replace(actor=[(jnp.zeros((2, 5)), jnp.zeros(5))]))
    with pytest.raises(
        InputError, match=r"learner.actor.* holds float32 \(2, 4\); expected float32 \(2, 5\)"
    ):
        load_state(path, wider)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match="not a readable training state"):
        load_state(path, state(0, 10, 0))
