import json
import pickle
import sys
import types

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.normalization import Normalization, load_normalization

MEAN, VAR = np.array([1.0, -2.0, 1 / 3]), np.array([4.0, 0.25, 1.0])


@pytest.fixture
def sb3_classes(monkeypatch):
    """Stand-ins under Stable-Baselines3's names, so that a pickle mentions what a real one does."""
    running = types.ModuleType("stable_baselines3.common.running_mean_std")
    wrapper = types.ModuleType("stable_baselines3.common.vec_env.vec_normalize")
    for module in (running, wrapper):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for package in ("stable_baselines3", "stable_baselines3.common", "stable_baselines3.common.vec_env"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    running.RunningMeanStd = type("RunningMeanStd", (), {"__module__": running.__name__})
    wrapper.VecNormalize = type("VecNormalize", (), {"__module__": wrapper.__name__})
    return wrapper.VecNormalize, running.RunningMeanStd


def vec_normalize(classes, **changes):
    wrapper, statistics = classes[0](), classes[1]()
    statistics.__dict__.update(mean=MEAN, var=VAR, count=1e-4)
    rng = np.random.default_rng(0)
    fields = dict(
        obs_rms=statistics, epsilon=np.float64(1e-6), clip_obs=5.0, norm_obs=True, random=rng, old_obs=MEAN
    )
    wrapper.__dict__.update(fields | changes)
    return wrapper


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_vecnormalize_pickle_gives_its_statistics_bit_for_bit(tmp_path, sb3_classes, protocol):
    (tmp_path / "vecnormalize.pkl").write_bytes(pickle.dumps(vec_normalize(sb3_classes), protocol))
    found = load_normalization(tmp_path / "vecnormalize.pkl")
    assert np.array_equal(found.mean, MEAN)
    assert np.array_equal(found.var, VAR)
    assert (found.epsilon, found.clip) == (1e-6, 5.0)


def test_a_live_wrapper_gives_the_same(sb3_classes):
    found = load_normalization(vec_normalize(sb3_classes))
    assert np.array_equal(found.mean, MEAN)
    assert found.clip == 5.0


def test_a_wrapper_that_scaled_rewards_only_changes_nothing(tmp_path, sb3_classes):
    (tmp_path / "v.pkl").write_bytes(pickle.dumps(vec_normalize(sb3_classes, norm_obs=False)))
    assert load_normalization(tmp_path / "v.pkl") is None


def test_dictionary_observations_are_refused(tmp_path, sb3_classes):
    (tmp_path / "v.pkl").write_bytes(pickle.dumps(vec_normalize(sb3_classes, obs_rms={"a": 1})))
    with pytest.raises(InputError, match="dictionary observations"):
        load_normalization(tmp_path / "v.pkl")


def test_a_hostile_pickle_runs_nothing(tmp_path, hostile, canary):
    (tmp_path / "vecnormalize.pkl").write_bytes(hostile)
    with pytest.raises(InputError, match=r"refers to .*open"):
        load_normalization(tmp_path / "vecnormalize.pkl")
    assert not canary.exists()


def test_npz_json_and_mappings_say_the_same(tmp_path):
    fields = {"obs_mean": MEAN, "obs_var": VAR, "epsilon": 1e-6, "clip_obs": 5.0}
    np.savez(tmp_path / "n.npz", **fields)
    np.savez(tmp_path / "other_names.npz", obs_mean=MEAN, obs_var=VAR, obs_eps=1e-6, obs_clip=5.0)
    (tmp_path / "n.json").write_text(
        json.dumps(fields | {"obs_mean": MEAN.tolist(), "obs_var": VAR.tolist()})
    )
    states = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32) * 10
    expected = np.clip((states - MEAN) / np.sqrt(VAR + 1e-6), -5, 5).astype(np.float32)
    for source in (tmp_path / "n.npz", str(tmp_path / "other_names.npz"), tmp_path / "n.json", fields):
        assert np.array_equal(load_normalization(source)(states), expected)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"obs_mean": [0.0]}, "obs_var is missing"),
        ({"obs_mean": [0.0, 1.0], "obs_var": [1.0]}, r"shape \(2,\) and obs_var \(1,\)"),
        ({"obs_mean": [0.0], "obs_var": [-1.0]}, "negative variance"),
        ({"obs_mean": [float("nan")], "obs_var": [1.0]}, "NaN"),
        ({"obs_mean": ["a"], "obs_var": [1.0]}, "obs_mean does not hold numbers"),
        ({"obs_mean": [0.0], "obs_var": [1.0], "clip_obs": [1, 2]}, "clip_obs has shape"),
        ({"obs_mean": [0.0], "obs_var": [1.0], "clip_obs": 0}, "expected positive"),
    ],
)
def test_a_wrong_field_is_named(fields, words):
    with pytest.raises(InputError, match=words):
        load_normalization(fields)


def test_wrong_sources_are_named(tmp_path):
    (tmp_path / "n.json").write_text("{")
    (tmp_path / "n.csv").write_text("")
    (tmp_path / "n.pkl").write_bytes(pickle.dumps([1]))
    for source, words in [
        (tmp_path / "absent.npz", "no such file"), (tmp_path / "n.json", "not readable JSON"),
        (tmp_path / "n.csv", "come as .npz"), (tmp_path / "n.pkl", "not the statistics"), (3, "is a int"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=words):
            load_normalization(source)


def test_states_of_another_width_are_refused():
    with pytest.raises(InputError, match="covers 3 state dimensions; states have 2"):
        Normalization(MEAN, VAR)(np.zeros((4, 2)))
