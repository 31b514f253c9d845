from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.estimators.kmifqe.algorithm import KMIFQEConfig
from kmifqe.maths.kernel import clipped_weight, effective_sample_size
from kmifqe.trust.checks.weights import weight_facts
from trust.fitted import KERNEL, SEEDS, sound_fit


@pytest.fixture(scope="module")
def fitted():
    _, estimate, problem = sound_fit()
    return estimate.final_state, problem


def weights_of(state, problem, seed, clip):
    """The weights as training computes them, under jit."""
    n, d = problem.counts.going_on, problem.action_dim
    half = 0.5 * (problem.action_high - problem.action_low)
    log_mu = problem.log_mu[:n].sum(axis=1, keepdims=True) + jnp.sum(jnp.log(half))
    one = lambda s, m: clipped_weight(s, state.h[seed], m, d, clip)  # noqa: E731
    return np.asarray(jax.vmap(one)(state.ahead.squared[seed], log_mu), np.float64)


def test_facts_are_those_of_the_weights_that_training_draws_by(fitted):
    state, problem = fitted
    facts = weight_facts(KERNEL, state, problem)
    per_seed = [weights_of(state, problem, i, KERNEL.clip) for i in range(SEEDS)]
    assert facts["mean_weight"] == pytest.approx(np.mean([w.mean() for w in per_seed]), rel=1e-4)
    expected = np.mean([float(effective_sample_size(jnp.asarray(w, jnp.float32))) for w in per_seed])
    assert facts["effective_rows"] == pytest.approx(expected, rel=1e-3)
    assert np.sum(facts["weight_histogram"]) == pytest.approx(1.0)


def test_unclipped_weights_average_1_within_their_standard_error_as_the_density_is_right(fitted):
    facts = weight_facts(KERNEL, *fitted)
    assert abs(facts["raw_mean_weight"] - 1.0) < 4 * facts["raw_mean_weight_error"]
    assert facts["raw_mean_weight_error"] < 0.1


def test_what_the_clip_holds_down_and_takes_away(fitted):
    state, problem = fitted
    raw = [weights_of(state, problem, i, (0.0, float("inf"))) for i in range(SEEDS)]
    facts = weight_facts(replace(KERNEL, clip=(0.05, 1.5)), state, problem)
    high = np.mean([np.mean(w > 1.5) for w in raw])
    low = np.mean([np.mean(w < 0.05) for w in raw])
    assert (facts["clipped_high"], facts["clipped_low"]) == (pytest.approx(high), pytest.approx(low))
    taken = np.mean([np.maximum(w - 1.5, 0).sum() / w.sum() for w in raw])
    assert facts["weight_cut_off"] == pytest.approx(taken, rel=1e-4)
    clipped = [np.clip(w, 0.05, 1.5) for w in raw]
    held = np.mean([c[w < 0.05].sum() / c.sum() for c, w in zip(clipped, raw)])
    assert facts["floor_weight_share"] == pytest.approx(held, rel=1e-4)


def test_without_a_clip_nothing_is_clipped(fitted):
    facts = weight_facts(replace(KERNEL, clip=(0.0, float("inf"))), *fitted)
    assert (facts["clipped_low"], facts["clipped_high"], facts["weight_cut_off"]) == (0, 0, 0)
    assert facts["mean_weight"] == facts["raw_mean_weight"]


def test_a_seed_without_a_bandwidth_is_left_out(fitted):
    state, problem = fitted
    sick = state._replace(h=state.h.at[0].set(jnp.nan))
    assert np.isfinite(weight_facts(KERNEL, sick, problem)["mean_weight"])
    assert weight_facts(KERNEL, state._replace(h=jnp.full(SEEDS, jnp.nan)), problem) == {}


def test_per_dimension_clips_are_counted_by_row(fitted):
    state, problem = fitted
    config = KMIFQEConfig(clip_per_dimension=True, clip=(1e-3, 1.5))  # one dimension: the same as in total
    total = KMIFQEConfig(clip=(1e-3, 1.5))
    assert weight_facts(config, state, problem) == weight_facts(total, state, problem)
