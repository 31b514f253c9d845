import numpy as np
import pytest

from kmifqe.estimators.base import action_scale
from kmifqe.experiments.demo import GAMMA
from kmifqe.experiments.presets import PRESETS
from kmifqe.experiments.trials import MixtureLog, ShiftedLog, make_trial, mixture_log, run_of
from kmifqe.worlds.pendulum import value_of_states
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE


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
    kernel, identity, fqe = (run_of(method, preset) for method in ("kmifqe", "kmifqe-identity", "fqe"))
    assert kernel.estimator.config.metric == "learned"
    assert identity.estimator.config.metric == "identity"
    assert kernel.steps == identity.steps
    assert kernel.steps % kernel.estimator.config.target_period == 0
    assert fqe.estimator.name == "fqe"
