import base64
import io
import json
import zipfile

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.sb3 import load_sb3_actor
from policy_files import Stream, sb3_settings, torch_legacy, torch_zip, write_sb3

RNG = np.random.default_rng(0)
STATES = RNG.standard_normal((40, 3)).astype(np.float32)
LOW, HIGH = np.array([-2.0, -0.5]), np.array([1.0, 0.5])


def linear(name, inputs, outputs, rng=RNG):
    return {
        f"{name}.weight": rng.standard_normal((outputs, inputs)).astype(np.float32),
        f"{name}.bias": rng.standard_normal(outputs).astype(np.float32),
    }


def apply(arrays, name, x):
    return x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]


def scaled(x):
    return LOW + 0.5 * (np.tanh(x) + 1) * (HIGH - LOW)


def relu(x):
    return np.maximum(x, 0)


SAC = (
    linear("actor.latent_pi.0", 3, 8)
    | linear("actor.mu", 8, 2)
    | linear("actor.log_std", 8, 2)
    | linear("critic.qf0.0", 5, 4)
)
GSDE = (
    linear("actor.latent_pi.0", 3, 8)
    | linear("actor.mu.0", 8, 2)
    | {"actor.log_std": np.zeros((8, 2), np.float32)}
)
TD3 = linear("actor.mu.0", 3, 8) | linear("actor.mu.2", 8, 2) | linear("actor_target.mu.0", 3, 8)
PPO = (
    linear("mlp_extractor.policy_net.0", 3, 8) | linear("mlp_extractor.value_net.0", 3, 8)
    | linear("action_net", 8, 2) | linear("value_net", 8, 1) | {"log_std": np.zeros(2, np.float32)}
)  # fmt: skip


def sac_action(x):
    return scaled(apply(SAC, "actor.mu", relu(apply(SAC, "actor.latent_pi.0", x))))


def gsde_mean(x):
    return apply(GSDE, "actor.mu.0", relu(apply(GSDE, "actor.latent_pi.0", x)))


def ppo_mean(x, hidden=np.tanh):
    return apply(PPO, "action_net", hidden(apply(PPO, "mlp_extractor.policy_net.0", x)))


def class_named(name):
    return {
        ":type:": "<class 'dict'>",
        ":serialized:": "x",
        "activation_fn": f"<class 'torch.nn.modules.activation.{name}'>",
    }


CASES = {
    "sac": (SAC, {}, sac_action),
    "sac with gSDE": (GSDE, {}, lambda x: scaled(np.clip(gsde_mean(x), -2, 2))),
    "clip": (GSDE, {"policy_kwargs": {"clip_mean": 0.3}}, lambda x: scaled(gsde_mean(x).clip(-0.3, 0.3))),
    "td3": (TD3, {}, lambda x: scaled(apply(TD3, "actor.mu.2", relu(apply(TD3, "actor.mu.0", x))))),
    "ppo": (PPO, {}, lambda x: np.clip(ppo_mean(x), LOW, HIGH)),
    "ppo, relu": (PPO, {"policy_kwargs": class_named("ReLU")}, lambda x: ppo_mean(x, relu).clip(LOW, HIGH)),
    "ppo squashed": (PPO, {"policy_kwargs": {"squash_output": True}}, lambda x: scaled(ppo_mean(x))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_family_acts_by_its_formula(tmp_path, case):
    arrays, settings, expected = CASES[case]
    actor = load_sb3_actor(write_sb3(tmp_path / "model.zip", arrays, **settings))
    np.testing.assert_allclose(actor(STATES), expected(STATES.astype(np.float64)), atol=1e-5)


def test_layers_shared_with_the_critic_come_first(tmp_path):
    arrays = (
        linear("mlp_extractor.shared_net.0", 3, 6)
        | linear("mlp_extractor.policy_net.0", 6, 8)
        | linear("action_net", 8, 2)
    )
    actor = load_sb3_actor(write_sb3(tmp_path / "model.zip", arrays))
    x = np.tanh(apply(arrays, "mlp_extractor.shared_net.0", STATES))
    x = apply(arrays, "action_net", np.tanh(apply(arrays, "mlp_extractor.policy_net.0", x)))
    np.testing.assert_allclose(actor(STATES), np.clip(x, LOW, HIGH), atol=1e-5)


def test_ten_layers_are_ordered_by_number_not_by_spelling(tmp_path):
    arrays = {}
    for i in range(0, 12, 2):
        arrays |= linear(f"actor.mu.{i}", 3 if i == 0 else 4, 4)
    arrays |= linear("actor.mu.12", 4, 2)
    actor = load_sb3_actor(write_sb3(tmp_path / "model.zip", arrays))
    assert [w.shape for w in actor.weights] == [(3, 4), *[(4, 4)] * 5, (4, 2)]
    assert np.array_equal(actor.weights[5], arrays["actor.mu.10.weight"].T)


def test_old_zips_hold_the_older_weight_layout(tmp_path):
    old = load_sb3_actor(write_sb3(tmp_path / "old.zip", SAC, pth=torch_legacy(SAC)))
    np.testing.assert_allclose(old(STATES), sac_action(STATES), atol=1e-5)


PENDULUM_ANGLES = np.linspace(-np.pi, np.pi, 500)
PENDULUM = np.stack(
    [np.cos(PENDULUM_ANGLES), np.sin(PENDULUM_ANGLES), 8 * np.sin(7 * PENDULUM_ANGLES)], 1
).astype(np.float32)


@pytest.mark.parametrize("name", ["sac-Pendulum-v1", "ppo-Pendulum-v1"])
def test_third_party_zips_act_as_their_npz_twins(third_party, name):
    actions = load_policy(third_party / "sb3" / f"{name}.zip")(PENDULUM)
    np.testing.assert_allclose(actions, load_policy(third_party / f"{name}.npz")(PENDULUM), atol=1e-5)
    assert np.ptp(actions) > 3.0  # nearly the whole of [-2, 2]: not a comparison of constants


def test_a_third_party_zip_with_normalisation_acts_as_its_npz_twin(third_party):
    twin = load_policy(third_party / "a2c-Hopper-v3.npz")
    states = twin.obs_mean + np.sqrt(twin.obs_var) * np.random.default_rng(0).standard_normal((500, 11))
    zipped = third_party / "sb3" / "a2c-Hopper-v3.zip"
    with pytest.raises(InputError, match="trained behind VecNormalize"):
        load_policy(zipped)
    actor = load_policy(zipped, normalization=third_party / "a2c-Hopper-v3.npz")
    np.testing.assert_allclose(actor(states), twin(states), atol=1e-5)
    assert np.abs(load_policy(zipped, normalization="none")(states) - twin(states)).max() > 0.5


def observation(bytes_held):
    return {":type:": "<class 'numpy.ndarray'>", ":serialized:": "A" * bytes_held}


@pytest.mark.parametrize(
    ("arrays", "seen", "raw", "shows"),
    [
        (PPO, observation(100), observation(100), True),
        (PPO, observation(100), None, False),
        (SAC, observation(100), observation(120), True),
        (SAC, observation(120), observation(120), False),
        (SAC, None, None, False),
    ],
)
def test_an_agent_that_learned_normalised_is_not_run_raw(tmp_path, arrays, seen, raw, shows):
    path = write_sb3(tmp_path / "model.zip", arrays, _last_obs=seen, _last_original_obs=raw)
    if shows:
        with pytest.raises(InputError, match="trained behind VecNormalize"):
            load_sb3_actor(path)
    assert load_sb3_actor(path, normalization_is_given=True).action_dim == 2


DISCRETE = {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>", "n": "4"}
PICTURE = linear("features_extractor.cnn.0", 3, 3)


@pytest.mark.parametrize(
    ("arrays", "settings", "words"),
    [
        (SAC, {"action_space": DISCRETE}, "action_space is .*Discrete"),
        (
            SAC,
            {"observation_space": {":type:": "<class 'gymnasium.spaces.dict.Dict'>"}},
            "observation_space is",
        ),
        (SAC, {"action_space": {"low": "[-1. ... -1.]", "high": "[1. ... 1.]"}}, r"bounds=\(low, high\)"),
        (SAC, {"action_space": {"low": "[-1.]", "high": "[1.]"}}, "for 2 action dimensions"),
        (SAC, {"policy_kwargs": class_named("GELU")}, "activation_fn is .*GELU"),
        (SAC, {"policy_kwargs": {"activation_fn": "<function leaky at 0x7f>"}}, "hidden="),
        (SAC, {"policy_class": {"__module__": "my_policies"}}, "comes from my_policies"),
        (GSDE, {"policy_kwargs": {"clip_mean": "often"}}, "clip_mean is often"),
        (SAC | PICTURE, {}, r"features_extractor\.cnn\.0"),
        (PPO | {"lstm_actor.weight": np.zeros((2, 2), np.float32)}, {}, "a recurrent policy"),
        (
            PPO | {"mlp_extractor.policy_net.1.weight": np.zeros(1, np.float32)},
            {},
            r"policy_net\.1\.(weight|bias)",
        ),
        (SAC | {"actor.mu.bias": np.zeros(3, np.float32)}, {}, "b1"),
        ({"q_net.0.weight": np.zeros((2, 2), np.float32)}, {}, "none of the networks"),
        ({}, {}, "found nothing"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, arrays, settings, words):
    with pytest.raises(InputError, match=words):
        load_sb3_actor(write_sb3(tmp_path / "model.zip", arrays, **settings))


def test_the_user_can_supply_what_the_zip_does_not_say(tmp_path):
    path = write_sb3(tmp_path / "model.zip", SAC, action_space={}, policy_class={})
    actor = load_policy(path, bounds=(LOW, HIGH), hidden="relu")
    np.testing.assert_allclose(actor(STATES), sac_action(STATES), atol=1e-5)


def test_a_hostile_zip_runs_nothing(tmp_path, hostile, canary):
    encoded = base64.b64encode(hostile).decode()
    settings = sb3_settings()
    for value in settings.values():
        if isinstance(value, dict) and ":serialized:" in value:
            value[":serialized:"] = encoded
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(settings))
        archive.writestr("policy.pth", torch_zip(SAC))
        archive.writestr("pytorch_variables.pth", hostile)
        archive.writestr("../../escaped", b"x")
    np.testing.assert_allclose(
        load_policy(path)(STATES), sac_action(STATES), atol=1e-5
    )  # its honest part is read
    write_sb3(path, {}, pth=hostile)
    with pytest.raises(InputError):
        load_policy(path)
    write_sb3(path, {}, pth=torch_zip({}, hostile))
    with pytest.raises(InputError, match=r"refers to .*open"):
        load_policy(path)
    assert not canary.exists()
    assert {found.name for found in tmp_path.iterdir()} == {"model.zip", "proof"}


def test_a_name_in_the_weights_is_reported_as_hostile(tmp_path):
    attack = Stream().name("os", "system").text("true").op(b"\x85R.").code
    with pytest.raises(InputError, match=r"policy\.pth: refers to os\.system"):
        load_policy(write_sb3(tmp_path / "model.zip", {}, pth=torch_zip({}, attack)))


@pytest.mark.parametrize("data", [b"{", b"[1]", b"[" * 100_000, b"\xff\xfe"])
def test_unreadable_settings_are_named(tmp_path, data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data", data)
        archive.writestr("policy.pth", torch_zip(SAC))
    (tmp_path / "model.zip").write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match="member data is not"):
        load_policy(tmp_path / "model.zip")


def test_another_zip_is_not_mistaken_for_a_policy(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("readme.txt", b"hello")
    with pytest.raises(InputError, match=r"not a Stable-Baselines3 zip.*readme\.txt"):
        load_policy(tmp_path / "model.zip")
