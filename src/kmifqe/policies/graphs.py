"""Exported computation graphs: TorchScript (PyTorch) and ONNX (onnxruntime), both optional extras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError
from kmifqe.policies.archives import Archive
from kmifqe.policies.base import Bounds
from kmifqe.policies.checked import CheckedPolicy

ACTION_OUTPUTS = ("action", "actions", "output_0", "continuous_actions")
ONNX_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


def load_torchscript(path: str | Path, bounds: Bounds | None = None) -> CheckedPolicy:
    """Return the TorchScript program in `path` as a policy.

    A pickled checkpoint in the same clothes (`torch.save`) is refused before PyTorch sees it.
    """
    members = Archive(path, str(path)).sizes
    if not any(member.endswith("/constants.pkl") for member in members):
        raise InputError(
            f"{path}: not TorchScript but a pickled checkpoint, which is not unpickled; "
            "export with torch.jit.trace(policy, example).save(...) or d3rlpy's save_policy"
        )
    try:
        import torch
    except ImportError as error:
        raise InputError(f"{path}: TorchScript needs PyTorch; install kmifqe[torch]") from error
    try:
        program = torch.jit.load(str(path), map_location="cpu")
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{path}: not readable TorchScript ({error})") from error
    program.eval()
    low, high = bounds if bounds is not None else (None, None)
    return CheckedPolicy(torch_function(program), str(path), low=low, high=high)


def torch_function(module: Callable[[object], object]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a PyTorch module or program as a function on arrays."""
    import torch

    parameter = next(iter(module.parameters()), None) if hasattr(module, "parameters") else None
    dtype = parameter.dtype if parameter is not None and parameter.is_floating_point() else torch.float32
    device = parameter.device if parameter is not None else "cpu"

    def act(states: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            answer = module(torch.from_numpy(states).to(device, dtype))
        if not isinstance(answer, torch.Tensor):
            raise TypeError(f"returned {type(answer).__name__}; expected one tensor of actions")
        return answer.cpu().numpy()

    return act


def load_onnx(path: str | Path, bounds: Bounds | None = None) -> CheckedPolicy:
    """Return the ONNX graph in `path` as a policy; a graph exported for batches of 1 is run row by row."""
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(f"{path}: ONNX needs onnxruntime; install kmifqe[onnx]") from error
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise InputError(f"{path}: not a readable ONNX graph ({error})") from error
    inputs, outputs = session.get_inputs(), [output.name for output in session.get_outputs()]
    if len(inputs) != 1 or inputs[0].type not in ONNX_TYPES or len(inputs[0].shape) != 2:
        found = ", ".join(f"{i.name} {i.type} of shape {i.shape}" for i in inputs)
        raise InputError(f"{path}: inputs are {found}; expected one tensor of states (n, q)")
    actions = outputs if len(outputs) == 1 else [name for name in outputs if name in ACTION_OUTPUTS]
    if len(actions) != 1:
        raise InputError(f"{path}: outputs are {', '.join(outputs)}; expected one, or one named action")
    dtype, (batch, width) = ONNX_TYPES[inputs[0].type], inputs[0].shape  # a free size is a name, not a number

    def run(states: np.ndarray) -> np.ndarray:
        return session.run(actions, {inputs[0].name: states.astype(dtype)})[0]

    def run_rows(states: np.ndarray) -> np.ndarray:
        return np.concatenate([run(states[i : i + 1]) for i in range(len(states))])

    low, high = bounds if bounds is not None else (None, None)
    state_dim = width if isinstance(width, int) else None
    return CheckedPolicy(run_rows if batch == 1 else run, str(path), low=low, high=high, state_dim=state_dim)
