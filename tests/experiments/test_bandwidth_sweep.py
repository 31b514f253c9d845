import jax
import numpy as np

from kmifqe.estimators import KMIFQEConfig, kmifqe
from kmifqe.experiments.trials import MixtureLog, make_trial, swept


def test_each_bandwidth_of_a_sweep_begins_as_it_would_alone():
    """Steps and refreshes of a fixed bandwidth read it from the state: the same beginning is the same fit."""
    problem = make_trial(MixtureLog(dummies=1, rows=400, uniform_share=1.0), seed=0).problem
    config, key = KMIFQEConfig(hidden=4, batch=8), jax.random.key(4)
    together = jax.jit(swept(config, (0.2, 0.9)).init)(key, problem)
    alone = jax.jit(kmifqe(KMIFQEConfig(hidden=4, batch=8, bandwidth=0.9)).init)(key, problem)
    assert jax.tree.structure(together) == jax.tree.structure(alone)
    for swept_leaf, leaf in zip(jax.tree.leaves(together), jax.tree.leaves(alone)):
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            np.testing.assert_allclose(swept_leaf[1], leaf, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(together.h, [0.2, 0.9], rtol=1e-6)
    assert not np.allclose(together.envelope.mean[0], together.envelope.mean[1], rtol=1e-3)
