import subprocess
import sys

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.objects import CheckedPolicy
from kmifqe.mdp.ask import Policy
from policy_files import write_sb3

ACTOR = Actor(
    (np.eye(3, 2, dtype=np.float32),),
    (np.zeros(2, np.float32),),
    "relu",
    "clip",
    -np.ones(2),
    np.ones(2),
    name="a",
)
STATES = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
STATISTICS = {"obs_mean": np.ones(3), "obs_var": np.full(3, 4.0), "epsilon": 0.0}


def test_every_source_gives_a_policy(tmp_path):
    ACTOR.save(tmp_path / "a.safetensors")
    np.savez(
        tmp_path / "a.npz",
        w0=np.eye(3, 2),
        b0=np.zeros(2),
        hidden="relu",
        output="clip",
        low=-np.ones(2),
        high=np.ones(2),
    )
    for source in (ACTOR, tmp_path / "a.safetensors", str(tmp_path / "a.npz"), ACTOR.__call__):
        policy = load_policy(source)
        assert isinstance(policy, Policy)
        assert np.array_equal(policy(STATES), ACTOR(STATES))


def test_a_loaded_policy_is_not_wrapped_twice():
    checked = CheckedPolicy(ACTOR, "c")
    assert load_policy(checked) is checked
    assert load_policy(ACTOR) is ACTOR


def test_normalization_can_be_added_to_any_source(tmp_path):
    ACTOR.save(tmp_path / "a.safetensors")
    expected = ACTOR((STATES - 1) / 2)
    for source in (ACTOR, tmp_path / "a.safetensors", ACTOR.__call__):
        np.testing.assert_allclose(load_policy(source, normalization=STATISTICS)(STATES), expected, atol=1e-6)


def test_converting_with_statistics_makes_one_file_that_needs_no_options(tmp_path):
    arrays = {"actor.mu.0.weight": np.ones((2, 3), np.float32), "actor.mu.0.bias": np.zeros(2, np.float32)}
    actor = load_policy(write_sb3(tmp_path / "m.zip", arrays), normalization=STATISTICS)
    actor.save(tmp_path / "m.safetensors")
    assert np.array_equal(load_policy(tmp_path / "m.safetensors")(STATES), actor(STATES))


def test_statistics_that_do_not_belong_are_refused():
    normalized = load_policy(ACTOR, normalization=STATISTICS)
    with pytest.raises(InputError, match="carries normalisation"):
        load_policy(normalized, normalization=STATISTICS)
    with pytest.raises(InputError, match="covers 2 state dimensions; a takes 3"):
        load_policy(ACTOR, normalization={"obs_mean": np.zeros(2), "obs_var": np.ones(2)})


def test_bounds_replace_or_supply_the_box():
    half = load_policy(ACTOR, bounds=(np.full(2, -0.5), np.full(2, 0.5)))
    assert np.abs(half(STATES)).max() == 0.5
    with pytest.raises(InputError, match=r"expected within \[-0.1, 0.1\]"):
        load_policy(lambda s: s[:, :1], bounds=(-0.1, 0.1))(STATES)
    with pytest.raises(InputError, match="bounds are"):
        load_policy(ACTOR, bounds=(1.0, "high"))
    with pytest.raises(InputError, match="low below high"):
        load_policy(lambda s: s, bounds=(1.0, -1.0))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent.zip", "no such file"),
        ("model", r"expected .*model\.zip\?"),
        ("folder", "is a directory"),
        ("policy.pkl", "a pickle, which could run any code"),
        ("model.d3", "a pickle, which could run any code"),
        ("notes.txt", "unknown kind of policy file"),
        ("empty.npz", "cannot be read as a zip archive"),
        ("empty.safetensors", "not a readable safetensors"),
        ("empty.hdf5", "cannot be read as an HDF5"),
    ],
)
def test_a_wrong_path_says_what_was_expected(tmp_path, name, words):
    (tmp_path / "folder").mkdir()
    for held in (
        "model.zip",
        "policy.pkl",
        "model.d3",
        "notes.txt",
        "empty.npz",
        "empty.safetensors",
        "empty.hdf5",
    ):
        (tmp_path / held).touch()
    with pytest.raises(InputError, match=words):
        load_policy(tmp_path / name)


def test_an_option_that_has_no_meaning_is_refused(tmp_path):
    ACTOR.save(tmp_path / "a.safetensors")
    for source in (tmp_path / "a.safetensors", ACTOR):
        with pytest.raises(InputError, match="hidden is for Stable-Baselines3 zips"):
            load_policy(source, hidden="relu")


def test_reading_an_sb3_zip_imports_neither_torch_nor_sb3(tmp_path):
    arrays = {"actor.mu.0.weight": np.ones((2, 3), np.float32), "actor.mu.0.bias": np.zeros(2, np.float32)}
    path = write_sb3(tmp_path / "m.zip", arrays)
    code = (
        "import sys; from kmifqe.io.policies import load_policy; load_policy(sys.argv[1]); "
        "sys.exit(bool({'torch', 'stable_baselines3', 'onnxruntime'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0


def test_what_cannot_be_a_file_name_is_refused():
    with pytest.raises(InputError, match="File name too long"):
        load_policy("a" * 5000 + ".npz")
