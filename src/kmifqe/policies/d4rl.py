"""The policy that a D4RL dataset file carries about its own behaviour (expert and medium files do)."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from kmifqe.errors import InputError
from kmifqe.policies.actor import Actor
from kmifqe.policies.archives import MEMBER_LIMIT
from kmifqe.policies.base import Bounds

GROUP = "metadata/policy"
OUTPUTS = {"tanh_gaussian": "tanh", "gaussian": "clip"}


def load_d4rl_actor(path: str | Path, *, bounds: Bounds | None = None) -> Actor:
    """Return the mean action of the policy under `metadata/policy`; its box is [-1, 1] unless given."""
    try:
        with h5py.File(path, "r") as file:
            if not isinstance(file.get(GROUP), h5py.Group):
                raise InputError(
                    f"{path}: has no {GROUP}; expert and medium files have, mixed and replay files do not"
                )
            return _read_group(file[GROUP], bounds, str(path))
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path}: not a readable HDF5 file ({error})") from error


def _read_group(group: h5py.Group, bounds: Bounds | None, where: str) -> Actor:
    names: list[str] = []
    while f"fc{len(names)}" in group:
        names.append(f"fc{len(names)}")
    names.append("last_fc")
    weights = tuple(
        _read_array(group, f"{name}/weight", where).T for name in names
    )  # stored (outputs, inputs)
    biases = tuple(_read_array(group, f"{name}/bias", where) for name in names)
    distribution = _read_text(group, "output_distribution", where)
    if distribution not in OUTPUTS:
        raise InputError(
            f"{where}: output_distribution is {distribution!r}; expected one of {', '.join(OUTPUTS)}"
        )
    one = np.ones(biases[-1].shape, np.float32)
    low, high = bounds if bounds is not None else (-one, one)
    return Actor(
        weights=weights,
        biases=biases,
        hidden=_read_text(group, "nonlinearity", where),
        output=OUTPUTS[distribution],
        low=low,
        high=high,
        name=where,
    )


def _read_array(group: h5py.Group, field: str, where: str) -> np.ndarray:
    data = group.get(field)
    if not isinstance(data, h5py.Dataset):
        raise InputError(f"{where}: {GROUP}/{field} is missing")
    if data.dtype.kind not in "iuf":
        raise InputError(f"{where}: {GROUP}/{field} has type {data.dtype}; expected numbers")
    if data.nbytes > MEMBER_LIMIT:
        raise InputError(
            f"{where}: {GROUP}/{field} claims {data.nbytes:,} bytes; expected at most {MEMBER_LIMIT:,}"
        )
    return np.asarray(data[()], np.float32)


def _read_text(group: h5py.Group, field: str, where: str) -> str:
    data = group.get(field)
    if not isinstance(data, h5py.Dataset) or data.size != 1:
        raise InputError(f"{where}: {GROUP}/{field} is missing")
    value = np.asarray(data[()]).reshape(-1)[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
