import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import HIDDEN, Actor, load_npz_actor, load_safetensors_actor

NAMES = [
    "a2c-HalfCheetah-v3", "a2c-Hopper-v3", "a2c-Pendulum-v1", "a2c-Swimmer-v3", "a2c-Walker2d-v3",
    "ddpg-Pendulum-v1", "ppo-HalfCheetah-v3", "ppo-Hopper-v3", "ppo-Pendulum-v1", "sac-HalfCheetah-v3",
    "sac-Hopper-v3", "sac-Pendulum-v1", "sac-Swimmer-v3", "sac-Walker2d-v3", "trpo-Ant-v3",
    "trpo-HalfCheetah-v3", "trpo-Hopper-v3", "trpo-Pendulum-v1", "trpo-Walker2d-v3",
]  # fmt: skip


def small(**changes):
    fields = dict(
        weights=(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), np.array([[2.0], [-1.0]], np.float32)),
        biases=(np.zeros(2, np.float32), np.array([0.5], np.float32)),
        hidden="relu",
        output="tanh",
        low=np.array([-3.0], np.float32),
        high=np.array([1.0], np.float32),
    )
    return Actor(**(fields | changes))


def one_by_one(file, state):
    """The README's formulas for a single state, in float64 and without any of our code.

    Beside the action it returns what float32 may round off it: wide layers whose terms cancel lose digits, and how
    many depends on the order of the sums, so on the processor.
    """
    x, rounded = state.astype(np.float64), 0.0 * state
    if "obs_mean" in file:
        x = (x - file["obs_mean"]) / np.sqrt(file["obs_var"].astype(np.float64) + float(file["obs_eps"]))
        x = np.minimum(np.maximum(x, -float(file["obs_clip"])), float(file["obs_clip"]))
    layers = int(file["n_layers"])
    for i in range(layers):
        w = file[f"w{i}"].astype(np.float64)
        terms = abs(x) @ abs(w) + abs(file[f"b{i}"])
        rounded = np.sqrt((rounded**2) @ (w**2)) + terms * np.finfo(np.float32).eps
        x = np.array([sum(x * w[:, j]) + file[f"b{i}"][j] for j in range(w.shape[1])])
        if i < layers - 1:
            x = np.tanh(x) if str(file["hidden"]) == "tanh" else x * (x > 0)
    if "mean_clip" in file:
        x = np.minimum(np.maximum(x, -float(file["mean_clip"])), float(file["mean_clip"]))
    if str(file["output"]) == "clip":
        return np.minimum(np.maximum(x, file["low"]), file["high"]), rounded
    half = (file["high"].astype(np.float64) - file["low"]) / 2
    return (file["high"] + file["low"]) / 2 + np.tanh(x) * half, rounded * half


@pytest.mark.parametrize("name", NAMES)
def test_third_party_actors_act_as_a_plain_forward_pass_says(third_party, name):
    actor = load_npz_actor(third_party / f"{name}.npz")
    file = dict(np.load(third_party / f"{name}.npz"))
    draws = np.random.default_rng(0).standard_normal((4, actor.state_dim))
    mean, spread = (file["obs_mean"], np.sqrt(file["obs_var"])) if "obs_mean" in file else (0.0, 1.0)
    states = (mean + spread * draws).astype(np.float32)
    expected, rounded = map(np.array, zip(*(one_by_one(file, state) for state in states)))
    assert rounded.max() < 1e-3  # else the comparison would say nothing
    np.testing.assert_array_less(abs(actor(states) - expected), 1e-6 + rounded)


def test_tanh_output_fills_the_box_and_never_leaves_it():
    actor = small()
    actions = actor(np.array([[100.0, 0.0], [0.0, 100.0], [0.0, 0.5]], np.float32))
    np.testing.assert_allclose(actions, [[1.0], [-3.0], [-1.0]], atol=1e-6)
    assert (actions >= actor.low).all()
    assert (actions <= actor.high).all()


def test_mean_clip_limits_the_last_layer():
    actions = small(mean_clip=0.5)(np.array([[100.0, 0.0]], np.float32))
    assert actions[0, 0] == pytest.approx(-1.0 + 2.0 * np.tanh(0.5), abs=1e-6)


def test_normalization_keeps_the_digits_that_cancel():
    # In float32 1e6 + 0.01 cannot be told from 1e6 + 0.03; the statistics are in float64 for that reason.
    mean = np.array([1e6 + 0.02, 0.0])
    actor = small(obs_mean=mean, obs_var=np.array([1e-4, 1.0]), weights=(np.eye(2, 1, dtype=np.float32),),
                  biases=(np.zeros(1, np.float32),), output="clip")  # fmt: skip
    action = actor(np.array([[1e6 + 0.025, 0.0]]))
    assert action[0, 0] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "at_minus_2", "at_3"),
    [
        ("tanh", -0.9640276, 0.9950547), ("relu", 0.0, 3.0), ("elu", -0.8646647, 3.0),
        ("leaky_relu", -0.02, 3.0), ("silu", -0.2384058, 2.8577224), ("sigmoid", 0.1192029, 0.9525741),
    ],
)  # fmt: skip
def test_activations_have_their_known_values(name, at_minus_2, at_3):
    values = HIDDEN[name](np.array([-2.0, 3.0, -1000.0], np.float32))
    np.testing.assert_allclose(values[:2], [at_minus_2, at_3], atol=1e-6)
    assert np.isfinite(values).all()
    assert set(HIDDEN) == {"tanh", "relu", "elu", "leaky_relu", "silu", "sigmoid"}


def test_saving_and_loading_changes_no_bit(tmp_path):
    actor = small(obs_mean=np.array([0.1, 1 / 3]), obs_var=np.array([2.0, 3.0]), obs_clip=7.0, mean_clip=2.0)
    actor.save(tmp_path / "actor.safetensors")
    again = load_safetensors_actor(tmp_path / "actor.safetensors")
    states = np.random.default_rng(1).standard_normal((50, 2)).astype(np.float32)
    assert np.array_equal(actor(states), again(states))
    assert np.array_equal(actor.obs_mean, again.obs_mean)
    assert [path.name for path in tmp_path.iterdir()] == ["actor.safetensors"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": "gelu"}, "hidden is 'gelu'"),
        ({"output": "linear"}, "output is 'linear'"),
        ({"biases": (np.zeros(2, np.float32),)}, "2 weights for 1 biases"),
        ({"biases": (np.zeros(3, np.float32), np.zeros(1, np.float32))}, r"b0 \(3,\)"),
        ({"biases": (np.full(2, np.nan, np.float32), np.zeros(1, np.float32))}, "NaN"),
        ({"low": np.array([1.0], np.float32)}, "low is not below high"),
        ({"low": np.array([-np.inf], np.float32)}, "finite bounds"),
        ({"low": np.zeros(2, np.float32)}, r"low has shape \(2,\)"),
        ({"obs_mean": np.zeros(2)}, "both or neither"),
        ({"obs_mean": np.zeros(2), "obs_var": np.full(2, -1.0)}, "negative variance"),
        ({"obs_mean": np.zeros(3), "obs_var": np.ones(3)}, r"obs_mean has shape \(3,\)"),
        ({"mean_clip": -1.0}, "mean_clip is -1.0"),
    ],
)
def test_a_wrong_field_is_named(changes, words):
    with pytest.raises(InputError, match=words):
        small(**changes)


def test_states_of_the_wrong_width_are_refused_with_both_sizes():
    with pytest.raises(InputError, match=r"shape \(5, 3\); expected \(n, 2\)"):
        small()(np.zeros((5, 3)))


def test_nan_states_do_not_become_actions():
    with pytest.raises(InputError, match="NaN"):
        small(output="clip")(np.array([[np.nan, 0.0]], np.float32))


def fields(**changes):
    base = {
        "w0": np.eye(2),
        "b0": np.zeros(2),
        "hidden": "tanh",
        "output": "clip",
        "low": -np.ones(2),
        "high": np.ones(2),
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": None}, "field hidden is missing"),
        ({"b0": None}, "field b0 is missing"),
        ({"w1": np.eye(2)}, "w1 has no b1"),
        ({"n_layers": 3}, "n_layers is 3; found 1"),
        ({"w0": np.array([["a"]])}, "expected numbers"),
        ({"obs_eps": np.zeros(4)}, "expected one number"),
    ],
)
def test_an_incomplete_npz_names_what_is_missing(tmp_path, changes, words):
    np.savez(tmp_path / "actor.npz", **fields(**changes))
    with pytest.raises(InputError, match=words):
        load_npz_actor(tmp_path / "actor.npz")


def test_a_damaged_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "actor.safetensors"
    small().save(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load_safetensors_actor(path)
    path.write_bytes(b"\xff" * 200)  # a header that claims 2^64 bytes
    with pytest.raises(InputError, match="declares a header of"):
        load_safetensors_actor(path)
