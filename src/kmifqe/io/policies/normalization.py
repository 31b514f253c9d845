"""The statistics with which an agent's inputs were standardised (Stable-Baselines3's VecNormalize)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from kmifqe.errors import InputError, listed, shown
from kmifqe.io.archives import read_npz, read_safetensors
from kmifqe.io.child import run_in_child
from kmifqe.io.files import read_file, require_file, temporary_folder
from kmifqe.io.policies.pickles import STREAM_LIMIT, Built, Name, read_inert, to_array

# What an honest vecnormalize.pkl mentions: its own classes, spaces and arrays. Nothing is imported from them.
STATISTICS = "normalization.safetensors"  # how the child hands them over
STATISTICS_PACKAGES = ("stable_baselines3", "gymnasium", "gym", "numpy", "collections", "_codecs")


@dataclass(frozen=True)
class Normalization:
    """states -> clip((states − mean) / sqrt(var + epsilon), ±clip)."""

    mean: np.ndarray  # (q,) float64
    var: np.ndarray  # (q,) float64
    epsilon: float = 1e-8
    clip: float = 10.0
    name: str = "normalization"

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.var.shape:
            raise InputError(
                f"{self.name}: obs_mean has shape {self.mean.shape} and obs_var {self.var.shape}; "
                "expected one number per state dimension in each"
            )
        if not (np.isfinite(self.mean).all() and np.isfinite(self.var).all() and (self.var >= 0.0).all()):
            raise InputError(f"{self.name}: obs_mean or obs_var holds NaN, infinity or a negative variance")
        if not (self.epsilon >= 0.0 and self.clip > 0.0 and (self.var + self.epsilon > 0.0).all()):
            raise InputError(
                f"{self.name}: epsilon is {self.epsilon} and clip_obs {self.clip}; expected positive numbers"
            )

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the standardised states in float32."""
        if states.shape[-1] != len(self.mean):
            raise InputError(
                f"{self.name}: covers {len(self.mean)} state dimensions; states have {states.shape[-1]}"
            )
        scaled = (states - self.mean) / np.sqrt(self.var + self.epsilon)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)


def load_normalization(source: object) -> Normalization | None:
    """Return the statistics in `source`, or None where it says that states are not normalised.

    `source` is an `.npz`, `.json` or VecNormalize `.pkl` path (the last read as inert data, never unpickled),
    a mapping with `obs_mean`, `obs_var` and optionally `epsilon` and `clip_obs`, or a VecNormalize object.
    """
    if isinstance(source, Normalization):
        return source
    if isinstance(source, Mapping):
        return _from_mapping(source, "normalization")
    if hasattr(source, "obs_rms"):
        return _from_attributes(vars(source), "VecNormalize", vars)
    if not isinstance(source, str | Path):
        raise InputError(
            f"normalization is a {type(source).__name__}; expected an .npz, .json or VecNormalize .pkl file, "
            "a mapping with obs_mean and obs_var, or a VecNormalize object"
        )
    require_file(source, "normalisation statistics (.npz, .json or .pkl)")
    with temporary_folder(Path(tempfile.gettempdir(), "normalization")) as folder:
        name, written = os.fspath(source), folder / STATISTICS
        run_in_child("normalization", name, os.path.getsize(source), written=os.fspath(written), path=name)
        return _from_mapping(read_safetensors(written)[0], name) if written.exists() else None


def write_normalization(written: str, path: str) -> None:
    """Write the statistics in `path` to the file `written`, none where states are not normalised: in the child."""
    found = read_normalization(Path(path))
    if found is not None:
        arrays = {"obs_mean": found.mean, "obs_var": found.var}
        arrays |= {"epsilon": np.array(found.epsilon), "clip_obs": np.array(found.clip)}
        save_file({key: np.array(array, order="C") for key, array in arrays.items()}, written)


def read_normalization(path: Path) -> Normalization | None:
    """Return the statistics in the file `path`, read in this process."""
    if path.suffix == ".npz":
        return _from_mapping(read_npz(path), str(path))
    if path.suffix == ".json":
        return _from_mapping(_read_json(path), str(path))
    if path.suffix == ".pkl":
        return _read_vecnormalize(path)
    raise InputError(f"{path}: normalisation statistics come as .npz, .json or VecNormalize .pkl")


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        found = json.loads(read_file(path, STREAM_LIMIT))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not readable JSON ({shown(error)})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a JSON object with obs_mean and obs_var")
    return found


def _from_mapping(fields: Mapping[str, object], name: str) -> Normalization:
    for field in ("obs_mean", "obs_var"):
        if field not in fields:
            raise InputError(f"{name}: field {field} is missing; found {listed(fields)}")
    return Normalization(
        mean=_numbers(fields["obs_mean"], "obs_mean", name),
        var=_numbers(fields["obs_var"], "obs_var", name),
        epsilon=_number(fields.get("epsilon", fields.get("obs_eps", 1e-8)), "epsilon", name),
        clip=_number(fields.get("clip_obs", fields.get("obs_clip", 10.0)), "clip_obs", name),
        name=name,
    )


def _numbers(value: object, field: str, name: str) -> np.ndarray:
    try:
        return np.asarray(value, np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name}: {field} does not hold numbers ({shown(error)})") from error


def _number(value: object, field: str, name: str) -> float:
    array = _numbers(value, field, name)
    if array.ndim != 0:
        raise InputError(f"{name}: {field} has shape {array.shape}; expected one number")
    return float(array)


def _read_vecnormalize(path: Path) -> Normalization | None:
    found = read_inert(read_file(path, STREAM_LIMIT), _belongs_to_statistics, str(path))
    if not isinstance(found, Built) or not isinstance(found.state, dict) or "obs_rms" not in found.state:
        raise InputError(f"{path}: not the statistics that VecNormalize.save writes")

    def fields_of(rms: object) -> Mapping[str, object]:
        if not isinstance(rms, Built) or not isinstance(rms.state, dict):
            raise InputError(
                f"{path}: obs_rms holds no statistics of one vector of states; dictionaries are not read"
            )
        return {key: to_array(rms.state.get(key), f"{path}: obs_rms.{key}") for key in ("mean", "var")}

    state = dict(found.state)
    for field in ("epsilon", "clip_obs"):
        if field in state:
            state[field] = to_array(state[field], f"{path}: {field}")
    return _from_attributes(state, str(path), fields_of)


def _belongs_to_statistics(name: Name) -> bool:
    return name.module.partition(".")[0] in STATISTICS_PACKAGES


def _from_attributes(
    state: Mapping[str, object], name: str, fields_of: Callable[[object], Mapping[str, object]]
) -> Normalization | None:
    if state.get("norm_obs") is False:
        return None  # it scaled rewards only
    if isinstance(state["obs_rms"], dict):
        raise InputError(f"{name}: normalises dictionary observations; expected one vector of states")
    statistics = fields_of(state["obs_rms"])
    fields = {"obs_mean": statistics["mean"], "obs_var": statistics["var"]}
    return _from_mapping(fields | {key: state[key] for key in ("epsilon", "clip_obs") if key in state}, name)
