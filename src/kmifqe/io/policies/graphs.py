"""Exported computation graphs: TorchScript (PyTorch) and ONNX (onnxruntime), both optional extras."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError, listed, shown
from kmifqe.io.archives import Archive
from kmifqe.io.policies.objects import CheckedPolicy, torch_function
from kmifqe.io.policies.pickles import read_inert
from kmifqe.io.policies.torch_weights import check_stored_tensors
from kmifqe.mdp.ask import Bounds

ACTION_OUTPUTS = ("action", "actions", "output_0", "continuous_actions")
# TorchScript's own functions that reach beyond the program: files, other processes, compiled classes. A module may
# have some of its code run while it is loaded, so they are looked for in the text before PyTorch sees it.
REACHES_OUT = re.compile(rb"\b(save|from_file|load_tensor|rpc_\w+|dist_\w+|_?c10d\w*|classes|profiler)\b")
NEEDED_MEMBERS = re.compile(r"[^/]+/((data|constants)(\.pkl|/[^/]+)|code/.*\.py|version|byteorder)")
STREAM_PACKAGES = ("__torch__", "torch", "collections")
ONNX_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


def load_program(path: str | Path, bounds: Bounds | None = None) -> CheckedPolicy:
    """Return the TorchScript or ONNX program in `path` as a policy; `bounds` are (low, high) of its actions."""
    is_onnx = Path(path).suffix.lower() == ".onnx"
    return load_onnx(path, bounds) if is_onnx else load_torchscript(path, bounds)


def load_torchscript(path: str | Path, bounds: Bounds | None = None) -> CheckedPolicy:
    """Return the TorchScript program in `path` as a policy.

    A pickled checkpoint in the same clothes (`torch.save`) is refused before PyTorch sees it.
    """
    archive = Archive(path, str(path))
    if not any(member.endswith("/constants.pkl") for member in archive.sizes):
        raise InputError(
            f"{path}: not TorchScript but a pickled checkpoint, which is not unpickled; "
            "export with torch.jit.trace(policy, example).save(...) or d3rlpy's save_policy"
        )
    try:
        import torch
    except ImportError as error:
        raise InputError(f"{path}: TorchScript needs PyTorch; install kmifqe[torch]") from error
    try:
        program = torch.jit.load(_repacked(archive), map_location="cpu")
        program.eval()
        act = torch_function(program)
    except InputError:
        raise
    except Exception as error:  # PyTorch's reader raises whatever its unpickler, parser and types do
        raise InputError(f"{path}: not readable TorchScript ({shown(error)})") from error
    low, high = bounds if bounds is not None else (None, None)
    shapes = tuple(tuple(parameter.shape) for parameter in program.parameters())
    return CheckedPolicy(act, str(path), low=low, high=high, shapes=shapes)


def _repacked(archive: Archive) -> io.BytesIO:
    """Return the archive written anew from what was checked here: PyTorch reads zips its own way and trusts sizes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as copy:
        for member in archive.sizes:
            if not NEEDED_MEMBERS.fullmatch(member):  # debugging aids and example inputs
                continue
            blob = archive.read(member)
            if member.endswith(".pkl"):
                _check_stream(archive, member, blob)
            elif member.endswith(".py") and (found := REACHES_OUT.search(blob)):
                raise InputError(
                    f"{archive.where}: the program uses {shown(found[0].decode())}, which reaches beyond it; "
                    "expected functions of numbers only"
                )
            copy.writestr(member, blob)
    packed.seek(0)
    return packed


def _check_stream(archive: Archive, member: str, blob: bytes) -> None:
    where = f"{archive.where}: {shown(member)}"
    found = read_inert(blob, lambda name: name.module.partition(".")[0] in STREAM_PACKAGES, where)
    folder = member.removesuffix(".pkl")
    check_stored_tensors(found, lambda key: archive.sizes.get(f"{folder}/{key}", 0), where)


def load_onnx(path: str | Path, bounds: Bounds | None = None) -> CheckedPolicy:
    """Return the ONNX graph in `path` as a policy; a graph exported for batches of 1 is run row by row."""
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(f"{path}: ONNX needs onnxruntime; install kmifqe[onnx]") from error
    onnxruntime.disable_telemetry_events()  # reading a policy tells nobody anything
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # the error says what is wrong, without the file's own letters
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        inputs, outputs = session.get_inputs(), [output.name for output in session.get_outputs()]
        seen = [(node.name, node.type, node.shape) for node in inputs]  # a name may not be text
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise InputError(f"{path}: not a readable ONNX graph ({shown(error)})") from error
    if len(seen) != 1 or seen[0][1] not in ONNX_TYPES or len(seen[0][2]) != 2:
        found = ", ".join(f"{name} {kind} of shape {shape}" for name, kind, shape in seen)
        raise InputError(f"{path}: inputs are {shown(found)}; expected one tensor of states (n, q)")
    actions = outputs if len(outputs) == 1 else [name for name in outputs if name in ACTION_OUTPUTS]
    if len(actions) != 1:
        raise InputError(f"{path}: outputs are {listed(outputs)}; expected one, or one named action")
    name, kind, (batch, width) = seen[0]  # a free size is a name, not a number
    dtype = ONNX_TYPES[kind]

    def run(states: np.ndarray) -> np.ndarray:
        return session.run(actions, {name: states.astype(dtype)})[0]

    def run_rows(states: np.ndarray) -> np.ndarray:
        return np.concatenate([run(states[i : i + 1]) for i in range(len(states))])

    low, high = bounds if bounds is not None else (None, None)
    state_dim = width if isinstance(width, int) else None
    return CheckedPolicy(run_rows if batch == 1 else run, str(path), low=low, high=high, state_dim=state_dim)
