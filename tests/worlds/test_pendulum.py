import re
from importlib.resources import files

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor
from kmifqe.worlds import pendulum
from kmifqe.worlds.pendulum import collect, true_value, value_of_states
from kmifqe.worlds.pendulum_dynamics import EPISODE_STEPS, observe, reset, state_of, step
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors, with_dummies

TARGET, BEHAVIOR_MEAN = load_pendulum_actors()


@pytest.fixture(scope="module")
def log():
    return collect(0, PendulumBehavior(BEHAVIOR_MEAN, 2), 10_100)


def test_the_next_state_is_what_the_action_leads_to(log):
    next_state, reward, _ = step(state_of(jnp.asarray(log.states)), jnp.asarray(log.actions))
    np.testing.assert_allclose(log.next_states, observe(next_state), atol=2e-5)
    np.testing.assert_allclose(log.rewards, reward, atol=1e-4)
    inside = np.flatnonzero(log.has_next_action)
    np.testing.assert_array_equal(log.next_states[inside], log.states[inside + 1])
    np.testing.assert_array_equal(log.next_actions[inside], log.actions[inside + 1])


def test_episodes_are_cut_after_200_steps_and_never_terminate(log):
    assert (len(log), log.n_episodes) == (10_100, 51)
    np.testing.assert_array_equal(log.first_rows, np.arange(0, 10_100, EPISODE_STEPS))
    assert not log.terminated.any()
    assert log.has_next_state.all()
    ends = np.append(np.arange(EPISODE_STEPS, 10_100, EPISODE_STEPS), 10_100) - 1
    np.testing.assert_array_equal(np.flatnonzero(log.truncated), ends)


def test_the_logged_density_is_the_behaviours_own(log):
    behavior = PendulumBehavior(BEHAVIOR_MEAN, 2)
    np.testing.assert_array_equal(log.log_mu, behavior.log_prob_per_dimension(log.states, log.actions))


def test_actions_are_logged_as_drawn(log):
    assert np.abs(log.actions[:, 0]).max() > 2.0
    assert np.abs(log.actions[:, 1:]).max() <= 2.0


def test_the_seed_decides_the_log():
    behavior = PendulumBehavior(BEHAVIOR_MEAN, 1)
    one, same, other = (collect(seed, behavior, 400) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.actions, same.actions)
    assert not np.array_equal(one.actions, other.actions)


def test_a_row_is_followed_by_its_next_state_however_cosines_round(monkeypatch):
    """A compiler may work out an observation twice, in two ways: no step of an episode may look like its end."""
    roundings = np.random.default_rng(0)
    monkeypatch.setattr(pendulum, "EPISODE_STEPS", 10)
    monkeypatch.setattr(pendulum, "observe", lambda state: observe(state) + 1e-3 * roundings.random())
    with jax.disable_jit():  # so that each call of observe rounds anew, and by more than a reader lets pass
        log = collect(0, PendulumBehavior(BEHAVIOR_MEAN, 0), 20)
    np.testing.assert_array_equal(log.first_rows, [0, 10])
    np.testing.assert_array_equal(log.next_states[:9], log.states[1:10])


def test_the_log_is_made_on_the_processor(monkeypatch):
    used = []

    def noting(function):
        def noted(*args):
            used.append(jax.config.jax_default_device)
            return function(*args)

        return noted

    density = PendulumBehavior.log_prob_per_dimension
    monkeypatch.setattr(pendulum, "_log_steps", noting(pendulum._log_steps))
    monkeypatch.setattr(PendulumBehavior, "log_prob_per_dimension", noting(density))
    behavior = PendulumBehavior(BEHAVIOR_MEAN, 0)
    collect(5, behavior, 300)
    assert used == 2 * [jax.devices("cpu")[0]]

    def not_there(platform):
        raise RuntimeError(f"unknown backend {platform}")

    monkeypatch.setattr(jax, "devices", not_there)  # as with JAX_PLATFORMS=cuda
    collect(5, behavior, 300)
    assert used[2:] == [None, None]


def test_the_value_of_a_state_is_what_gymnasium_returns():
    gamma, env = 0.9, gymnasium.make("Pendulum-v1").unwrapped
    first_states = np.asarray(reset(jax.random.key(5), 8))
    values = value_of_states(np.asarray(observe(jnp.asarray(first_states))), with_dummies(TARGET, 2), gamma)
    for state, value in zip(first_states, values):
        env.reset()
        env.state = state.astype(np.float64)
        observation, total = env._get_obs(), 0.0
        for t in range(250):  # 0.9^250 = 4e-12
            observation, reward, *_ = env.step(TARGET(observation[None])[0])
            total += (1 - gamma) * gamma**t * reward
        assert value == pytest.approx(total, abs=2e-3)


def test_the_value_goes_on_past_the_time_limit():
    """A pendulum that hangs still for ever costs π² a step, at any discount."""
    hanging = np.array([[-1.0, 0.0, 0.0]], np.float32)
    idle = Actor(
        (np.zeros((3, 1), np.float32),),
        (np.zeros(1, np.float32),),
        hidden="relu",
        output="clip",
        low=np.full(1, -2.0, np.float32),
        high=np.full(1, 2.0, np.float32),
    )
    for gamma in (0.0, 0.5, 0.99, 0.995):
        assert value_of_states(hanging, idle, gamma)[0] == pytest.approx(-(np.pi**2), rel=1e-4)


def test_truth_over_first_states_agrees_with_truth_state_by_state():
    truth = true_value(0, with_dummies(TARGET, 1), 0.95, 2_000)
    states = np.asarray(observe(reset(jax.random.key(7), 2_000)))
    values = value_of_states(states, TARGET, 0.95)
    error = np.hypot(truth.standard_error, values.std() / np.sqrt(len(values)))
    assert abs(truth.value - values.mean()) < 4 * error


def test_the_behaviours_truth_is_the_discounted_sum_of_its_own_log():
    behavior, gamma = PendulumBehavior(BEHAVIOR_MEAN, 1), 0.9
    truth = true_value(0, behavior, gamma, 2_000)
    rewards = (
        collect(1, behavior, 2_000 * EPISODE_STEPS).rewards.reshape(-1, EPISODE_STEPS).astype(np.float64)
    )
    for sums, expected, expected_error in (
        ((1 - gamma) * rewards @ gamma ** np.arange(EPISODE_STEPS), truth.value, truth.standard_error),
        (rewards.sum(axis=1), truth.episode_return, truth.episode_return_standard_error),
    ):
        error = np.hypot(expected_error, sums.std() / np.sqrt(len(sums)))
        assert abs(sums.mean() - expected) < 4 * error


def test_truth_and_data_of_one_seed_start_from_different_states():
    behavior = PendulumBehavior(BEHAVIOR_MEAN, 0)
    log = collect(0, behavior, 50 * EPISODE_STEPS)
    logged = value_of_states(log.states[log.first_rows], TARGET, 0.95).mean()
    assert logged != pytest.approx(true_value(0, TARGET, 0.95, 50).value, abs=1e-4)


def stated_figures() -> list[tuple[float, float]]:
    """(R, V) of the target, the behaviour mean and its mixture, as the shipped README states them."""
    readme = (files("kmifqe.worlds") / "actors" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (-[\d.]+) ± [\d.]+ \| (-[\d.]+) ± [\d.]+ \|$", readme, re.MULTILINE)
    return [(float(r), float(v)) for r, v in rows]


def test_the_shipped_actors_reach_what_their_readme_says():
    policies = (TARGET, BEHAVIOR_MEAN, PendulumBehavior(BEHAVIOR_MEAN, 0))
    for policy, (episode_return, value) in zip(policies, stated_figures(), strict=True):
        truth = true_value(11, policy, 0.95, 1_000)
        # The README's own error, from ten times the episodes, adds a twentieth.
        assert abs(truth.episode_return - episode_return) < 4 * 1.05 * truth.episode_return_standard_error
        assert abs(truth.value - value) < 4 * 1.05 * truth.standard_error


def test_the_shipped_actors_are_near_the_papers_levels():
    (target_return, target_value), (behavior_return, _), (_, mixture_value) = stated_figures()
    assert -160 < target_return < -140
    assert -550 < behavior_return < -350
    assert 0.8 < target_value - mixture_value < 1.4  # the paper's: 1.1 to 1.3


def test_nonsense_is_refused():
    behavior = PendulumBehavior(BEHAVIOR_MEAN, 1)
    with pytest.raises(InputError, match=r"gamma is 1\.0"):
        true_value(0, TARGET, 1.0, 10)
    with pytest.raises(InputError, match="episodes is 1"):
        true_value(0, TARGET, 0.9, 1)
    with pytest.raises(InputError, match="n_transitions is 0"):
        collect(0, behavior, 0)
    with pytest.raises(TypeError, match="use true_value"):
        value_of_states(np.zeros((1, 3)), behavior, 0.9)
