from pathlib import Path

import jax
import numpy as np
import pytest

from kmifqe.estimators import KMIFQEConfig, make_kmifqe
from kmifqe.estimators.base import action_scale, config_dict
from kmifqe.experiments.pendulum import (
    GAMMA,
    MixtureLog,
    ShiftedLog,
    jackknife,
    make_trial,
    mixture_log,
    run_of,
    swept,
    trial_errors,
    variance,
)
from kmifqe.experiments.presets import PRESETS
from kmifqe.experiments.records import RESULTS, Place, is_done, read_records
from kmifqe.worlds.pendulum import value_of_states
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE

ROOT = Path(__file__).parents[2]


def test_a_shifted_log_has_the_density_that_it_was_drawn_from():
    width = 0.4
    problem = make_trial(ShiftedLog(rows=20_000, width=width), seed=3).problem
    known = problem.counts.in_sample  # the rows whose next action was logged come first
    away = (np.asarray(problem.next_actions) - np.asarray(problem.target_actions))[:known] / MAX_TORQUE
    # The torque is around the target's; the dummy half of its greatest value off. Four standard errors each.
    bound = 4.0 * width / np.sqrt(len(away))
    np.testing.assert_allclose(away.mean(axis=0), [0.0, 0.5], atol=bound)
    np.testing.assert_allclose(away.std(axis=0), [width, width], atol=bound)
    z = (away - np.array([0.0, 0.5])) / width
    expected = -0.5 * (z**2).sum(axis=1) - 2.0 * np.log(width * MAX_TORQUE * np.sqrt(2.0 * np.pi))
    np.testing.assert_allclose(np.asarray(problem.log_mu)[:known].sum(axis=1), expected, atol=1e-4)


def test_the_truth_is_of_the_logged_first_states_and_logs_differ_by_seed():
    log = MixtureLog(dummies=2, rows=500, uniform_share=0.2)
    one, other = make_trial(log, 0), make_trial(log, 1)
    values = value_of_states(np.asarray(one.problem.first_states), one.target, GAMMA)
    assert one.truth == pytest.approx(values.mean())
    assert not np.allclose(one.problem.states[:5], other.problem.states[:5])
    assert action_scale(one.problem)[1].tolist() == [MAX_TORQUE] * 3
    assert make_trial(log, 0) is one  # the next method is judged on the same log


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_log_and_runs(name):
    preset = PRESETS[name]
    assert mixture_log(preset, 2).dummies == 2
    kernel, identity, fqe = (
        run_of(method, preset) for method in ("kmifqe-paper", "kmifqe-identity", "fqe-paper")
    )
    assert kernel.estimator.config.metric == "learned"
    assert identity.estimator.config.metric == "identity"
    assert kernel.steps == identity.steps
    assert kernel.steps % kernel.estimator.config.target_period == 0
    assert (fqe.estimator.config.inputs, fqe.estimator.config.units) == ("raw", "rewards")


def test_each_bandwidth_of_a_sweep_begins_as_it_would_alone():
    """Steps and refreshes of a fixed bandwidth read it from the state: the same beginning is the same fit."""
    problem = make_trial(MixtureLog(dummies=1, rows=400, uniform_share=1.0), seed=0).problem
    config, key = KMIFQEConfig(hidden=4, batch=8), jax.random.key(4)
    together = jax.jit(swept(config, (0.2, 0.9)).init)(key, problem)
    alone = jax.jit(make_kmifqe(KMIFQEConfig(hidden=4, batch=8, bandwidth=0.9)).init)(key, problem)
    assert jax.tree.structure(together) == jax.tree.structure(alone)
    for swept_leaf, leaf in zip(jax.tree.leaves(together), jax.tree.leaves(alone)):
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            np.testing.assert_allclose(swept_leaf[1], leaf, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(together.h, [0.2, 0.9], rtol=1e-6)
    assert not np.allclose(together.envelope.mean[0], together.envelope.mean[1], rtol=1e-3)


def test_the_mean_squared_error_is_bias_squared_plus_the_spread():
    errors = np.array([[0.1], [0.4], [-0.2], [0.3]])
    told = trial_errors(errors)
    assert told["rmse"] ** 2 == pytest.approx(told["bias_squared"] + told["variance"] * 3 / 4)
    assert told["training_variance"] is None


def test_the_variance_of_a_trial_is_that_of_its_log_and_of_its_training():
    rng = np.random.default_rng(0)
    logs, seeds = 20_000, 3
    errors = 0.7 * rng.standard_normal((logs, 1)) + 0.5 * rng.standard_normal((logs, seeds))
    assert trial_errors(errors[:100])["training_variance"] == pytest.approx(0.25, abs=0.1)
    # Relative standard error of a variance from 20,000 logs: 1 %.
    assert variance(errors) == pytest.approx(0.49 + 0.25, rel=0.04)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    errors = np.array([[1.0, 2.0], [4.0, 5.0], [-3.0, 0.0], [2.0, 2.0]])
    means = errors.mean(axis=1)
    assert jackknife(lambda e: float(e.mean()), errors) == pytest.approx(means.std(ddof=1) / 2.0)


def test_one_trial_that_diverged_leaves_no_figure_that_would_flatter():
    told = trial_errors(np.array([[0.1], [np.nan], [0.2]]))
    assert told["diverged"] == 1
    assert {told[name] for name in ("rmse", "bias", "bias_squared", "variance", "standard_error")} == {None}


@pytest.mark.parametrize(("logs", "known"), [(1, ()), (2, ("variance",)), (3, ("variance", "rmse_error"))])
def test_what_too_few_logs_cannot_tell_is_left_open(logs, known):
    told = trial_errors(np.linspace(0.1, 0.3, logs)[:, None])
    assert told["rmse"] is not None
    assert tuple(name for name in ("variance", "rmse_error") if told[name] is not None) == known


@pytest.mark.parametrize("method", ["fqe-paper", "sr-dice"])
def test_the_committed_figures_have_the_settings_of_their_preset(method):
    for record in read_records(ROOT / RESULTS, "shift", "small"):
        if record.method == method:
            config = run_of(method, PRESETS["small"]).estimator.config
            asked = {**record.settings, "estimator": config_dict(config)}
            assert is_done(ROOT / RESULTS, Place("small", "shift", record.row, method), asked)
