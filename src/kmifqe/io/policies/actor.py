"""The native policy: a small multilayer perceptron kept as plain arrays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from safetensors.numpy import save

from kmifqe.errors import InputError, listed, sentence_for, shown
from kmifqe.io.archives import (
    HDF5_ERRORS,
    MEMBER_LIMIT,
    check_declared_bytes,
    check_hdf5_array,
    hdf5_member,
    read_npz,
    read_safetensors,
)
from kmifqe.io.files import write_file
from kmifqe.io.policies.normalization import Normalization
from kmifqe.mdp.ask import Bounds


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (np.tanh(0.5 * x) + 1.0)  # unlike 1 / (1 + exp(-x)), it never overflows


HIDDEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "leaky_relu": lambda x: np.where(x > 0.0, x, 0.01 * x),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
}
OUTPUTS = ("tanh", "clip")
OPTIONAL_ARRAYS = ("obs_mean", "obs_var")
OPTIONAL_NUMBERS = ("obs_eps", "obs_clip", "mean_clip")


@dataclass(frozen=True)
class Actor:
    """Layers x @ w + b with `hidden` between them, brought into [low, high] by `output`.

    `output="tanh"` scales tanh to the box, `output="clip"` clips to it. Where the agent normalised its input:
    clip((s − obs_mean) / sqrt(obs_var + obs_eps), ±obs_clip). `mean_clip` clips the last layer before tanh.
    """

    weights: tuple[np.ndarray, ...]  # each (inputs, outputs)
    biases: tuple[np.ndarray, ...]
    hidden: str
    output: str
    low: np.ndarray
    high: np.ndarray
    obs_mean: np.ndarray | None = None  # kept in float64 where given so: (s − mean) cancels digits
    obs_var: np.ndarray | None = None
    obs_eps: float = 1e-8
    obs_clip: float = 10.0
    mean_clip: float | None = None
    name: str = "actor"

    def __post_init__(self) -> None:
        if self.hidden not in HIDDEN:
            raise InputError(f"{self.name}: hidden is {shown(self.hidden)!r}; expected {', '.join(HIDDEN)}")
        if self.output not in OUTPUTS:
            raise InputError(f"{self.name}: output is {shown(self.output)!r}; expected {', '.join(OUTPUTS)}")
        self._check_layers()
        self._check_bounds()
        self._check_normalization()

    def _check_layers(self) -> None:
        if not self.weights or len(self.weights) != len(self.biases):
            raise InputError(
                f"{self.name}: {len(self.weights)} weights for {len(self.biases)} biases; expected one a layer"
            )
        width = None
        for i, (w, b) in enumerate(zip(self.weights, self.biases)):
            fits = width is None or w.shape[:1] == (width,)
            if w.ndim != 2 or 0 in w.shape or b.shape != w.shape[1:] or not fits:
                raise InputError(
                    f"{self.name}: w{i} has shape {w.shape} and b{i} {b.shape}; "
                    "expected w (inputs, outputs), b (outputs,)"
                    + (f" with {width} inputs" if width is not None else "")
                )
            if not (np.isfinite(w).all() and np.isfinite(b).all()):
                raise InputError(f"{self.name}: w{i} or b{i} holds NaN or infinity")
            width = w.shape[1]

    def _check_bounds(self) -> None:
        d = self.action_dim
        for field, bound in (("low", self.low), ("high", self.high)):
            if bound.shape != (d,):
                raise InputError(f"{self.name}: {field} has shape {bound.shape}; expected ({d},)")
        if not (self.low < self.high).all():
            raise InputError(f"{self.name}: low is not below high in every action dimension")
        if self.output == "tanh" and not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise InputError(f"{self.name}: low or high is infinite; output tanh scales to finite bounds")
        if self.mean_clip is not None and not self.mean_clip > 0.0:
            raise InputError(f"{self.name}: mean_clip is {self.mean_clip}; expected a positive number")

    def _check_normalization(self) -> None:
        if (self.obs_mean is None) != (self.obs_var is None):
            raise InputError(f"{self.name}: one of obs_mean and obs_var is missing; expected both or neither")
        statistics = self.normalization
        if statistics is not None and len(statistics.mean) != self.state_dim:
            shape = statistics.mean.shape
            raise InputError(f"{self.name}: obs_mean has shape {shape}; expected ({self.state_dim},)")

    @property
    def normalization(self) -> Normalization | None:
        """How states are standardised before the first layer, if they are."""
        if self.obs_mean is None or self.obs_var is None:
            return None
        mean, var = np.asarray(self.obs_mean, np.float64), np.asarray(self.obs_var, np.float64)
        return Normalization(mean, var, self.obs_eps, self.obs_clip, self.name)

    @property
    def state_dim(self) -> int:
        """q, the width of a state."""
        return self.weights[0].shape[0]

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return self.weights[-1].shape[1]

    def latent(self, states: np.ndarray) -> np.ndarray:
        """Return what the last layer sees of each row of `states`, (n, units)."""
        states = np.asarray(states)
        if states.ndim != 2 or states.shape[1] != self.state_dim:
            raise InputError(f"{self.name}: states have shape {states.shape}; expected (n, {self.state_dim})")
        statistics = self.normalization
        x = (states if statistics is None else statistics(states)).astype(np.float32)
        for w, b in zip(self.weights[:-1], self.biases[:-1]):
            x = HIDDEN[self.hidden](x @ w + b)
        return x

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`."""
        x = self.latent(states) @ self.weights[-1] + self.biases[-1]
        if self.output == "tanh":
            if self.mean_clip is not None:
                x = np.clip(x, -self.mean_clip, self.mean_clip)
            x = self.low + 0.5 * (np.tanh(x) + 1.0) * (self.high - self.low)
        # After tanh too: rounding may step over a bound by one unit in the last place.
        actions = np.clip(x, self.low, self.high).astype(np.float32)
        if not np.isfinite(actions).all():
            raise InputError(f"{self.name}: an action is NaN or infinite; are the states finite?")
        return actions

    def save(self, path: str | Path) -> None:
        """Write as safetensors: arrays as tensors, settings as strings in the metadata."""
        tensors: dict[str, np.ndarray] = {"low": self.low, "high": self.high}
        for i, (w, b) in enumerate(zip(self.weights, self.biases)):
            tensors[f"w{i}"], tensors[f"b{i}"] = w, b
        settings = {"hidden": self.hidden, "output": self.output}
        if self.obs_mean is not None and self.obs_var is not None:
            tensors["obs_mean"], tensors["obs_var"] = self.obs_mean, self.obs_var
            settings |= {"obs_eps": json.dumps(self.obs_eps), "obs_clip": json.dumps(self.obs_clip)}
        if self.mean_clip is not None:
            settings["mean_clip"] = json.dumps(self.mean_clip)
        arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        write_file(Path(path), save(arrays, metadata=settings))


def load_npz_actor(path: str | Path) -> Actor:
    """Return the actor in an `.npz`; nothing is unpickled."""
    return _from_fields(read_npz(path), str(path))


def load_safetensors_actor(path: str | Path) -> Actor:
    """Return the actor in a safetensors file: arrays as tensors, settings in the metadata."""
    arrays, settings = read_safetensors(path)
    return _from_fields(arrays | {key: np.asarray(value) for key, value in settings.items()}, str(path))


POLICY_GROUP = "metadata/policy"  # where a D4RL expert or medium file carries its own behaviour
DISTRIBUTIONS = {"tanh_gaussian": "tanh", "gaussian": "clip"}


def load_d4rl_actor(path: str | Path, *, bounds: Bounds | None = None) -> Actor:
    """Return the mean action of the policy in a D4RL dataset file; its box is [-1, 1] unless `bounds` is given."""
    name = str(path)
    with sentence_for(path, "an HDF5 file", HDF5_ERRORS), h5py.File(path, "r") as file:
        group = hdf5_member(file, POLICY_GROUP, name)
        if not isinstance(group, h5py.Group):
            raise InputError(f"{path}: has no {POLICY_GROUP}; only expert and medium files carry one")
        layers = 0
        while hdf5_member(group, f"fc{layers}", name) is not None:
            layers += 1
        names = (*(f"fc{i}" for i in range(layers)), "last_fc")
        stored = [
            _hdf5_array(group, f"{layer}/{part}", name) for layer in names for part in ("weight", "bias")
        ]
        total = sum(data.nbytes for data in stored)  # of all together: one array may go by many names
        if total > MEMBER_LIMIT:
            raise InputError(
                f"{path}: {POLICY_GROUP} claims {total:,} bytes; at most {MEMBER_LIMIT:,} are read"
            )
        check_declared_bytes(total, Path(path).stat().st_size, name, POLICY_GROUP)
        arrays = [_floats(data[()], str(data.name).lstrip("/"), name) for data in stored]
        hidden = _hdf5_text(group, "nonlinearity", name)
        distribution = _hdf5_text(group, "output_distribution", name)
    if distribution not in DISTRIBUTIONS:
        raise InputError(
            f"{path}: output_distribution is {shown(distribution)!r}; expected one of {', '.join(DISTRIBUTIONS)}"
        )
    one = np.ones(arrays[-1].shape, np.float32)
    low, high = bounds if bounds is not None else (-one, one)
    return Actor(
        weights=tuple(weight.T for weight in arrays[::2]),  # stored (outputs, inputs)
        biases=tuple(arrays[1::2]),
        hidden=hidden,
        output=DISTRIBUTIONS[distribution],
        low=low,
        high=high,
        name=name,
    )


def d4rl_log_std(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (inputs, outputs) and bias of the layer that gives log σ of the policy in a D4RL file."""
    name = str(path)
    with sentence_for(path, "an HDF5 file", HDF5_ERRORS), h5py.File(path, "r") as file:
        group = hdf5_member(file, POLICY_GROUP, name)
        weight, bias = (_hdf5_array(group, f"last_fc_log_std/{part}", name) for part in ("weight", "bias"))
        total = weight.nbytes + bias.nbytes
        check_declared_bytes(total, Path(path).stat().st_size, name, POLICY_GROUP)
        return _floats(weight[()], "last_fc_log_std/weight", name).T, _floats(
            bias[()], "last_fc_log_std/bias", name
        )


def _hdf5_array(group: h5py.Group, field: str, name: str) -> h5py.Dataset:
    data = hdf5_member(group, field, name)
    if not isinstance(data, h5py.Dataset):
        raise InputError(f"{name}: {POLICY_GROUP}/{field} is missing")
    check_hdf5_array(data, name)
    return data


def _hdf5_text(group: h5py.Group, field: str, name: str) -> str:
    data = _hdf5_array(group, field, name)
    if data.size != 1:
        raise InputError(f"{name}: {POLICY_GROUP}/{field} has shape {data.shape}; expected one text")
    value = np.asarray(data[()]).reshape(-1)[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _from_fields(fields: dict[str, np.ndarray], name: str) -> Actor:
    if {"actions", "rewards"} <= set(fields):
        raise InputError(
            f"{name}: holds a log; expected a policy (a log is given first, and --policy names a policy)"
        )
    for field in ("w0", "b0", "hidden", "output", "low", "high"):
        if field not in fields:
            raise InputError(f"{name}: field {field} is missing; found {listed(fields)}")
    layers = 0
    while f"w{layers}" in fields:
        if f"b{layers}" not in fields:
            raise InputError(f"{name}: w{layers} has no b{layers}")
        layers += 1
    if "n_layers" in fields and _number(fields["n_layers"], "n_layers", name) != layers:
        raise InputError(f"{name}: n_layers is {shown(fields['n_layers'])}; found {layers} layers")
    extra: dict[str, Any] = {
        key: _numeric(fields[key], key, name) for key in OPTIONAL_ARRAYS if key in fields
    }
    extra |= {key: _number(fields[key], key, name) for key in OPTIONAL_NUMBERS if key in fields}
    return Actor(
        weights=tuple(_floats(fields[f"w{i}"], f"w{i}", name) for i in range(layers)),
        biases=tuple(_floats(fields[f"b{i}"], f"b{i}", name) for i in range(layers)),
        hidden=str(fields["hidden"]),
        output=str(fields["output"]),
        low=_floats(fields["low"], "low", name),
        high=_floats(fields["high"], "high", name),
        name=name,
        **extra,
    )


def _numeric(array: np.ndarray, field: str, name: str) -> np.ndarray:
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name}: {field} has type {shown(array.dtype)}; expected numbers")
    return array


def _floats(array: np.ndarray, field: str, name: str) -> np.ndarray:
    return np.asarray(_numeric(array, field, name), np.float32)


def _number(array: np.ndarray, field: str, name: str) -> float:
    try:
        return float(array)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name}: {field} is {shown(array)}; expected one number") from error
