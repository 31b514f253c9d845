"""The native policy: a small multilayer perceptron kept as plain arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from kmifqe.errors import InputError
from kmifqe.io.archives import read_npz, shown


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
UNREADABLE = (TypeError, KeyError, ValueError, AttributeError)  # safetensors on a type that NumPy lacks
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
            raise InputError(
                f"{self.name}: hidden is {shown(self.hidden)!r}; expected one of {', '.join(HIDDEN)}"
            )
        if self.output not in OUTPUTS:
            raise InputError(
                f"{self.name}: output is {shown(self.output)!r}; expected one of {', '.join(OUTPUTS)}"
            )
        self._check_layers()
        self._check_bounds()
        self._check_normalization()

    def _check_layers(self) -> None:
        if not self.weights or len(self.weights) != len(self.biases):
            raise InputError(
                f"{self.name}: {len(self.weights)} weights and {len(self.biases)} biases; expected pairs"
            )
        width = None
        for i, (w, b) in enumerate(zip(self.weights, self.biases)):
            if (
                w.ndim != 2
                or 0 in w.shape
                or b.shape != w.shape[1:]
                or (width is not None and w.shape[0] != width)
            ):
                raise InputError(
                    f"{self.name}: w{i} has shape {w.shape} and b{i} {b.shape}; "
                    "expected w (inputs, outputs), b (outputs,)"
                    + (f" with {width} inputs" if width is not None else "")
                )
            if not (np.isfinite(w).all() and np.isfinite(b).all()):
                raise InputError(f"{self.name}: w{i} or b{i} holds NaN or infinity")
            width = w.shape[1]

    def _check_bounds(self) -> None:
        for field, bound in (("low", self.low), ("high", self.high)):
            if bound.shape != (self.action_dim,):
                raise InputError(
                    f"{self.name}: {field} has shape {bound.shape}; expected ({self.action_dim},)"
                )
        if not (self.low < self.high).all():
            raise InputError(f"{self.name}: low is not below high in every action dimension")
        if self.output == "tanh" and not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise InputError(
                f"{self.name}: low or high is infinite; output tanh needs finite bounds to scale to"
            )
        if self.mean_clip is not None and not self.mean_clip > 0.0:
            raise InputError(f"{self.name}: mean_clip is {self.mean_clip}; expected a positive number")

    def _check_normalization(self) -> None:
        if (self.obs_mean is None) != (self.obs_var is None):
            raise InputError(
                f"{self.name}: only one of obs_mean and obs_var is given; expected both or neither"
            )
        for field in ("obs_mean", "obs_var"):
            value = getattr(self, field)
            if value is None:
                continue
            if value.shape != (self.state_dim,):
                raise InputError(
                    f"{self.name}: {field} has shape {value.shape}; expected ({self.state_dim},)"
                )
            if not np.isfinite(value).all():
                raise InputError(f"{self.name}: {field} holds NaN or infinity")
        if self.obs_var is not None and not (self.obs_var + self.obs_eps > 0.0).all():
            raise InputError(f"{self.name}: obs_var + obs_eps is not positive in every state dimension")
        if not self.obs_clip > 0.0:
            raise InputError(f"{self.name}: obs_clip is {self.obs_clip}; expected a positive number")

    @property
    def state_dim(self) -> int:
        """q, the width of a state."""
        return self.weights[0].shape[0]

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return self.weights[-1].shape[1]

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`."""
        states = np.asarray(states)
        if states.ndim != 2 or states.shape[1] != self.state_dim:
            raise InputError(f"{self.name}: states have shape {states.shape}; expected (n, {self.state_dim})")
        x = self._normalized(states).astype(np.float32)
        for w, b in zip(self.weights[:-1], self.biases[:-1]):
            x = HIDDEN[self.hidden](x @ w + b)
        x = x @ self.weights[-1] + self.biases[-1]
        if self.output == "tanh":
            if self.mean_clip is not None:
                x = np.clip(x, -self.mean_clip, self.mean_clip)
            x = self.low + 0.5 * (np.tanh(x) + 1.0) * (self.high - self.low)
        # After tanh too: rounding may step over a bound by one unit in the last place.
        actions = np.clip(x, self.low, self.high).astype(np.float32)
        if not np.isfinite(actions).all():
            raise InputError(f"{self.name}: an action is NaN or infinite; are the states finite?")
        return actions

    def _normalized(self, states: np.ndarray) -> np.ndarray:
        if self.obs_mean is None or self.obs_var is None:
            return states
        scale = np.sqrt(np.asarray(self.obs_var, np.float64) + self.obs_eps)
        return np.clip(
            (states - np.asarray(self.obs_mean, np.float64)) / scale, -self.obs_clip, self.obs_clip
        )

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
        partial = Path(f"{path}.part")
        save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, partial, metadata=settings)
        os.replace(partial, path)


def load_npz_actor(path: str | Path) -> Actor:
    """Return the actor in an `.npz`; nothing is unpickled."""
    return _from_fields(read_npz(path), str(path))


def load_safetensors_actor(path: str | Path) -> Actor:
    """Return the actor in a safetensors file: arrays as tensors, settings in the metadata."""
    try:
        with safe_open(path, framework="numpy") as file:
            fields = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            fields |= {key: np.asarray(value) for key, value in (file.metadata() or {}).items()}
    except (OSError, SafetensorError, *UNREADABLE) as error:
        raise InputError(f"{path}: not a readable safetensors file ({shown(error)})") from error
    return _from_fields(fields, str(path))


def _from_fields(fields: dict[str, np.ndarray], name: str) -> Actor:
    for field in ("w0", "b0", "hidden", "output", "low", "high"):
        if field not in fields:
            raise InputError(
                f"{name}: field {field} is missing; found {shown(', '.join(sorted(fields)), 200) or 'nothing'}"
            )
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
