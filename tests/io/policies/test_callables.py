import types

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.objects import import_object, wrap_object

STATES = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)


class LikeSB3:
    """Random unless asked not to be, as Stable-Baselines3's models are."""

    observation_space = types.SimpleNamespace(shape=(3,))
    action_space = types.SimpleNamespace(low=np.array([-9.0]), high=np.array([9.0]))
    wrapper = None

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        noise = 0.0 if deterministic else np.random.default_rng().standard_normal()
        return observation[:, :1] + noise, None

    def get_vec_normalize_env(self):
        return self.wrapper


class LikeD3rlpy:
    observation_shape = (3,)
    action_size = 2

    def predict(self, x):
        return x[:, :2]


def test_an_sb3_model_is_asked_for_its_deterministic_action():
    policy = load_policy(LikeSB3())
    np.testing.assert_array_equal(policy(STATES), STATES[:, :1])
    assert (policy.state_dim, policy.action_dim, policy.low[0], policy.high[0]) == (3, 1, -9, 9)


def test_a_model_that_holds_its_normalisation_is_fed_through_it():
    model = LikeSB3()
    statistics = types.SimpleNamespace(mean=np.ones(3), var=np.full(3, 4.0))
    model.wrapper = types.SimpleNamespace(obs_rms=statistics, epsilon=0.0, clip_obs=10.0, norm_obs=True)
    np.testing.assert_allclose(load_policy(model)(STATES), (STATES[:, :1] - 1) / 2, atol=1e-6)
    np.testing.assert_array_equal(load_policy(model, normalization="none")(STATES), STATES[:, :1])


def test_a_d3rlpy_algorithm_is_asked_by_predict():
    policy = load_policy(LikeD3rlpy())
    np.testing.assert_array_equal(policy(STATES), STATES[:, :2])
    assert (policy.state_dim, policy.action_dim) == (3, 2)


def test_a_function_is_named_after_itself():
    def lean_left(states):
        return -np.abs(states[:, :1])

    assert load_policy(lean_left).name == "lean_left"


def test_module_function_is_imported_from_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "my_policy_module.py").write_text(
        "class Box:\n    @staticmethod\n    def act(s):\n        return s[:, :1] * 2\n"
    )
    monkeypatch.chdir(tmp_path)
    policy = load_policy("my_policy_module:Box.act")
    np.testing.assert_array_equal(policy(STATES), STATES[:, :1] * 2)
    assert policy.name == "my_policy_module:Box.act"


def test_a_failed_import_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "broken_policy_module.py").write_text("raise KeyError('no weights')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"broken_policy_module cannot be imported \(KeyError"):
        import_object("broken_policy_module:act")
    with pytest.raises(InputError, match="absent_policy_module cannot be imported"):
        import_object("absent_policy_module:act")
    with pytest.raises(InputError, match="module math has no tangent"):
        import_object("math:tangent")


def test_what_cannot_act_is_refused():
    with pytest.raises(InputError, match="is a class; expected a function or an instance"):
        wrap_object(LikeSB3, "LikeSB3")
    with pytest.raises(InputError, match="is a int; expected a callable"):
        load_policy(3)


def test_a_torch_module_is_called_with_tensors():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    expected = module(torch.from_numpy(STATES).double()).detach().numpy()
    np.testing.assert_allclose(load_policy(module)(STATES), expected, atol=1e-6)


def test_dropout_and_batch_normalisation_in_training_mode_are_caught():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    with pytest.raises(InputError, match="two different answers"):
        load_policy(torch.nn.Sequential(torch.nn.Linear(3, 50), torch.nn.Dropout()))(STATES)
    with pytest.raises(InputError, match="depends on the other states"):
        load_policy(torch.nn.BatchNorm1d(3, track_running_stats=False))(STATES)
