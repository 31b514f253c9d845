from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest

from experiments.small_actors import tiny_actor, training_folder
from kmifqe.errors import InputError
from kmifqe.experiments.context import Context
from kmifqe.experiments.data import (
    PRE_TANH_LIMIT,
    PRE_TANH_STD,
    data_settings,
    exploring,
    prepare_log,
    read_log,
    squashed_gaussian,
    stochastic_mean,
)
from kmifqe.experiments.policies import load_actors, pack_policies, packed_folder
from kmifqe.experiments.presets import preset_named, row_named
from kmifqe.io.policies.actor import load_d4rl_actor

MIX, REPLAY = "hopper-medium-expert-regenerated", "hopper-medium-replay-regenerated"
HIGH = 0.4  # Humanoid's box: not the unit one
ACTOR = tiny_actor(3, high=HIGH)
STATES = np.random.default_rng(0).standard_normal((4_000, 11)).astype(np.float32)


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """Return a context whose work folder holds packed Hopper actors."""
    folder = tmp_path_factory.mktemp("data")
    training_folder(folder / "run", [0, 100, 200], target=200, behavior=100)
    pack_policies(folder / "run", packed_folder(folder / "work", "hopper"))
    return Context(preset_named("smoke"), folder / "results", folder / "work")


def test_a_known_row_is_gaussian_noise_around_the_behaviour_mean(context):
    log = read_log("hopper", context)
    actors = load_actors("hopper", context.work)
    t = log.transitions
    assert len(t) == context.preset.rows["known"]
    noise = (t.actions - actors.behavior(t.states)) / 0.3
    assert abs(noise.var() - 1) < 4 * np.sqrt(2 / noise.size)
    np.testing.assert_allclose(log.behavior.log_prob_per_dimension(t.states, t.actions), t.log_mu, atol=1e-4)
    assert set(log.policies) == {"target", "behavior_mean", "behavior"}
    assert log.truths == {"population": log.policies["target"].V, "logged_first_states": None}


def test_a_regenerated_mix_is_half_expert_and_half_medium_and_says_no_densities(context):
    t = read_log(MIX, context).transitions
    half = len(t) // 2
    for rows, actor in ((slice(0, half), "target"), (slice(half, None), "behavior")):
        mean = stochastic_mean(getattr(load_actors("hopper", context.work), actor))
        z = np.arctanh(t.actions[rows]) - np.arctanh(mean(t.states[rows]))
        assert abs(z.var() / 0.09 - 1) < 4 * np.sqrt(2 / z.size)
    assert t.log_mu is None


def test_the_target_of_a_regenerated_row_is_the_mean_of_its_stochastic_expert(context):
    log = read_log(MIX, context)
    expected = stochastic_mean(load_actors("hopper", context.work).target)
    np.testing.assert_array_equal(log.target(log.transitions.states), expected(log.transitions.states))
    assert log.behavior is None


def test_a_regenerated_replay_is_the_snapshots_in_the_order_of_training(context):
    t = read_log(REPLAY, context).transitions
    actors = load_actors("hopper", context.work).replay
    assert len(actors) == 2
    half = len(t) // 2
    for rows, actor in ((slice(0, half), actors[0]), (slice(half, None), actors[1])):
        assert np.abs(t.actions[rows] - actor(t.states[rows])).max() < 0.1 * 6
    assert (np.abs(t.actions) <= 1).all()


def test_what_was_prepared_is_read_and_not_made_again(context, monkeypatch):
    prepare_log(MIX, context)

    def refuse(*_, **__):
        raise AssertionError("collected or played again")

    monkeypatch.setattr("kmifqe.worlds.gym_collect.collect_drawn", refuse)
    monkeypatch.setattr("kmifqe.worlds.gym_truth.measure_truth", refuse)
    read_log(MIX, context)


def test_other_settings_are_collected_anew(context):
    before = len(read_log("hopper", context).transitions)
    more = replace(context, preset=replace(context.preset, rows={"known": before + 7}))
    assert len(read_log("hopper", more).transitions) == before + 7


def test_a_folder_with_somebodys_files_is_not_replaced(context, tmp_path):
    (tmp_path / "data" / "hopper").mkdir(parents=True)
    (tmp_path / "data" / "hopper" / "mine.txt").write_text("mine")
    (tmp_path / "policies").symlink_to(context.work / "policies")
    with pytest.raises(InputError, match="hopper"):
        prepare_log("hopper", replace(context, work=tmp_path))
    assert (tmp_path / "data" / "hopper" / "mine.txt").read_text() == "mine"


def test_d4rls_own_files_are_judged_by_the_expert_files_policy(context, tmp_path):
    source = read_log(MIX, context).transitions
    fields = {
        "observations": source.states,
        "actions": source.actions,
        "rewards": source.rewards,
        "terminals": source.terminated,
        "timeouts": source.truncated,
    }
    rng = np.random.default_rng(0)
    for name in ("hopper_medium_expert-v2", "hopper_expert-v2"):
        with h5py.File(tmp_path / f"{name}.hdf5", "w") as file:
            for field, array in fields.items():
                file[field] = array
            if "medium" not in name:
                for layer, shape in (("fc0", (8, 11)), ("last_fc", (3, 8))):
                    file[f"metadata/policy/{layer}/weight"] = rng.standard_normal(shape).astype(np.float32)
                    file[f"metadata/policy/{layer}/bias"] = np.zeros(shape[0], np.float32)
                file["metadata/policy/nonlinearity"] = "relu"
                file["metadata/policy/output_distribution"] = "tanh_gaussian"
    given = replace(context, d4rl_dir=tmp_path, work=tmp_path / "work")
    log = read_log("hopper-medium-expert", given)
    expert = load_d4rl_actor(tmp_path / "hopper_expert-v2.hdf5")
    np.testing.assert_array_equal(log.target(source.states), expert(source.states))
    np.testing.assert_array_equal(log.transitions.actions, source.actions)
    assert data_settings(row_named("hopper-medium-expert"), given)["file"] == "hopper_medium_expert-v2.hdf5"


def test_noise_before_the_tanh_is_standard_normal_around_the_limited_mean():
    actions, _ = squashed_gaussian(ACTOR)(np.random.default_rng(1), STATES)
    z = np.arctanh(actions.astype(np.float64) / HIGH)
    mean = np.arctanh(stochastic_mean(ACTOR)(STATES).astype(np.float64) / HIGH)
    noise = ((z - mean) / PRE_TANH_STD).ravel()
    assert abs(noise.mean()) < 4 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 4 * np.sqrt(2 / noise.size)
    assert np.abs(mean).max() <= PRE_TANH_LIMIT + 1e-4
    assert np.abs(mean).max() > 0.9 * PRE_TANH_LIMIT  # the actor saturates: the limit is at work


def test_the_target_is_the_expert_without_its_noise():
    actions, densities = squashed_gaussian(ACTOR, std=0.0)(np.random.default_rng(1), STATES)
    np.testing.assert_allclose(actions, stochastic_mean(ACTOR)(STATES), atol=1e-6)
    assert densities is None


def test_exploration_is_clipped_to_the_box_as_td3_stores_it():
    actions, _ = exploring(ACTOR)(np.random.default_rng(1), STATES)
    assert (np.abs(actions) <= np.float32(HIGH)).all()
    assert (np.abs(actions) == np.float32(HIGH)).any()
    inside = np.abs(ACTOR(STATES)) < 0.5 * HIGH
    noise = (actions - ACTOR(STATES))[inside] / (0.1 * HIGH)
    assert abs(noise.var() - 1) < 4 * np.sqrt(2 / noise.size)


def test_an_actor_without_a_tanh_is_refused():
    with pytest.raises(InputError, match="output is 'clip'; expected tanh"):
        stochastic_mean(replace(ACTOR, output="clip"))
