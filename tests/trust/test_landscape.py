"""The landscape says what the estimators say: their values, their metrics, at states that were logged."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import lqr_problem
from kmifqe.estimators import FQEConfig, KMIFQEConfig, SRDICEConfig, fqe, kmifqe, sr_dice
from kmifqe.estimators.base import Estimate, Estimator, config_dict, network_input
from kmifqe.estimators.fqe import FQEState
from kmifqe.estimators.kmifqe.algorithm import KMIFQEState
from kmifqe.maths.mlp import action_hessian, init_layers, init_q
from kmifqe.mdp.problem import Problem
from kmifqe.trust.landscape import choose_points, keep_landscape, read_landscape, surface_of, with_metrics

KERNEL = kmifqe(KMIFQEConfig(hidden=8, batch=32, target_period=5))
PLAIN = fqe(FQEConfig(hidden=8, batch=32))
STANDARD = fqe(FQEConfig(hidden=8, batch=32, inputs="standardized"))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return lqr_problem(dummies=1)[0]


def untrained(estimator: Estimator, problem: Problem, seed: int) -> KMIFQEState | FQEState:
    """Return a state as a fit would leave it, of fresh networks: nothing is compiled for it."""
    key, unit = jax.random.key(seed), jnp.float32(4.0)
    inputs = problem.state_dim + problem.action_dim
    if isinstance(estimator.config, KMIFQEConfig):
        known = {"params": init_q(key, inputs, 8), "h": jnp.float32(0.3), "reward_scale": unit}
        return KMIFQEState(**dict.fromkeys(KMIFQEState._fields) | known)
    layers = init_layers(key, (inputs, 8, 8, 1))
    scale = 2.0 ** jnp.arange(inputs) if estimator.config.inputs == "raw" else jnp.ones(inputs)
    known = {"params": layers, "reward_scale": unit, "input_scale": scale}
    return FQEState(**dict.fromkeys(FQEState._fields) | known)


@pytest.fixture(scope="module")
def fits(problem: Problem) -> dict[Estimator, Estimate]:
    seeds, made = (4, 7), {}
    for estimator in (KERNEL, PLAIN, STANDARD):
        states = [untrained(estimator, problem, seed) for seed in seeds]
        values = np.array([float(estimator.value(state, problem)) for state in states])
        made[estimator] = Estimate(
            estimator.name,
            config_dict(estimator.config),
            float(problem.gamma),
            seeds,
            steps=1,
            values=values,
            recorded_steps=np.array([1]),
            trajectory=values[None],
            infos={},
            seconds=0.0,
            device="",
            final_state=jax.tree.map(lambda *parts: jnp.stack(parts), *states),
        )
    return made


@pytest.mark.parametrize("estimator", [KERNEL, PLAIN, STANDARD], ids=["kmifqe", "fqe", "fqe standardized"])
def test_mean_q_of_the_first_states_is_the_value(estimator, fits, problem):
    surface = surface_of(estimator, fits[estimator], problem)
    for i, value in enumerate(fits[estimator].values):
        q = surface.q(i, np.asarray(problem.first_states), np.asarray(problem.first_actions))
        np.testing.assert_allclose(q.mean(), value, rtol=2e-5, atol=1e-6)


def test_points_are_logged_states_with_the_actions_taken_there(fits, problem):
    points = choose_points(surface_of(KERNEL, fits[KERNEL], problem), problem)
    firsts, states = np.asarray(problem.first_states), np.asarray(problem.states)
    assert points.first.sum() == 3
    assert len(points) == 8
    for i in np.flatnonzero(points.first):
        episode = np.flatnonzero((firsts == points.states[i]).all(axis=1))[0]
        np.testing.assert_array_equal(points.targets[i], np.asarray(problem.first_actions)[episode])
        row = np.flatnonzero((states == points.states[i]).all(axis=1))[0]
        np.testing.assert_array_equal(points.logged[i], np.asarray(problem.actions)[row])
    for i in np.flatnonzero(~points.first):
        row = np.flatnonzero((np.asarray(problem.next_states) == points.states[i]).all(axis=1))[0]
        np.testing.assert_array_equal(points.targets[i], np.asarray(problem.target_actions)[row])
        np.testing.assert_array_equal(points.logged[i], np.asarray(problem.next_actions)[row])


def test_points_go_from_poor_to_good(fits, problem):
    surface = surface_of(KERNEL, fits[KERNEL], problem)
    points = choose_points(surface, problem)
    q = surface.q(0, points.states, points.targets)
    for kind in (points.first, ~points.first):
        assert (np.diff(q[kind]) >= 0).all()
        assert (np.diff(points.rank[kind]) > 0).all()


def test_metrics_have_unit_determinant_and_the_hessians_eigenvectors(fits, problem):
    estimate = fits[KERNEL]
    surface = surface_of(KERNEL, estimate, problem)
    points = choose_points(surface, problem)
    metrics = with_metrics(surface, KERNEL, estimate, points).metrics
    np.testing.assert_allclose(np.linalg.det(metrics), 1.0, rtol=1e-4)
    params = jax.tree.map(lambda part: part[1], estimate.final_state.params)
    x = network_input(problem, points.states, points.targets, "standardized")
    for i in range(len(points)):
        H = np.asarray(action_hessian(params, x[i], problem.action_dim))
        commutator = metrics[1, i] @ H - H @ metrics[1, i]
        np.testing.assert_allclose(commutator, 0.0, atol=1e-4 * np.abs(H).max())


def test_an_isotropic_kernel_has_the_identity(fits, problem):
    isotropic = KERNEL._replace(config=replace(KERNEL.config, metric="identity"))
    surface = surface_of(KERNEL, fits[KERNEL], problem)
    points = choose_points(surface, problem)
    metrics = with_metrics(surface, isotropic, fits[KERNEL], points).metrics
    np.testing.assert_array_equal(metrics, np.broadcast_to(np.eye(problem.action_dim), metrics.shape))


def test_estimators_share_one_file_and_its_points(fits, problem, tmp_path):
    path = tmp_path / "landscape.npz"
    assert keep_landscape(path, KERNEL, fits[KERNEL], problem)
    alone = read_landscape(path)
    assert keep_landscape(path, PLAIN, fits[PLAIN], problem)
    assert keep_landscape(path, KERNEL, fits[KERNEL], problem)  # again: replaced, not doubled
    both = read_landscape(path)
    assert [surface.estimator for surface in both.surfaces] == ["fqe", "kmifqe"]
    np.testing.assert_array_equal(both.points.states, alone.points.states)
    for surface in both.surfaces:
        np.testing.assert_array_equal(surface.seeds, [4, 7])


def test_the_landscape_of_another_log_or_a_broken_one_is_replaced(fits, problem, tmp_path):
    path = tmp_path / "landscape.npz"
    elsewhere = replace(problem, first_states=problem.first_states + 1.0)
    keep_landscape(path, PLAIN, fits[PLAIN], elsewhere)
    keep_landscape(path, KERNEL, fits[KERNEL], problem)
    assert [surface.estimator for surface in read_landscape(path).surfaces] == ["kmifqe"]
    path.write_bytes(b"half a file")
    keep_landscape(path, PLAIN, fits[PLAIN], problem)
    assert [surface.estimator for surface in read_landscape(path).surfaces] == ["fqe"]


def test_nothing_is_written_where_there_is_no_q(fits, problem, tmp_path):
    path = tmp_path / "landscape.npz"
    without_state = replace(fits[PLAIN], final_state=None)
    diverged = replace(fits[PLAIN], values=np.array([np.nan, np.inf]))
    dice = sr_dice(SRDICEConfig(hidden=8, features=8))
    for estimator, estimate in ((PLAIN, without_state), (PLAIN, diverged), (dice, without_state)):
        assert not keep_landscape(path, estimator, estimate, problem)
    assert not path.exists()


def test_a_diverged_seed_is_left_out(fits, problem):
    one_lost = replace(fits[PLAIN], values=np.array([np.nan, fits[PLAIN].values[1]]))
    surface = surface_of(PLAIN, one_lost, problem)
    np.testing.assert_array_equal(surface.seeds, [7])
    q = surface.q(0, np.asarray(problem.first_states), np.asarray(problem.first_actions))
    np.testing.assert_allclose(q.mean(), fits[PLAIN].values[1], rtol=2e-5)
