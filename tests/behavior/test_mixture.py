import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kmifqe.behavior import Behavior, FactorizedBehavior, TanhMixture
from kmifqe.behavior.fit_report import ks_distance
from kmifqe.behavior.mixture import CHUNK, FORMAT, init_network
from kmifqe.behavior.support import make_support
from kmifqe.errors import InputError

LOW, HIGH = np.array([-2.0, 0.0]), np.array([2.0, 1.0])
STATES = np.random.default_rng(1).normal(size=(3000, 3)).astype(np.float32)


def random_mixture(dims=2, layer=1e-2, components=5):
    """A mixture that nothing was fitted to; its weights are large, so that it differs from state to state."""
    actions = np.random.default_rng(0).uniform(LOW[:dims], HIGH[:dims], (1000, dims))
    network = init_network(np.random.default_rng(0), 3, (16, 16), components, dims)
    *hidden, (weight, bias) = network
    support = make_support(actions, LOW[:dims], HIGH[:dims], layer)
    return TanhMixture((*hidden, (10.0 * weight, bias)), support, np.full(3, 0.1), np.full(3, 2.0))


MIXTURE = random_mixture()
DRAWN = MIXTURE.sample(np.random.default_rng(2), STATES)


def test_density_integrates_to_one_over_the_box_layers_included():
    mixture = random_mixture(dims=1)
    edges = np.linspace(-2.0, 2.0, 40_001)
    middles = 0.5 * (edges[1:] + edges[:-1])[:, None]
    for state in STATES[:3]:
        density = np.exp(mixture.log_prob(np.tile(state, (len(middles), 1)), middles))
        np.testing.assert_allclose(density.sum() * 1e-4, 1.0, atol=2e-4)


def test_log_prob_is_finite_on_and_beyond_the_bounds():
    actions = np.array([[-2.0, 1.0], [2.0, 0.0], [1e6, -1e6], [0.0, 0.5]])
    assert np.isfinite(MIXTURE.log_prob(STATES[:4], actions)).all()


def test_its_own_draws_are_uniform_under_its_cdf():
    pit = MIXTURE.pit(STATES, DRAWN)
    assert ((pit >= 0) & (pit <= 1)).all()
    for column in pit.T:
        assert ks_distance(column) < 1.95 / np.sqrt(len(STATES))  # exceeded by chance once in a thousand
    assert abs(np.corrcoef(pit.T)[0, 1]) < 4 / np.sqrt(len(STATES))


def test_draws_stay_in_the_box():
    assert (LOW.astype(np.float32) <= DRAWN).all()
    assert (HIGH.astype(np.float32) >= DRAWN).all()


def test_rows_do_not_depend_on_their_chunk():
    states = np.tile(STATES, (4, 1))[: CHUNK + 3]
    actions = np.tile(DRAWN, (4, 1))[: CHUNK + 3]
    whole = MIXTURE.log_prob(states, actions)
    np.testing.assert_allclose(whole[-3:], MIXTURE.log_prob(states[-3:], actions[-3:]), atol=1e-4)
    assert MIXTURE.log_prob(states[:0], actions[:0]).shape == (0,)


def test_saved_and_loaded_is_the_same_density(tmp_path):
    path = tmp_path / "behavior.safetensors"
    MIXTURE.save(path)
    loaded = TanhMixture.load(path)
    np.testing.assert_array_equal(loaded.log_prob(STATES, DRAWN), MIXTURE.log_prob(STATES, DRAWN))
    assert loaded.components == 5
    assert [p.name for p in tmp_path.iterdir()] == ["behavior.safetensors"]


def test_a_mixture_is_a_behavior_but_not_a_product():
    assert isinstance(MIXTURE, Behavior)
    assert not isinstance(MIXTURE, FactorizedBehavior)


def test_a_failed_save_is_one_sentence_and_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        MIXTURE.save(tmp_path / "missing" / "behavior.safetensors")
    assert not list(tmp_path.iterdir())


def damaged(tensors, settings, damage):
    if damage == "missing":
        del tensors["state_mean"]
    elif damage == "nan":
        tensors["b1"][0] = np.nan
    elif damage == "shape":
        tensors["w1"] = tensors["w1"][:-1]
    elif damage == "outputs":
        tensors["w2"], tensors["b2"] = tensors["w2"][:, :-1], tensors["b2"][:-1]
    elif damage == "bounds":
        tensors["low"] = tensors["low"][:1]
    elif damage == "format":
        settings = {}
    elif damage == "layer":
        settings = {"format": FORMAT, "layer": "thin"}
    return {key: np.ascontiguousarray(value) for key, value in tensors.items()}, settings


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("missing", "state_mean is missing"),
        ("nan", "b1 holds NaN"),
        ("shape", "w1 has shape"),
        ("outputs", "outputs; expected a multiple of 5"),
        ("bounds", "high has shape"),
        ("format", "not a fitted behaviour"),
        ("layer", "layer is missing or no number"),
    ],
)
def test_a_broken_file_is_named(tmp_path, damage, named):
    path = tmp_path / "behavior.safetensors"
    MIXTURE.save(path)
    tensors, settings = damaged(load_file(path), {"format": FORMAT, "layer": "0.01"}, damage)
    save_file(tensors, path, metadata=settings)
    with pytest.raises(InputError, match=named):
        TanhMixture.load(path)


def test_a_truncated_file_is_named(tmp_path):
    path = tmp_path / "behavior.safetensors"
    MIXTURE.save(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="not a readable safetensors"):
        TanhMixture.load(path)


def test_wrong_widths_are_refused():
    with pytest.raises(InputError, match="states have shape"):
        MIXTURE.log_prob(STATES[:, :2], DRAWN)
    with pytest.raises(InputError, match="actions have shape"):
        MIXTURE.log_prob(STATES, DRAWN[:, :1])
