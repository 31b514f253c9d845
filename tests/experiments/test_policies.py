from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from experiments.small_actors import tiny_actor, training_folder
from kmifqe.errors import InputError
from kmifqe.experiments.policies import (
    digest,
    load_actors,
    pack_policies,
    packed_folder,
    rounded,
    shipped_training,
    spaced,
)
from kmifqe.experiments.presets import FILE_TASKS, TASKS
from kmifqe.io.policies.load import load_policy
from kmifqe.worlds.gym_envs import describe_task

STATES = np.random.default_rng(0).standard_normal((50, 11)).astype(np.float32)


@pytest.fixture
def trained(tmp_path):
    return training_folder(tmp_path / "run", [100 * i for i in range(21)], target=2000, behavior=1400)


def test_packing_keeps_the_chosen_policies_and_even_snapshots_up_to_the_behaviour_mean(trained, tmp_path):
    record = pack_policies(trained, packed_folder(tmp_path, "hopper"))
    assert record["replay_steps"] == [0, 200, 400, 600, 800, 1000, 1200, 1400]
    actors = load_actors("hopper", tmp_path)
    assert actors.source == "trained"
    for packed, steps in zip(
        (actors.target, actors.behavior, *actors.replay), (2000, 1400, *record["replay_steps"])
    ):
        np.testing.assert_array_equal(packed(STATES), rounded(tiny_actor(steps))(STATES))


def test_weights_are_stored_in_half_precision_and_computed_with_in_single(trained, tmp_path):
    """The shipped policy is the rounded one: reading it back changes nothing more."""
    out = packed_folder(tmp_path, "hopper")
    pack_policies(trained, out)
    stored = load_file(out / "target.safetensors")
    assert {stored[name].dtype for name in ("w0", "b0", "w1", "b1")} == {np.dtype(np.float16)}
    read = load_policy(out / "target.safetensors")
    assert read.weights[0].dtype == np.float32
    np.testing.assert_array_equal(read.weights[0], stored["w0"].astype(np.float32))
    original = tiny_actor(2000)
    assert read(STATES).dtype == np.float32
    np.testing.assert_allclose(read(STATES), original(STATES), atol=0.02)
    assert np.abs(read(STATES) - original(STATES)).max() > 0


def test_the_curve_goes_with_the_actors(trained, tmp_path):
    out = packed_folder(tmp_path, "hopper")
    pack_policies(trained, out, snapshots=3)
    record = json.loads((out / "training.json").read_text())
    assert record["curve"]["episode_return"] == record["curve"]["steps"]
    assert record["choice"]["behavior"]["steps"] == 1400
    assert len(list(out.glob("replay-*.safetensors"))) == 3


def test_without_a_behaviour_mean_the_target_plays_both_parts(tmp_path):
    training_folder(tmp_path / "run", [0, 100], target=0, behavior=None)
    pack_policies(tmp_path / "run", packed_folder(tmp_path, "ant"))
    actors = load_actors("ant", tmp_path)
    assert digest(actors.target) == digest(actors.behavior) == digest(actors.replay[0])


def test_a_weight_beyond_half_precision_is_refused():
    with pytest.raises(InputError, match="holds NaN or infinity"):
        rounded(tiny_actor(size=1e6))


def test_a_run_that_has_not_ended_and_a_folder_that_is_none_are_refused(trained, tmp_path):
    record = json.loads((trained / "training.json").read_text())
    (trained / "training.json").write_text(json.dumps(record | {"choice": None}))
    with pytest.raises(InputError, match=r"training.json: choice is missing"):
        pack_policies(trained, tmp_path / "out")
    with pytest.raises(InputError, match=r"training.json: not the record of a training run"):
        pack_policies(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_task_without_actors_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setattr("kmifqe.experiments.policies.files", lambda package: tmp_path)
    with pytest.raises(InputError, match="kmifqe reproduce policies --only ant"):
        load_actors("ant", tmp_path)


def test_the_digest_names_the_policy_not_the_file(tmp_path):
    actor = rounded(tiny_actor())
    actor.save(tmp_path / "a.safetensors")
    assert digest(load_policy(tmp_path / "a.safetensors")) == digest(actor)
    assert digest(tiny_actor(1)) != digest(tiny_actor(2))


@pytest.mark.parametrize("row", [row for row in TASKS])
def test_the_shipped_actors_fit_their_tasks_and_the_target_is_the_better(row, tmp_path):
    actors = load_actors(row, tmp_path)
    assert actors.source == "shipped"
    task = describe_task(TASKS[row])
    for actor in (actors.target, actors.behavior, *actors.replay):
        assert (actor.state_dim, actor.action_dim) == (task.state_dim, task.action_dim)
        np.testing.assert_allclose(actor.high, task.high, rtol=1e-3)  # half precision may round it
    training = shipped_training()[row]
    choice = training["choice"]
    assert choice["behavior"]["episode_return"] < choice["target"]["episode_return"]
    assert len(actors.replay) == len(training["replay_steps"]) == (8 if row in FILE_TASKS else 0)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, list(range(10))), (99, list(range(10)))],
)
def test_spaced_takes_both_ends(count, expected):
    assert spaced(list(range(10)), count) == expected
