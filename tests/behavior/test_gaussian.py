import numpy as np
import pytest
from scipy import stats

from kmifqe.behavior import Behavior, FactorizedBehavior, GaussianBehavior
from kmifqe.errors import InputError


def linear(states):
    return np.stack([0.5 * states[:, 0], -states[:, 1]], axis=1).astype(np.float32)


STATES = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
LOW, HIGH = np.array([-2.0, -1.0]), np.array([2.0, 3.0])


def test_std_is_in_units_of_half_the_action_range():
    behavior = GaussianBehavior(linear, 0.3, [-2.0, -5.0], [2.0, 1.0])
    np.testing.assert_allclose(behavior.scale, [0.6, 0.9])


def test_density_is_scipys_normal():
    behavior = GaussianBehavior(linear, 0.3, LOW, HIGH)
    actions = behavior.sample(np.random.default_rng(1), STATES)
    expected = stats.norm.logpdf(actions.astype(float), linear(STATES).astype(float), behavior.scale)
    np.testing.assert_allclose(behavior.log_prob_per_dimension(STATES, actions), expected, rtol=1e-12)
    np.testing.assert_allclose(behavior.log_prob(STATES, actions), expected.sum(axis=1), rtol=1e-12)


def test_pendulum_mixture_of_the_paper():
    behavior = GaussianBehavior(linear, 0.5, [-2, -2], [2, 2], uniform_share=(0.2, 1.0))
    actions = np.array([[0.7, 1.5], [2.5, -1.0]])
    states = np.array([[1.0, 0.0], [1.0, 0.0]])
    gaussian = 0.8 * stats.norm.pdf([0.7, 2.5], 0.5, 1.0)
    expected = np.log(np.stack([gaussian + 0.2 * np.array([0.25, 0.0]), [0.25, 0.25]], axis=1))
    np.testing.assert_allclose(behavior.log_prob_per_dimension(states, actions), expected, rtol=1e-12)


def test_each_dimension_integrates_to_one():
    behavior = GaussianBehavior(linear, 0.4, LOW, HIGH, uniform_share=0.3)
    grid = np.linspace(-15, 15, 300_001)
    density = np.exp(behavior.log_prob_per_dimension(np.full((len(grid), 2), 0.3), np.stack([grid, grid], 1)))
    np.testing.assert_allclose(density.sum(axis=0) * (grid[1] - grid[0]), 1.0, atol=1e-4)


def test_far_actions_neither_overflow_nor_vanish():
    behavior = GaussianBehavior(linear, 0.1, LOW, HIGH, uniform_share=0.2)
    far = behavior.log_prob(STATES[:2], np.array([[1e6, 0.0], [-1e30, 0.0]]))
    assert np.isfinite(far).all()
    assert (far < -1e9).all()
    assert (behavior.log_prob_per_dimension(STATES, np.zeros((500, 2))) >= np.log(0.2 / 4.0)).all()


def test_a_uniform_dimension_has_no_density_outside_the_box():
    behavior = GaussianBehavior(linear, 0.5, LOW, HIGH, uniform_share=1.0)
    per_dimension = behavior.log_prob_per_dimension(STATES[:1], np.array([[2.1, 3.0]]))
    np.testing.assert_array_equal(per_dimension, [[-np.inf, np.log(0.25)]])


def test_draws_have_the_stated_mean_spread_and_leave_the_box():
    behavior = GaussianBehavior(linear, 0.5, LOW, HIGH)
    states = np.ones((40_000, 2), np.float32)
    drawn = behavior.sample(np.random.default_rng(2), states)
    standard_error = behavior.scale / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - [0.5, -1.0]) < 4 * standard_error).all()
    assert (np.abs(drawn.std(axis=0) - behavior.scale) < 4 * standard_error / np.sqrt(2)).all()
    outside = (drawn[:, 0] > 2.0).mean()
    expected = stats.norm.sf(2.0, 0.5, 1.0)
    assert abs(outside - expected) < 4 * np.sqrt(expected / len(drawn))


def test_satisfies_the_protocols():
    behavior = GaussianBehavior(linear, 0.5, LOW, HIGH)
    assert isinstance(behavior, Behavior)
    assert isinstance(behavior, FactorizedBehavior)
    assert "std=0.5" in repr(behavior)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"std": 0.0}, "std is 0"),
        ({"std": float("nan")}, "std is nan"),
        ({"std": (0.1, 0.2, 0.3)}, "std is"),
        ({"uniform_share": 1.5}, "uniform_share is 1.5"),
        ({"low": [-1.0], "high": [1.0, 1.0]}, "numbers in low"),
        ({"low": [1.0, 1.0], "high": [1.0, 2.0]}, "low below high"),
    ],
)
def test_wrong_settings_are_named(arguments, named):
    with pytest.raises(InputError, match=named):
        GaussianBehavior(linear, **{"std": 0.5, "low": LOW, "high": HIGH} | arguments)


def test_a_policy_or_actions_of_the_wrong_width_are_refused():
    with pytest.raises(InputError, match="the policy gave shape"):
        GaussianBehavior(lambda s: s[:, :1], 0.5, LOW, HIGH).log_prob(STATES, STATES)
    with pytest.raises(InputError, match="actions have shape"):
        GaussianBehavior(linear, 0.5, LOW, HIGH).log_prob(STATES, STATES[:, :1])
