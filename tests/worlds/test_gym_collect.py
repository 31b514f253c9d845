from __future__ import annotations

import json

import gymnasium as gym
import h5py
import numpy as np
import pytest

from kmifqe.behavior import GaussianBehavior
from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.worlds.gym_collect import collect, collect_drawn, default_envs
from kmifqe.worlds.gym_envs import describe_task
from worlds.gym_test_envs import LIFE, env_id, half


def swing(states: np.ndarray) -> np.ndarray:
    return 2.0 * np.tanh(states[:, 1:2] + 0.3 * states[:, 2:])


def test_every_logged_step_is_the_environments_own(tmp_path):
    """Re-stepped from each logged state with the clipped action, Pendulum gives the logged next state."""
    collect("Pendulum-v1", swing, tmp_path / "log.hdf5", transitions=430, noise=0.8, envs=2)
    log = load_dataset(tmp_path / "log.hdf5")
    env = gym.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    for s, a, r, s_next in zip(log.states, log.actions, log.rewards, log.next_states):
        env.state = np.array([np.arctan2(s[1], s[0]), s[2]], np.float64)
        observation, reward, *_ = env.step(np.clip(a, -2.0, 2.0))
        np.testing.assert_allclose(observation, s_next, atol=2e-5)
        assert reward == pytest.approx(r, abs=1e-4)
    assert log.has_next_state.all()
    assert np.flatnonzero(log.truncated).tolist() == [199, 214, 414, 429]
    assert not log.terminated.any()
    assert (np.abs(log.actions) > 2.0).any()  # as drawn, not as clipped
    assert log.notes == ()


def test_episodes_stay_together_and_resets_never_show(tmp_path):
    done = collect(env_id("Countdown"), half, tmp_path / "log.hdf5", transitions=68, envs=3)
    log = load_dataset(tmp_path / "log.hdf5")
    lengths = [LIFE] * 4 + [3] + [LIFE] * 4 + [3] + [LIFE] * 4 + [2]  # 23, 23 and 22 rows
    assert np.bincount(log.episode).tolist() == lengths
    assert (done.episodes, done.terminated) == (15, 12)
    for episode in range(log.n_episodes):
        rows = log.episode == episode
        assert len(np.unique(log.states[rows, 0])) == 1
        assert (log.next_states[rows, 0] == log.states[rows, 0]).all()
        assert log.states[rows, 1].tolist() == list(range(rows.sum()))
        assert log.next_states[rows, 1].tolist() == list(range(1, rows.sum() + 1))
    assert len(np.unique(log.states[log.first_rows, 0])) == 15
    assert log.terminated.sum() == 12
    assert log.truncated.sum() == 3


def test_logged_densities_are_those_of_the_behaviour(tmp_path):
    collect("Pendulum-v1", swing, tmp_path / "log.hdf5", transitions=500, noise=0.5, uniform_share=0.2)
    log = load_dataset(tmp_path / "log.hdf5")
    behavior = GaussianBehavior(swing, 0.5, [-2.0], [2.0], 0.2)
    np.testing.assert_allclose(log.log_mu, behavior.log_prob(log.states, log.actions), atol=1e-5)


def test_the_noise_has_the_stated_spread_in_units_of_the_half_range(tmp_path):
    collect(env_id("Countdown"), half, tmp_path / "log.hdf5", transitions=4_000, noise=0.3, envs=10)
    actions = load_dataset(tmp_path / "log.hdf5").actions[:, 0]
    sigma = 0.3 * 1.5  # the box is [-2, 1]
    assert abs(actions.mean() - 0.5) < 4 * sigma / np.sqrt(4_000)
    assert abs(actions.std() - sigma) < 4 * sigma / np.sqrt(8_000)


def test_the_log_depends_on_the_seed_and_not_on_the_workers(tmp_path):
    def log(name: str, **settings: int) -> np.ndarray:
        collect("Pendulum-v1", swing, tmp_path / name, transitions=300, envs=4, **settings)
        with h5py.File(tmp_path / name) as file:
            return np.concatenate(
                [file[field][:].ravel() for field in ("observations", "actions", "rewards")]
            )

    alone = log("a.hdf5", seed=1)
    np.testing.assert_array_equal(alone, log("b.hdf5", seed=1, workers=2))
    assert not np.array_equal(alone, log("c.hdf5", seed=2))


def test_the_file_is_of_d4rls_layout_and_says_how_it_was_made(tmp_path):
    collect("Pendulum-v1", swing, tmp_path / "log.hdf5", transitions=10, seed=4)
    with h5py.File(tmp_path / "log.hdf5") as file:
        assert {"observations", "actions", "rewards", "terminals", "timeouts", "next_observations"} < set(
            file
        )
        assert file["infos/action_log_probs"].shape == (10, 1)
        made = json.loads(file.attrs["kmifqe"])
    assert (made["env"], made["noise"], made["seed"]) == ("Pendulum-v1", [0.3], 4)


def test_short_collections_use_few_environments_so_that_episodes_end():
    task = describe_task("Pendulum-v1")
    assert [default_envs(task, n) for n in (1, 4_000, 40_000, 1_000_000)] == [1, 2, 20, 64]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transitions": 0}, "transitions is 0"),
        ({"noise": 0.0}, "std is 0; expected positive"),
        ({"noise": [0.1, 0.2]}, "std is"),
        ({"uniform_share": 2.0}, "uniform_share is 2"),
        ({"path": "log.npz"}, "the suffix is .npz; expected .hdf5"),
        ({"path": "no/log.hdf5"}, "the directory .* does not exist"),
        ({"path": "there.hdf5"}, "exists already; give --force"),
        ({"env_id": env_id("TroubleRaise")}, "the motor is on fire"),
        ({"env_id": "CartPole-v1"}, r"the action space is Discrete\(2\)"),
        ({"workers": 0}, "expected 1 or more"),
    ],
)
def test_a_wrong_wish_is_one_sentence_and_leaves_nothing_behind(tmp_path, change, message):
    (tmp_path / "there.hdf5").write_bytes(b"mine")
    wish = {"env_id": env_id("Countdown"), "policy": half, "path": "log.hdf5", "transitions": 20} | change
    wish["path"] = tmp_path / wish["path"]
    with pytest.raises(InputError, match=message):
        collect(**wish)
    assert [file.name for file in tmp_path.iterdir()] == ["there.hdf5"]
    assert (tmp_path / "there.hdf5").read_bytes() == b"mine"


def test_mujoco_logs_what_the_policy_saw(tmp_path):
    pytest.importorskip("mujoco")

    def lean(states: np.ndarray) -> np.ndarray:
        return np.tanh(states[:, :3])

    collect("Hopper-v4", lean, tmp_path / "log.hdf5", transitions=120, envs=2, workers=2)
    log = load_dataset(tmp_path / "log.hdf5")
    assert log.terminated.any()  # an untrained hopper falls
    expected = GaussianBehavior(lean, 0.3, -np.ones(3), np.ones(3)).log_prob_per_dimension(
        log.states, log.actions
    )
    np.testing.assert_allclose(log.log_mu, expected, atol=1e-5)


def test_a_player_of_ones_own_is_logged_as_it_drew_and_may_say_no_densities(tmp_path):
    def draw(rng, states):
        return np.full((len(states), 1), 0.5, np.float32), None

    task = describe_task("Pendulum-v1")
    path = tmp_path / "log.hdf5"
    collect_drawn(task, draw, path, transitions=30, settings={"player": "constant"}, densities=False, envs=2)
    log = load_dataset(path)
    assert log.log_mu is None
    assert (log.actions == 0.5).all()
    with h5py.File(path) as file:
        told = json.loads(file.attrs["kmifqe"])
    assert (told["player"], told["env"], told["envs"]) == ("constant", "Pendulum-v1", 2)
