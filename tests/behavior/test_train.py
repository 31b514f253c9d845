import jax.numpy as jnp
import numpy as np

from kmifqe.behavior import FitConfig
from kmifqe.behavior.fit import Rows, train_networks

CONFIG = FitConfig(components=(1, 3), hidden=(16,), batch=128, steps=5000, check_every=25, patience=4)
EDGES = jnp.array([[-4.0], [4.0]])


def rows(seed, n):
    rng = np.random.default_rng(seed)
    arrays = rng.normal(size=(n, 2)), rng.normal(size=(n, 1)), np.zeros((n, 1))
    return Rows(*(jnp.asarray(a, dtype) for a, dtype in zip(arrays, (jnp.float32, jnp.float32, jnp.int8))))


def test_a_standard_normal_reaches_its_entropy_and_stops_early():
    trained = train_networks(rows(0, 2000), check := rows(1, 2000), EDGES, 0.0, CONFIG, None)
    truth = float((-0.5 * check.z**2 - 0.5 * np.log(2 * np.pi)).mean())
    assert (np.abs(trained.held_out[:, 0] - truth) < 0.05).all()
    assert trained.steps < 5000
    # Padded to three components for training, each network is handed out with its own count only.
    assert [trained.network(i, k, 1)[-1][0].shape for i, k in enumerate((1, 3))] == [(16, 3), (16, 9)]
