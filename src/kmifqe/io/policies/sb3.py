"""Stable-Baselines3 and sb3-contrib zips read through their JSON and their weights, without either library.

The zip's `data` member is JSON in which some values are pickles beside a readable copy of their attributes:
only the readable copies are used. `policy.pth` is a PyTorch state dict, read by `torch_weights`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError, listed, shown
from kmifqe.io.archives import Archive
from kmifqe.io.policies.actor import Actor
from kmifqe.io.policies.torch_weights import StateDict, read_state_dict
from kmifqe.mdp.ask import Bounds

# torch.nn class name -> the name of the same function in Actor
ACTIVATIONS = {name: name.lower() for name in ("Tanh", "ReLU", "ELU", "SiLU", "Sigmoid")}
ACTIVATIONS["LeakyReLU"] = "leaky_relu"
NEVER_ON_THE_PATH = re.compile(
    r"(critic|critic_target|actor_target|value_net|vf_features_extractor|log_std"
    r"|mlp_extractor\.value_net|actor\.log_std|(actor\.)?sde_features_extractor)(\.|$)"
)
SETTINGS_LIMIT = (
    8 * 2**20
)  # bytes of JSON, which take up to twenty times as much in memory; a few KiB are usual
GSDE_MEAN_CLIP = 2.0  # Stable-Baselines3's default for clip_mean


@dataclass(frozen=True)
class _Network:
    """Which parameters make the deterministic action, first layer first, and what surrounds them."""

    layers: tuple[str, ...]  # parameter prefixes: NAME.weight and NAME.bias
    hidden: str  # the family's default activation
    squashed: bool | None  # None: the settings say
    mean_is_clipped: bool = False


def load_sb3_actor(
    path: str | Path,
    *,
    bounds: Bounds | None = None,
    hidden: str | None = None,
    normalization_is_given: bool = False,
) -> Actor:
    """Return the deterministic actor of a saved SAC, TQC, TD3, DDPG, PPO, A2C or TRPO model.

    path: the zip.
    bounds: (low, high) of the action box; None by default: as the zip says.
    hidden: the activation; None by default: as the zip says.
    normalization_is_given: the caller knows how inputs were normalised, which is no part of the zip. False by
        default: an agent that shows it was trained behind VecNormalize is refused.
    """
    archive = Archive(path, str(path))
    settings = _read_settings(archive)
    _check_spaces(settings, str(path))
    weights = read_state_dict(archive.read("policy.pth"), f"{path}: policy.pth")
    network = _find_network(weights)
    kwargs = _attributes(settings, "policy_kwargs")
    squashed = _is_true(kwargs.get("squash_output")) if network.squashed is None else network.squashed
    if not normalization_is_given and _trained_normalized(settings, on_policy=network.squashed is None):
        raise InputError(
            f"{path}: the agent was trained behind VecNormalize, whose statistics are not in the zip; give them, a "
            "vecnormalize.pkl, .npz or .json, with --policy-normalization (policy_normalization=, of load_policy "
            'normalization=), or "none" there if it scaled rewards only'
        )
    matrices = tuple(_parameter(weights, f"{layer}.weight", 2).T for layer in network.layers)
    low, high = bounds if bounds is not None else _read_bounds(settings, matrices[-1].shape[1], str(path))
    return Actor(
        weights=matrices,
        biases=tuple(_parameter(weights, f"{layer}.bias", 1) for layer in network.layers),
        hidden=hidden or _read_activation(settings, kwargs, network.hidden, str(path)),
        output="tanh" if squashed else "clip",
        low=low,
        high=high,
        mean_clip=_read_mean_clip(kwargs, str(path)) if network.mean_is_clipped else None,
        name=str(path),
    )


def sb3_log_std(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (inputs, outputs) and bias of what gives log σ of a saved SAC, TQC, PPO, A2C or TRPO model.

    On-policy algorithms have one σ for all states, so the weight is 0. TD3 and DDPG have none, and generalised
    state-dependent exploration draws a new noise matrix at times, which is no distribution of single actions.
    """
    archive = Archive(path, str(path))
    weights = read_state_dict(archive.read("policy.pth"), f"{path}: policy.pth")
    network = _find_network(weights)
    width = _parameter(weights, f"{network.layers[-1]}.weight", 2).shape[1]
    if "actor.log_std.weight" in weights:
        return _parameter(weights, "actor.log_std.weight", 2).T, _parameter(weights, "actor.log_std.bias", 1)
    name = next((name for name in ("log_std", "actor.log_std") if name in weights), None)
    if name is None or weights[name].ndim != 1:
        why = (
            "is deterministic (TD3, DDPG)"
            if name is None
            else "explores by gSDE, whose noise is kept over steps"
        )
        raise InputError(
            f"{path}: the agent {why}; expected one with a normal distribution, or judge it without --stochastic"
        )
    log_std = _parameter(weights, name, 1)
    return np.zeros((width, len(log_std)), np.float32), log_std


def _trained_normalized(settings: dict[str, object], *, on_policy: bool) -> bool:
    """Return whether the zip shows that the agent learned behind a VecNormalize wrapper.

    On-policy algorithms keep the unnormalised observation only where there is such a wrapper. Off-policy ones
    always keep it; there the wrapper shows where it turned float64 into float32: the two sizes differ.
    """
    raw, seen = settings.get("_last_original_obs"), settings.get("_last_obs")
    if on_policy or not isinstance(raw, dict) or not isinstance(seen, dict):
        return on_policy and raw is not None
    return len(str(raw.get(":serialized:"))) != len(str(seen.get(":serialized:")))


def _read_settings(archive: Archive) -> dict[str, object]:
    if not {"data", "policy.pth"} <= set(archive.sizes):
        raise InputError(
            f"{archive.where}: not a Stable-Baselines3 zip; it has no data and policy.pth, only "
            f"{listed(archive.sizes)}"
        )
    if archive.sizes["data"] > SETTINGS_LIMIT:
        raise InputError(
            f"{archive.where}: member data unpacks to {archive.sizes['data']:,} bytes; "
            f"expected at most {SETTINGS_LIMIT:,}"
        )
    try:
        settings = json.loads(archive.read("data"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{archive.where}: member data is not readable JSON ({shown(error)})") from error
    if not isinstance(settings, dict):
        raise InputError(f"{archive.where}: member data is not a JSON object")
    return settings


def _attributes(settings: dict[str, object], field: str) -> dict[str, object]:
    value = settings.get(field)
    return value if isinstance(value, dict) else {}


def _is_true(value: object) -> bool:
    return value is True or value == "True"


def _check_spaces(settings: dict[str, object], where: str) -> None:
    for field, need in (("action_space", "continuous actions"), ("observation_space", "a vector of numbers")):
        kind = str(_attributes(settings, field).get(":type:", ""))
        if kind and not kind.endswith(".Box'>"):
            raise InputError(f"{where}: {field} is {shown(kind)}; expected a Box ({need})")


def _find_network(weights: StateDict) -> _Network:
    names = set(weights)
    if "action_net.weight" in names:  # PPO, A2C, TRPO
        body = (*_numbered(names, "mlp_extractor.shared_net"), *_numbered(names, "mlp_extractor.policy_net"))
        network = _Network((*body, "action_net"), hidden="tanh", squashed=None)
    elif any(name.startswith("actor.log_std") for name in names):  # SAC, TQC
        body = _numbered(names, "actor.latent_pi")
        clipped = "actor.mu.0.weight" in names  # with gSDE a clip comes after the mean layer
        head = "actor.mu.0" if clipped else "actor.mu"
        network = _Network((*body, head), hidden="relu", squashed=True, mean_is_clipped=clipped)
    elif "actor.mu.0.weight" in names:  # TD3, DDPG
        network = _Network(_numbered(names, "actor.mu"), hidden="relu", squashed=True)
    else:
        raise InputError(
            f"{weights.where}: holds none of the networks of SAC, TQC, TD3, DDPG, PPO, A2C and TRPO; "
            f"found {listed(names, 6)}"
        )
    used = {f"{layer}.{part}" for layer in network.layers for part in ("weight", "bias")}
    strange = sorted(name for name in names - used if not NEVER_ON_THE_PATH.match(name))
    if strange:
        is_recurrent = any("lstm" in name for name in strange)
        why = "a recurrent policy" if is_recurrent else "more than a multilayer perceptron"
        raise InputError(
            f"{weights.where}: {why} (parameter {shown(strange[0])}); only plain layers are read. "
            "Export the policy to TorchScript or ONNX, or pass the loaded model itself from Python"
        )
    return network


def _numbered(names: set[str], prefix: str) -> tuple[str, ...]:
    pattern = re.compile(re.escape(prefix) + r"\.(\d{1,4})\.weight")
    numbers = sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))
    return tuple(f"{prefix}.{number}" for number in numbers)


def _parameter(weights: StateDict, name: str, ndim: int) -> np.ndarray:
    if name not in weights:
        raise InputError(f"{weights.where}: parameter {name} is missing")
    array = weights[name]
    if array.ndim != ndim:
        raise InputError(
            f"{weights.where}: {name} has shape {array.shape}; a plain layer's has {ndim} dimensions. "
            "Normalisation layers and activations with parameters of their own are not read: "
            "export the policy to TorchScript or ONNX"
        )
    return array.astype(np.float32)


def _read_bounds(settings: dict[str, object], action_dim: int, where: str) -> Bounds:
    space = _attributes(settings, "action_space")
    low, high = (_parse_array(space.get(field)) for field in ("low", "high"))
    if low is None or high is None or low.shape != (action_dim,) or high.shape != (action_dim,):
        raise InputError(
            f"{where}: action_space does not show low and high for {action_dim} action dimensions; "
            "export the policy to TorchScript or ONNX, or in Python give load_policy(..., bounds=(low, high))"
        )
    return low, high


def _parse_array(text: object) -> np.ndarray | None:
    """Return the numbers of an array as NumPy prints it, or None; long arrays are printed with gaps."""
    if not isinstance(text, str) or text.count("[") != 1:
        return None
    try:
        return np.array([float(word) for word in text.strip("[] \n").split()], np.float32)
    except ValueError:
        return None


def _read_activation(settings: dict[str, object], kwargs: dict[str, object], default: str, where: str) -> str:
    names = ", ".join(ACTIVATIONS.values())
    known = f"export the policy to TorchScript or ONNX, or in Python give load_policy(..., hidden=), one of {names}"
    if "activation_fn" in kwargs:
        written = str(kwargs["activation_fn"])
        found = re.fullmatch(r"<class 'torch\.nn\.modules\.activation\.(\w+)'>", written)
        if found and found[1] in ACTIVATIONS:
            return ACTIVATIONS[found[1]]
        raise InputError(
            f"{where}: activation_fn is {shown(written)}, not one that is read here; "
            f"{known}, if it equals one"
        )
    module = str(_attributes(settings, "policy_class").get("__module__", ""))
    if module.partition(".")[0] in ("stable_baselines3", "sb3_contrib"):
        return default
    raise InputError(
        f"{where}: the policy class comes from {shown(module) or 'an unnamed module'}, so its activation is "
        f"not known; {known}"
    )


def _read_mean_clip(kwargs: dict[str, object], where: str) -> float:
    written = kwargs.get("clip_mean", GSDE_MEAN_CLIP)
    try:
        return float(str(written))
    except ValueError as error:
        raise InputError(f"{where}: clip_mean is {shown(written)}; expected a number") from error
