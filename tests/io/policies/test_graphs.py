import io

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.graphs import load_program
from kmifqe.io.policies.load import load_policy
from policy_files import torch_zip

RNG = np.random.default_rng(0)
STATES = RNG.standard_normal((20, 3)).astype(np.float32)
W, B = RNG.standard_normal((3, 2)).astype(np.float32), RNG.standard_normal(2).astype(np.float32)
EXPECTED = np.tanh(STATES @ W + B)


def write_torchscript(path):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    layer.load_state_dict({"weight": torch.from_numpy(W.T.copy()), "bias": torch.from_numpy(B)})
    torch.jit.trace(torch.nn.Sequential(layer, torch.nn.Tanh()), torch.zeros(1, 3)).save(str(path))


def write_onnx(path, batch="n", outputs=("output_0",), kind="FLOAT"):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    number = getattr(onnx.TensorProto, kind)
    dtype = {"FLOAT": np.float32, "DOUBLE": np.float64}[kind]
    nodes = [onnx.helper.make_node("Gemm", ["input_0", "w", "b"], ["y"])]
    nodes += [onnx.helper.make_node("Tanh", ["y"], [name]) for name in outputs]
    graph = onnx.helper.make_graph(
        nodes,
        "policy",
        [onnx.helper.make_tensor_value_info("input_0", number, [batch, 3])],
        [onnx.helper.make_tensor_value_info(name, number, [batch, 2]) for name in outputs],
        [onnx.numpy_helper.from_array(a.astype(dtype), name) for a, name in ((W, "w"), (B, "b"))],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def test_a_torchscript_program_acts(tmp_path):
    write_torchscript(tmp_path / "policy.pt")
    np.testing.assert_allclose(load_policy(tmp_path / "policy.pt")(STATES), EXPECTED, atol=1e-6)


def test_a_torchscript_program_of_another_size_is_one_sentence(tmp_path):
    write_torchscript(tmp_path / "policy.pt")
    with pytest.raises(InputError, match=r"failed on states of shape \(61, 5\)") as caught:
        load_policy(tmp_path / "policy.pt")(np.zeros((4, 5)))
    assert "\n" not in str(caught.value)


def test_a_pickled_checkpoint_is_refused_before_torch_sees_it(tmp_path, hostile, canary):
    (tmp_path / "policy.pt").write_bytes(torch_zip({}, hostile))
    with pytest.raises(InputError, match="not TorchScript but a pickled checkpoint"):
        load_policy(tmp_path / "policy.pt")
    (tmp_path / "policy.pt").write_bytes(hostile)
    with pytest.raises(InputError, match="cannot be read as a zip archive"):
        load_policy(tmp_path / "policy.pt")
    assert not canary.exists()


def test_a_checkpoint_dressed_as_torchscript_runs_nothing(tmp_path, hostile, canary):
    torch = pytest.importorskip("torch")
    write_torchscript(tmp_path / "honest.pt")
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(tmp_path / "honest.pt") as honest, zipfile.ZipFile(buffer, "w") as dressed:
        for member in honest.namelist():
            dressed.writestr(
                member, hostile if member.endswith(("data.pkl", "constants.pkl")) else honest.read(member)
            )
    (tmp_path / "policy.pt").write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match=r"data\.pkl: refers to .*open"):
        load_policy(tmp_path / "policy.pt")
    assert torch.__version__
    assert not canary.exists()


@pytest.mark.parametrize("changes", [{}, {"batch": 1}, {"kind": "DOUBLE"}, {"outputs": ("value", "action")}])
def test_an_onnx_graph_acts(tmp_path, changes):
    write_onnx(tmp_path / "policy.onnx", **changes)
    policy = load_policy(tmp_path / "policy.onnx", bounds=(-np.ones(2), np.ones(2)))
    np.testing.assert_allclose(policy(STATES), EXPECTED, atol=1e-6)
    assert (policy.state_dim, policy.action_dim) == (3, 2)


def test_an_onnx_graph_that_is_no_policy_is_refused(tmp_path):
    write_onnx(tmp_path / "policy.onnx", outputs=("mean", "spread"))
    with pytest.raises(InputError, match="outputs are mean, spread"):
        load_policy(tmp_path / "policy.onnx")
    (tmp_path / "policy.onnx").write_bytes(b"junk")
    with pytest.raises(InputError, match="not a readable ONNX graph"):
        load_policy(tmp_path / "policy.onnx")


@pytest.mark.parametrize(
    ("suffix", "module", "extra"), [(".pt", "torch", "torch"), (".onnx", "onnxruntime", "onnx")]
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, suffix, module, extra):
    import sys
    import zipfile

    with zipfile.ZipFile(tmp_path / f"policy{suffix}", "w") as archive:
        archive.writestr("policy/constants.pkl", b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"install kmifqe\[{extra}\]"):
        load_program(tmp_path / f"policy{suffix}")
