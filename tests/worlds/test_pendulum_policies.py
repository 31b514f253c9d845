import jax
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor
from kmifqe.mdp.ask import FactorizedBehavior, Policy
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE
from kmifqe.worlds.pendulum_policies import (
    PendulumBehavior,
    controller_of,
    load_pendulum_actors,
    with_dummies,
)


def constant_actor(torque: float) -> Actor:
    """An actor that plays `torque` in every state."""
    box = np.full(1, MAX_TORQUE, np.float32)
    weights, biases = (np.zeros((3, 1), np.float32),), (np.full(1, torque, np.float32),)
    return Actor(weights, biases, hidden="relu", output="clip", low=-box, high=box)


def some_states(n: int) -> np.ndarray:
    theta, speed = np.random.default_rng(0).uniform(-3, 3, (2, n))
    return np.stack([np.cos(theta), np.sin(theta), speed], axis=1).astype(np.float32)


def test_the_target_leaves_the_dummies_at_zero():
    actor, _ = load_pendulum_actors()
    policy = with_dummies(actor, 3)
    actions = policy(some_states(10))
    np.testing.assert_array_equal(actions[:, :1], actor(some_states(10)))
    np.testing.assert_array_equal(actions[:, 1:], np.zeros((10, 3)))
    assert isinstance(policy, Policy)
    assert (policy.state_dim, policy.action_dim) == (3, 4)
    np.testing.assert_array_equal(policy.low, np.full(4, -2.0))
    np.testing.assert_array_equal(policy.high, np.full(4, 2.0))


@pytest.mark.parametrize("torque", [0.0, 1.7])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_the_first_action_has_a_density_that_integrates_to_one(torque, share):
    behavior = PendulumBehavior(constant_actor(torque), 0, std=0.5, uniform_share=share)
    edges = np.linspace(-10, 10, 40_001)
    middles = (edges[:-1] + edges[1:]) / 2  # midpoints, so that no node lies on the uniform's jump
    density = np.exp(behavior.log_prob(some_states(len(middles)), middles[:, None]))
    assert density.sum() * (edges[1] - edges[0]) == pytest.approx(1.0, abs=1e-5)


def test_the_density_is_the_written_mixture():
    behavior = PendulumBehavior(constant_actor(0.5), 2)
    actions = np.array([[0.5, 0.0, -2.0], [3.5, 1.0, 1.0], [0.0, 2.5, 0.0]], np.float32)
    gaussian = np.exp([0.0, -4.5, -0.125]) / np.sqrt(2 * np.pi)  # std 0.5 · a_max = 1
    inside = np.array([0.25, 0.0, 0.25])  # 3.5 is outside the box
    expected = np.stack([0.8 * gaussian + 0.2 * inside, [0.25, 0.25, 0.0], [0.25, 0.25, 0.25]], axis=1)
    per_dimension = behavior.log_prob_per_dimension(some_states(3), actions)
    np.testing.assert_allclose(np.exp(per_dimension), expected, rtol=1e-6)
    np.testing.assert_allclose(behavior.log_prob(some_states(3), actions), per_dimension.sum(axis=1))
    assert np.isneginf(per_dimension[2, 1])
    assert isinstance(behavior, FactorizedBehavior)


def test_draws_follow_the_density():
    n, mean, std, share = 200_000, 0.8, 1.0, 0.2
    behavior = PendulumBehavior(constant_actor(mean), 2)
    draws = behavior.sample(jax.random.key(0), some_states(n)).astype(np.float64)
    assert draws.shape == (n, 3)
    second_moment = (1 - share) * (mean**2 + std**2) + share * MAX_TORQUE**2 / 3
    within_four_standard_errors(draws[:, 0], (1 - share) * mean)
    within_four_standard_errors(draws[:, 0] ** 2, second_moment)
    for dummy in (1, 2):
        assert np.abs(draws[:, dummy]).max() <= MAX_TORQUE
        within_four_standard_errors(draws[:, dummy], 0.0)
        within_four_standard_errors(draws[:, dummy] ** 2, MAX_TORQUE**2 / 3)
    within_four_standard_errors(draws[:, 0] * draws[:, 1], 0.0)
    # Importance weights of another density g on draws from μ have mean ∫g = 1: μ is right everywhere g lives.
    log_mu = behavior.log_prob_per_dimension(some_states(n), draws)[:, 0].astype(np.float64)
    log_g = -0.5 * ((draws[:, 0] + 1.0) / 0.6) ** 2 - np.log(0.6 * np.sqrt(2 * np.pi))
    within_four_standard_errors(np.exp(log_g - log_mu), 1.0)


def within_four_standard_errors(samples: np.ndarray, expected: float) -> None:
    error = samples.std() / np.sqrt(len(samples))
    assert abs(samples.mean() - expected) < 4 * error, f"{samples.mean()} ± {error}, expected {expected}"


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"n_dummies": -1}, "n_dummies is -1"),
        ({"std": 0.0}, "std is 0.0"),
        ({"std": float("nan")}, "std is nan"),
        ({"uniform_share": 1.2}, "uniform_share is 1.2"),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        PendulumBehavior(constant_actor(0.0), **{"n_dummies": 0, **settings})


def test_an_actor_for_another_task_is_refused():
    box = np.ones(2, np.float32)
    hopper_like = Actor(
        (np.zeros((11, 2), np.float32),), (box,), "relu", "tanh", low=-box, high=box, name="hopper"
    )
    for wrong in (lambda: with_dummies(hopper_like, 1), lambda: controller_of(hopper_like)):
        with pytest.raises(InputError, match="hopper: 11 inputs and 2 outputs; Pendulum needs 3 and 1"):
            wrong()


def test_actions_of_another_width_are_refused():
    with pytest.raises(InputError, match=r"\(5, 1\); expected \(steps, 3\)"):
        PendulumBehavior(constant_actor(0.0), 2).log_prob(some_states(5), np.zeros((5, 1)))


def test_a_plain_function_does_not_run_inside_jax():
    with pytest.raises(TypeError, match="function does not run inside jax"):
        controller_of(lambda states: states)
