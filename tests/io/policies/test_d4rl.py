import h5py
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import load_d4rl_actor

RNG = np.random.default_rng(0)
SIZES = {"fc0": (7, 4), "fc1": (6, 7), "last_fc": (2, 6), "last_fc_log_std": (2, 6)}  # (outputs, inputs)
WEIGHTS = {name: RNG.standard_normal(size).astype(np.float32) for name, size in SIZES.items()}
BIASES = {name: RNG.standard_normal(size[0]).astype(np.float32) for name, size in SIZES.items()}


def write(path, nonlinearity="relu", distribution="tanh_gaussian", drop=None):
    with h5py.File(path, "w") as file:
        file["observations"] = np.zeros((3, 4), np.float32)
        for name in SIZES:
            file[f"metadata/policy/{name}/weight"], file[f"metadata/policy/{name}/bias"] = (
                WEIGHTS[name],
                BIASES[name],
            )
        file["metadata/policy/nonlinearity"] = nonlinearity
        file["metadata/policy/output_distribution"] = distribution
        if drop:
            del file[drop]
    return path


def mean(state, hidden):
    x = hidden(WEIGHTS["fc0"] @ state + BIASES["fc0"])
    x = hidden(WEIGHTS["fc1"] @ x + BIASES["fc1"])
    return WEIGHTS["last_fc"] @ x + BIASES["last_fc"]


STATES = RNG.standard_normal((20, 4)).astype(np.float32)


def test_a_tanh_gaussian_acts_by_the_tanh_of_its_mean(tmp_path):
    actor = load_d4rl_actor(write(tmp_path / "d.hdf5"))
    expected = [np.tanh(mean(state, lambda x: np.maximum(x, 0))) for state in STATES]
    np.testing.assert_allclose(actor(STATES), expected, atol=1e-5)


def test_a_gaussian_acts_by_its_mean_within_the_box(tmp_path):
    actor = load_d4rl_actor(write(tmp_path / "d.hdf5", np.bytes_("tanh"), np.bytes_("gaussian")))
    expected = [np.clip(mean(state, np.tanh), -1, 1) for state in STATES]
    np.testing.assert_allclose(actor(STATES), expected, atol=1e-5)


def test_bounds_replace_the_unit_box(tmp_path):
    path = write(tmp_path / "d.hdf5")
    wide = load_d4rl_actor(path, bounds=(np.full(2, -3, np.float32), np.full(2, 3, np.float32)))
    np.testing.assert_allclose(wide(STATES), 3 * load_d4rl_actor(path)(STATES), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drop": "metadata"}, "has no metadata/policy"),
        ({"drop": "metadata/policy/last_fc/bias"}, "last_fc/bias is missing"),
        ({"drop": "metadata/policy/nonlinearity"}, "nonlinearity is missing"),
        ({"drop": "metadata/policy/fc1"}, "w1 has shape"),
        ({"nonlinearity": "swish"}, "hidden is 'swish'"),
        ({"distribution": "beta"}, "output_distribution is 'beta'"),
    ],
)
def test_what_is_missing_is_named(tmp_path, changes, words):
    with pytest.raises(InputError, match=words):
        load_d4rl_actor(write(tmp_path / "d.hdf5", **changes))


def test_a_dataset_that_claims_terabytes_is_not_read(tmp_path):
    path = write(tmp_path / "d.hdf5", drop="metadata/policy/fc0/weight")
    with h5py.File(path, "a") as file:
        file.create_dataset("metadata/policy/fc0/weight", (2**20, 2**20), "f4", chunks=(1024, 1024))
    assert path.stat().st_size < 2**20
    with pytest.raises(InputError, match=r"declares 4,398,046,511,\d+ bytes"):
        load_d4rl_actor(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = write(tmp_path / "d.hdf5")
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match="cannot be read as an HDF5 file"):
        load_d4rl_actor(path)
