"""The landscape says what the estimators say, at states that were logged, and reads back as it was written."""

from __future__ import annotations

import zipfile
from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import lqr_problem
from kmifqe.errors import InputError
from kmifqe.estimators import FQEConfig, KMIFQEConfig, SRDICEConfig, make_fqe, make_kmifqe, make_sr_dice
from kmifqe.estimators.base import Estimate, Estimator, ValueUnits, config_dict, network_input
from kmifqe.estimators.fqe import FQEState
from kmifqe.estimators.kmifqe.algorithm import KMIFQEState
from kmifqe.maths.mlp import action_hessian, init_layers, init_q
from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.training import trained_q
from kmifqe.trust.landscape import (
    Points,
    Surface,
    choose_points,
    keep_landscape,
    read_landscape,
    surface_of,
    write_landscape,
)
from report.small import small_landscape

KERNEL = make_kmifqe(KMIFQEConfig(hidden=8, batch=32, target_period=5))
CUT = make_kmifqe(KMIFQEConfig(hidden=8, batch=32, target_period=5, cut_actions=True))
PLAIN = make_fqe(FQEConfig(hidden=8, batch=32, inputs="raw", bounded=False))
STANDARD = make_fqe(FQEConfig(hidden=8, batch=32, bounded=False))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return lqr_problem(dummies=1)[0]


def untrained(estimator: Estimator, problem: Problem, seed: int) -> KMIFQEState | FQEState:
    """Return a state as a fit would leave it, of fresh networks: nothing is compiled for it."""
    key, units = jax.random.key(seed), ValueUnits(jnp.float32(-0.5), jnp.float32(4.0))
    inputs = problem.state_dim + problem.action_dim
    if isinstance(estimator.config, KMIFQEConfig):
        known = {"params": init_q(key, inputs, 8), "h": jnp.float32(0.3), "units": units}
        return KMIFQEState(**dict.fromkeys(KMIFQEState._fields) | known)
    layers = init_layers(key, (inputs, 8, 8, 1))
    scale = 2.0 ** jnp.arange(inputs) if estimator.config.inputs == "raw" else jnp.ones(inputs)
    known = {"params": layers, "units": units, "input_scale": scale}
    return FQEState(**dict.fromkeys(FQEState._fields) | known)


@pytest.fixture(scope="module")
def fits(problem: Problem) -> dict[Estimator, Estimate]:
    seeds, made = (4, 7), {}
    for estimator in (KERNEL, CUT, PLAIN, STANDARD):
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


def plain_q(surface, seed, landscape, states, actions):
    """Return Q of one seed from the plain layers alone, as the report's page evaluates it."""
    if surface.cut_actions:
        actions = np.clip(actions, landscape.low, landscape.high)
    x = (np.concatenate([states, actions], axis=1) - surface.shift) / surface.scale
    *hidden, (w, b) = zip(surface.weights, surface.biases)
    for weights, biases in hidden:
        x = x @ weights[seed] + biases[seed]
        x = np.tanh(x) if surface.hidden == "tanh" else np.maximum(x, 0.0)
    return (x @ w[seed] + b[seed])[:, 0] * surface.unit[seed]


def points_of(estimator, estimate, problem):
    return choose_points(trained_q(estimator, estimate, problem)[0], problem)


@pytest.mark.parametrize(
    "estimator", [KERNEL, CUT, PLAIN, STANDARD], ids=["kmifqe", "kmifqe cut", "fqe", "fqe standardized"]
)
def test_the_layers_give_the_q_that_was_trained_beyond_the_action_box_too(estimator, fits, problem, tmp_path):
    assert keep_landscape(tmp_path / "landscape.npz", estimator, fits[estimator], problem)
    landscape = read_landscape(tmp_path / "landscape.npz")
    (surface,) = landscape.surfaces
    states, actions = np.asarray(problem.states), 3.0 * np.asarray(problem.actions)
    for position, q in trained_q(estimator, fits[estimator], problem).items():
        expected = q(states, actions)
        found = plain_q(surface, position, landscape, states, actions)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    assert surface.cut_actions == (estimator in (CUT, STANDARD))


def test_an_estimator_that_offers_no_layers_is_left_out(fits, problem, tmp_path):
    path = tmp_path / "landscape.npz"
    without_layers = PLAIN._replace(network=None)
    assert not keep_landscape(path, without_layers, fits[PLAIN], problem)
    assert not path.exists()


def test_points_are_logged_states_with_the_actions_taken_there(fits, problem):
    points = points_of(KERNEL, fits[KERNEL], problem)
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
    points = points_of(KERNEL, fits[KERNEL], problem)
    q = trained_q(KERNEL, fits[KERNEL], problem)[0](points.states, points.targets)
    for kind in (points.first, ~points.first):
        assert (np.diff(q[kind]) >= 0).all()
        assert (np.diff(points.rank[kind]) > 0).all()


def test_metrics_have_unit_determinant_and_the_hessians_eigenvectors(fits, problem):
    estimate = fits[KERNEL]
    points = points_of(KERNEL, estimate, problem)
    metrics = surface_of(KERNEL, estimate, problem, points).metrics
    np.testing.assert_allclose(np.linalg.det(metrics), 1.0, rtol=1e-4)
    params = jax.tree.map(lambda part: part[1], estimate.final_state.params)
    x = network_input(problem, points.states, points.targets, "standardized")
    for i in range(len(points)):
        H = np.asarray(action_hessian(params, x[i], problem.action_dim))
        commutator = metrics[1, i] @ H - H @ metrics[1, i]
        np.testing.assert_allclose(commutator, 0.0, atol=1e-4 * np.abs(H).max())


def test_an_isotropic_kernel_has_the_identity(fits, problem):
    isotropic = make_kmifqe(replace(KERNEL.config, metric="identity"))
    points = points_of(KERNEL, fits[KERNEL], problem)
    metrics = surface_of(isotropic, fits[KERNEL], problem, points).metrics
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
    dice = make_sr_dice(SRDICEConfig(hidden=8, features=8))
    for estimator, estimate in ((PLAIN, without_state), (PLAIN, diverged), (dice, without_state)):
        assert not keep_landscape(path, estimator, estimate, problem)
    assert not path.exists()


def test_a_diverged_seed_is_left_out(fits, problem):
    one_lost = replace(fits[PLAIN], values=np.array([np.nan, fits[PLAIN].values[1]]))
    (q,) = trained_q(PLAIN, one_lost, problem).values()
    surface = surface_of(PLAIN, one_lost, problem, choose_points(q, problem))
    np.testing.assert_array_equal(surface.seeds, [7])
    mean = q(np.asarray(problem.first_states), np.asarray(problem.first_actions)).mean()
    np.testing.assert_allclose(mean, fits[PLAIN].values[1], rtol=2e-5)


def test_what_was_written_is_read_back(tmp_path):
    written = small_landscape()
    write_landscape(tmp_path / "landscape.npz", written)
    read = read_landscape(tmp_path / "landscape.npz")
    np.testing.assert_array_equal(read.low, written.low)
    for field in fields(Points):
        np.testing.assert_array_equal(getattr(read.points, field.name), getattr(written.points, field.name))
    assert len(read.surfaces) == len(written.surfaces) == 2
    for ours, theirs in zip(written.surfaces, read.surfaces):
        for field in fields(Surface):
            one, other = getattr(ours, field.name), getattr(theirs, field.name)
            if isinstance(one, tuple):
                assert len(one) == len(other)
                for a, b in zip(one, other):
                    np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_array_equal(one, other)


def broken(path, how):
    landscape = small_landscape()
    if how == "not a zip":
        path.write_bytes(b"PK but not really")
    elif how == "another archive":
        np.savez(path, actions=np.zeros(3))
    elif how == "cut off":
        write_landscape(path, landscape)
        path.write_bytes(path.read_bytes()[:-300])
    elif how == "a bomb":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("schema.npy", bytes(24 * 2**20))
    elif how == "objects":
        with open(path, "wb") as file:
            np.savez(file, schema=np.array([{}], dtype=object))
    elif how == "wrong shape":
        points = replace(landscape.points, targets=landscape.points.targets[:, :1])
        write_landscape(path, replace(landscape, points=points))
    elif how == "unknown activation":
        surface = replace(landscape.surfaces[0], hidden="sin")
        write_landscape(path, replace(landscape, surfaces=(surface,)))


@pytest.mark.parametrize(
    "how",
    ["not a zip", "another archive", "cut off", "a bomb", "objects", "wrong shape", "unknown activation"],
)
def test_anything_else_is_refused_and_named(how, tmp_path):
    path = tmp_path / "landscape.npz"
    broken(path, how)
    with pytest.raises(InputError, match=r"landscape\.npz: "):
        read_landscape(path)
