import io

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies import torch_weights
from kmifqe.io.policies.torch_weights import read_state_dict
from policy_files import Stream, state_dict_stream, torch_legacy, torch_zip

RNG = np.random.default_rng(0)
ARRAYS = {
    "first.weight": RNG.standard_normal((4, 3)).astype(np.float32),
    "first.bias": RNG.standard_normal(4),
    "scale": np.array(2.0, np.float32),
}


@pytest.mark.parametrize("write", [torch_zip, torch_legacy])
def test_both_layouts_give_the_arrays_that_went_in(write):
    found = read_state_dict(write(ARRAYS), "policy.pth")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_itself_saves_is_read_bit_for_bit(zipped):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
    state = module.state_dict()
    shared = torch.arange(12.0)
    state["transposed"] = shared.reshape(3, 4).T  # a view: same storage, other strides
    state["offset"] = shared[5:8]
    state["half"] = torch.ones(3, dtype=torch.float16)
    buffer = io.BytesIO()
    torch.save(state, buffer, _use_new_zipfile_serialization=zipped)
    found = read_state_dict(buffer.getvalue(), "policy.pth")
    assert set(found) == set(state)
    for name, tensor in state.items():
        assert np.array_equal(found[name], tensor.numpy())


def test_only_the_parameters_asked_for_are_unpacked(monkeypatch):
    found = read_state_dict(torch_zip(ARRAYS), "policy.pth")
    members = []
    read = torch_weights.Archive.read
    monkeypatch.setattr(
        torch_weights.Archive, "read", lambda self, name: members.append(name) or read(self, name)
    )
    found["first.bias"]
    assert members == ["archive/data/1"]


@pytest.mark.parametrize("size", [2**31 - 1, 3])
def test_a_storage_that_lies_about_its_size_allocates_nothing(size):
    stream = state_dict_stream(ARRAYS, sizes={"first.bias": size})
    with pytest.raises(InputError, match=r"first\.bias claims"):
        read_state_dict(torch_zip(ARRAYS, stream), "policy.pth")["first.bias"]


def test_a_tensor_larger_than_its_storage_is_refused():
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2**30, 2**20), (0, 0))  # strides of 0
    stream = state_dict_stream({"w": huge}, sizes={"w": 1})
    with pytest.raises(InputError, match="in a storage of 1 numbers"):
        read_state_dict(torch_zip({"w": np.zeros(1, np.float32)}, stream), "policy.pth")


def test_a_legacy_file_cut_short_is_refused():
    blob = torch_legacy(ARRAYS)
    with pytest.raises(InputError, match=r"scale|storage"):
        read_state_dict(blob[:-3], "policy.pth")["scale"]


@pytest.mark.parametrize(
    "name", [("os", "system"), ("builtins", "eval"), ("torch", "load"), ("torch._utils", "x")]
)
def test_any_other_name_is_refused(name):
    with pytest.raises(InputError, match=f"refers to {name[0]}.{name[1]}"):
        read_state_dict(torch_zip({}, Stream().name(*name).op(b".").code), "policy.pth")


@pytest.mark.parametrize(
    "wrap", [lambda blob: torch_zip({}, blob), lambda blob: torch_legacy({})[:30] + blob, bytes]
)
def test_a_hostile_pickle_inside_runs_nothing(wrap, hostile, canary):
    with pytest.raises(InputError):
        read_state_dict(wrap(hostile), "policy.pth")
    assert not canary.exists()


@pytest.mark.parametrize(
    "blob",
    [b"", b"junk", torch_zip({}, b"\x80\x02K\x01."), torch_zip({}, b"\x80\x02}X\x01\x00\x00\x00wK\x01s.")],
    ids=["empty", "junk", "a number", "a number under a name"],
)
def test_what_is_not_a_state_dict_is_refused(blob):
    with pytest.raises(InputError, match=r"^policy\.pth: "):
        read_state_dict(blob, "policy.pth")
