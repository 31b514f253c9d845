"""Weights and kernel: what is measured of a fit, and how it is judged."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from kmifqe.estimators import KMIFQEConfig, make_kmifqe
from kmifqe.estimators.base import Estimate, ValueUnits
from kmifqe.experiments.planted import log_of, problem_of, world_of
from kmifqe.maths.kernel import clipped_weight, effective_sample_size
from kmifqe.maths.mlp import QParams, init_q
from kmifqe.trust.checks.base import Reach
from kmifqe.trust.checks.weights import (
    EDGES,
    KernelFacts,
    WeightFacts,
    kernel_facts,
    weight_checks,
    weight_facts,
)
from trust.fitted import KERNEL, SEEDS, kernel_estimator, sound_fit

WEIGHTS = WeightFacts(
    bandwidth=[0.3, 0.3],
    bandwidth_bounds=[0.01, 2.0],
    clip=[1e-3, 10.0],
    factors=1,
    rows=5000,
    weight_edges=[-0.5, 0.5],
    weight_histogram=[1.0],
    mean_weight=1.0,
    effective_rows=800.0,
    clipped_low=0.4,
    clipped_high=0.0,
    floor_weight_share=0.0,
    weight_cut_off=0.0,
    clip_bias=0.0,
    raw_mean_weight=1.0,
    raw_mean_weight_error=0.01,
    raw_effective_rows=800.0,
)
KERNEL_FACTS = KernelFacts(metric_condition_quantiles=[1.0, 2.0, 8.0], kernel_outside=0.0, kernel_bias=0.01)
SOUND = Estimate(
    estimator="kmifqe",
    config={},
    gamma=0.9,
    seeds=(0, 1),
    steps=1000,
    values=np.array([-1.0, -1.1]),
    recorded_steps=np.arange(50, 1001, 50),
    trajectory=np.full((20, 2), -1.0),
    infos={"h": np.full((20, 2), 0.3)},
    seconds=1.0,
    device="cpu",
)


REACH = Reach(0.1, 0.1)


def found(estimate=SOUND, reach=REACH, **facts):
    """Return the checks of sound weights and a sound kernel in which some facts are changed."""
    of_kernel = {name: facts.pop(name) for name in list(facts) if name in KernelFacts.__struct_fields__}
    weights = msgspec.structs.replace(WEIGHTS, **facts)
    kernel = msgspec.structs.replace(KERNEL_FACTS, **of_kernel)
    return {check.name: check for check in weight_checks(estimate, weights, kernel, reach)}


def test_sound_weights_raise_no_alarm():
    assert {d.level for d in found().values()} == {"ok"}


@pytest.mark.parametrize(
    "name, fact, care, bad",
    [
        ("clipped_high", "clip_bias", -0.2, 0.6),
        ("clipped_low", "floor_weight_share", 0.3, 0.8),
        ("kernel_outside", "kernel_outside", 0.7, 0.95),
        ("kernel_bias", "kernel_bias", -0.2, 0.6),
    ],
)
def test_each_fault_has_its_name(name, fact, care, bad):
    for value, level in ((care, "care"), (bad, "bad")):
        told = found(**{fact: value})
        assert told[name].level == level
        assert told[name].finding


def histogram(*weights):
    """Return the edges of a histogram of raw weights, and the shares in it."""
    counts, _ = np.histogram(np.log10(weights), EDGES)
    return {"weight_edges": EDGES.tolist(), "weight_histogram": (counts / len(weights)).tolist()}


@pytest.mark.parametrize(("near", "level"), [(500, "ok"), (60, "care"), (20, "bad")])
def test_effective_rows_are_those_near_the_target(near, level):
    """So many of 5,000 rows weigh ten, the others next to nothing."""
    weights = [10.0] * near + [1e-5] * (5000 - near)
    told = found(**histogram(*weights))["effective_rows"]
    assert told.level == level
    assert told.value == pytest.approx(near, rel=0.05)


def test_one_row_far_in_the_tail_hides_no_others_where_the_clip_holds_it_down():
    tail = histogram(9_000.0, *[1.0] * 4999)
    assert found(**tail, raw_effective_rows=2.0)["effective_rows"].level == "ok"
    for clip in ([1e-3, None], [1e-3, 1e4]):  # such a row decides what is learned
        assert found(**tail, raw_effective_rows=2.0, clip=clip)["effective_rows"].level == "bad"


def test_the_mean_weight_is_held_against_the_kernel_s_mass_where_actions_are():
    assert found(raw_mean_weight=0.55, kernel_outside=0.45)["mean_weight"].level == "ok"
    assert found(raw_mean_weight=0.55)["mean_weight"].level == "bad"
    assert found(raw_mean_weight=1.15)["mean_weight"].level == "care"


def test_a_mean_weight_is_no_proof_within_its_error_or_over_few_rows():
    assert found(raw_mean_weight=0.5, raw_mean_weight_error=0.13)["mean_weight"].level == "ok"
    assert found(raw_mean_weight=0.5, raw_effective_rows=40.0)["mean_weight"].level == "ok"


def with_bandwidths(h):
    return replace(SOUND, infos={"h": np.tile(np.asarray(h, float)[:, None], (1, 2))})


def test_a_bandwidth_that_still_moves_or_sits_on_its_bound_is_told():
    falling = np.exp(-np.linspace(0, 4, 20))
    assert found(with_bandwidths(falling))["bandwidth"].level == "care"
    at_bound = found(with_bandwidths(np.full(20, 2.0)))["bandwidth"]
    assert at_bound.level == "care"
    assert "ended at its bound" in at_bound.finding
    assert found(with_bandwidths(np.full(20, 2.0)), bandwidth_bounds=None)["bandwidth"].level == "ok"  # fixed


def test_a_bandwidth_as_wide_as_the_log_allows_is_named_and_no_fault():
    widest, inside = (found(widest_bandwidth=bound)["bandwidth"] for bound in (0.3, 0.6))
    assert widest.level == inside.level == "ok"
    assert widest.finding != inside.finding


def test_a_bandwidth_that_scatters_about_a_constant_is_steady():
    scatter = 0.3 * np.exp(0.2 * np.random.default_rng(0).standard_normal(100))
    long = replace(with_bandwidths(scatter), recorded_steps=np.arange(10, 1001, 10))
    assert found(long)["bandwidth"].level == "ok"


@pytest.mark.parametrize("clip, mean", [([1e-3, 2.0], 1e-3), ([0.0, None], 0.0)])
def test_weights_that_tell_no_row_from_another_are_named(clip, mean):
    flat = replace(SOUND, infos=SOUND.infos | {"mean_weight": np.full((20, 2), mean)})
    told = found(flat, clip=clip)["flat_weights"]
    assert told.level == "bad"
    assert told.finding.startswith(
        f"Every importance weight is at its least, {mean:g}: no logged action is near"
    )
    above = replace(SOUND, infos=SOUND.infos | {"mean_weight": np.full((20, 2), mean + 1e-4)})
    assert "flat_weights" not in found(above, clip=clip)
    assert "flat_weights" not in found(
        flat, clip=clip, factors=3
    )  # a product may lie below every factor's least


def test_without_an_interval_the_bias_is_not_judged():
    assert "kernel_bias" not in found(reach=None)


def test_a_bias_that_is_taken_off_is_judged_by_how_far_it_moves_the_value():
    for moved, level in ((-0.15, "ok"), (0.25, "care"), (0.6, "bad")):
        told = found(bias_removed=moved, kernel_bias=9.0)
        assert told["bias_removed"].level == level
        assert "kernel_bias" not in told  # it is in V̂ no longer
    assert "+0.6" in told["bias_removed"].finding
    assert told["bias_removed"].value == pytest.approx(6.0)


def test_an_estimator_says_how_far_its_correction_moved_the_value():
    def removed(estimate, **config):
        return make_kmifqe(KMIFQEConfig(**config)).kernel.bias_removed(estimate)

    estimate = replace(SOUND, infos=SOUND.infos | {"bias": np.full((20, 2), -0.25)})
    assert removed(estimate, bias="subtracted") == pytest.approx(0.25)
    assert removed(estimate) is None  # a bias that is never taken off is one that V̂ has


def facts_of(state=None, **config):
    """Return the facts of the sound fit's weights, with another final state or other settings where given."""
    _, estimate, problem = sound_fit()
    changed = replace(estimate, final_state=estimate.final_state if state is None else state)
    return weight_facts(kernel_estimator(**config), changed, problem)


@pytest.fixture(scope="module")
def fitted():
    _, estimate, problem = sound_fit()
    return estimate.final_state, problem


def weights_of(state, problem, seed, clip):
    """The weights as training computes them, under jit."""
    n, d = problem.counts.nonterminal, problem.action_dim
    half = 0.5 * (problem.action_high - problem.action_low)
    log_mu = problem.log_mu[:n].sum(axis=1, keepdims=True) + jnp.sum(jnp.log(half))
    one = lambda s, m: clipped_weight(s, state.h[seed], m, d, clip)  # noqa: E731
    return np.asarray(jax.vmap(one)(state.table.squared[seed], log_mu), np.float64)


def test_facts_are_those_of_the_weights_that_training_draws_by(fitted):
    state, problem = fitted
    facts = facts_of()
    per_seed = [weights_of(state, problem, i, KERNEL.clip) for i in range(SEEDS)]
    assert facts.mean_weight == pytest.approx(np.mean([w.mean() for w in per_seed]), rel=1e-4)
    expected = np.mean([float(effective_sample_size(jnp.asarray(w, jnp.float32))) for w in per_seed])
    assert facts.effective_rows == pytest.approx(expected, rel=1e-3)
    assert np.sum(facts.weight_histogram) == pytest.approx(1.0)


def test_unclipped_weights_average_1_within_their_standard_error_as_the_density_is_right():
    facts = facts_of()
    assert abs(facts.raw_mean_weight - 1.0) < 4 * facts.raw_mean_weight_error
    assert facts.raw_mean_weight_error < 0.1


def test_what_the_clip_holds_down_and_takes_away(fitted):
    state, problem = fitted
    raw = [weights_of(state, problem, i, (0.0, float("inf"))) for i in range(SEEDS)]
    facts = facts_of(clip=(0.05, 1.5))
    high = np.mean([np.mean(w > 1.5) for w in raw])
    low = np.mean([np.mean(w < 0.05) for w in raw])
    assert (facts.clipped_high, facts.clipped_low) == (pytest.approx(high), pytest.approx(low))
    taken = np.mean([np.maximum(w - 1.5, 0).sum() / w.sum() for w in raw])
    assert facts.weight_cut_off == pytest.approx(taken, rel=1e-4)
    clipped = [np.clip(w, 0.05, 1.5) for w in raw]
    held = np.mean([c[w < 0.05].sum() / c.sum() for c, w in zip(clipped, raw)])
    assert facts.floor_weight_share == pytest.approx(held, rel=1e-4)


def test_a_clip_that_takes_half_of_the_weight_and_moves_nothing_is_no_fault():
    assert found(weight_cut_off=0.6, clipped_high=0.3, clip_bias=0.05)["clipped_high"].level == "ok"
    assert found(reach=None, weight_cut_off=0.6, clip_bias=5.0)["clipped_high"].level == "ok"


def test_a_clip_costs_what_it_moves_of_the_weighted_q(fitted):
    _, problem = fitted
    _, estimate, _ = sound_fit()

    def bias(clip, q):
        return weight_facts(kernel_estimator(clip=clip)._replace(q=q), estimate, problem).clip_bias

    def of_action(state, problem, states, actions):
        return jnp.sum(actions**2, axis=1)

    narrow, none = (1e-3, 0.3), (1e-3, float("inf"))
    moved = bias(narrow, of_action)
    assert moved != 0.0
    assert bias(narrow, lambda *at: 3.0 * of_action(*at)) == pytest.approx(3.0 * moved, rel=1e-3)
    assert bias(none, of_action) == pytest.approx(0.0, abs=1e-6)
    assert bias(narrow, lambda state, problem, states, actions: states[:, 0]) == 0.0
    assert bias(narrow, None) is None


def test_without_a_clip_nothing_is_clipped():
    facts = facts_of(clip=(0.0, float("inf")))
    assert (facts.clipped_low, facts.clipped_high, facts.weight_cut_off) == (0, 0, 0)
    assert facts.clip_bias == pytest.approx(0.0, abs=1e-6)
    assert facts.mean_weight == pytest.approx(facts.raw_mean_weight, rel=1e-5)
    assert facts.clip == [0.0, None]


def test_a_seed_without_a_bandwidth_is_left_out(fitted):
    state, _ = fitted
    sick = state._replace(h=state.h.at[0].set(jnp.nan))
    facts = facts_of(sick)
    assert np.isfinite(facts.mean_weight)
    assert len(facts.bandwidth) == SEEDS - 1
    assert facts_of(state._replace(h=jnp.full(SEEDS, jnp.nan))) is None


def test_per_dimension_clips_are_counted_by_row():
    """There is one action dimension here, so that both ways to clip are the same."""
    assert facts_of(clip_per_dimension=True, clip=(1e-3, 1.5)) == facts_of(clip=(1e-3, 1.5))


def kernel_facts_of(state, problem, **config):
    """Return the facts of as many seeds as the state holds."""
    seeds = len(state.h)
    _, estimate, _ = sound_fit()
    changed = replace(estimate, final_state=state, seeds=tuple(range(seeds)), values=np.zeros(seeds))
    return kernel_facts(kernel_estimator(**config), changed, problem)


def test_the_bias_is_that_of_theorem_2_for_a_nearly_quadratic_network():
    """Q = −c·u·tanh-layers of tiny argument is linear; its curvature is that of one unit, known in closed form."""
    _, estimate, problem = sound_fit()
    q, d = problem.state_dim, problem.action_dim
    b = 0.5  # where the first unit is curved: tanh''(b) = −2 tanh(b)(1 − tanh²(b))
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
        params=params, h=jnp.array([h]), units=ValueUnits(jnp.zeros(1), jnp.array([2.0])), table=None
    )
    facts = kernel_facts_of(state, problem, metric="identity")
    t = np.tanh(b)
    curvature = 3e4 * 0.01 * (-2 * t * (1 - t**2)) * 0.01**2
    gamma = float(problem.gamma)
    expected = gamma / (1 - gamma) * 0.5 * h**2 * curvature * 2.0
    assert facts.kernel_bias == pytest.approx(expected, rel=0.05)
    assert facts.metric_condition_quantiles == [1.0, 1.0, 1.0]


def test_a_bias_adds_up_only_until_episodes_end():
    """With ends at a rate p, V is off by the sum of (γ(1 − p))ᵗ biases, not by that of γᵗ."""
    _, estimate, problem = sound_fit()
    whole = kernel_facts_of(estimate.final_state, problem, metric="identity").kernel_bias
    counts, gamma = problem.counts, float(problem.gamma)
    # As many rows go on as before, so that the same ones are looked at.
    ends = counts.in_sample // 19
    ending = replace(
        problem,
        counts=replace(counts, in_sample=counts.in_sample + ends, terminated=counts.terminated + ends),
    )
    cut = kernel_facts_of(estimate.final_state, ending, metric="identity").kernel_bias
    steps, rates = np.arange(1, 2_000), [c.terminated / c.in_sample for c in (ending.counts, counts)]
    summed = [np.sum((gamma * (1 - rate)) ** steps) for rate in rates]
    assert cut / whole == pytest.approx(summed[0] / summed[1], rel=1e-6)
    assert rates[0] == pytest.approx(0.05, abs=1e-3)


def test_mass_outside_is_that_of_a_gaussian_beyond_the_range():
    _, estimate, problem = sound_fit()
    actions = np.asarray(problem.actions)[:, 0]
    low, high = actions.min(), actions.max()
    half = 0.5 * float(problem.action_high[0] - problem.action_low[0])
    at_bound = replace(problem, target_actions=jnp.full_like(problem.target_actions, high))
    h = jnp.full(SEEDS, 0.05 * (high - low) / half)
    state = estimate.final_state._replace(h=h)
    error = 0.5 / np.sqrt(SEEDS * 1000 * 16)
    assert abs(kernel_facts_of(state, at_bound, metric="identity").kernel_outside - 0.5) < 4 * error
    middle = replace(problem, target_actions=jnp.full_like(problem.target_actions, 0.5 * (low + high)))
    assert kernel_facts_of(state, middle, metric="identity").kernel_outside == 0


def test_condition_numbers_keep_the_floor_s_bound():
    _, estimate, _ = sound_fit()
    world = world_of(0, 2)
    problem = problem_of(world, log_of(world, 0, 20, 10))
    params = jax.tree.map(lambda part: 3.0 * part[None], init_q(jax.random.key(0), 4, 16))
    state = estimate.final_state._replace(
        params=params, h=jnp.array([0.3]), units=ValueUnits(jnp.zeros(1), jnp.ones(1))
    )
    low, median, high = kernel_facts_of(state, problem).metric_condition_quantiles
    assert 1.0 <= low <= median <= high <= 1 + 1 / KERNEL.metric_floor
    assert high > 1.5
