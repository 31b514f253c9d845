"""Arrays and JSON in one safetensors file with a checksum; finished estimates kept so."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate
from kmifqe.io.files import write_durably


class DamagedError(Exception):
    """A file is not what was written: cut off, changed, empty or unreadable. The message says which."""


def write_archive(path: Path, arrays: dict[str, np.ndarray], described: dict[str, Any]) -> None:
    """Write arrays and their description, whole or not at all."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(described, sort_keys=True)
    metadata = {"described": text, "checksum": _checksum(arrays, text)}
    write_durably(path, save(arrays, metadata=metadata))


def read_archive(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what `write_archive` wrote, or raise DamagedError."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, ValueError) as error:
        raise DamagedError(f"{path}: cannot be read ({error})") from error
    text = metadata.get("described", "")
    if metadata.get("checksum") != _checksum(arrays, text):
        raise DamagedError(f"{path}: its checksum does not match its content")
    return arrays, json.loads(text)


def plain_numbers(x: Any) -> Any:
    """Return x as it reads back from JSON: tuples as lists, infinity and NaN as words."""
    if isinstance(x, dict):
        return {str(key): plain_numbers(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain_numbers(value) for value in x]
    if isinstance(x, float) and not math.isfinite(x):
        return str(x)
    return x


def _checksum(arrays: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()


SCHEMA = "kmifqe.finished/1"
_ARRAYS = ("values", "recorded_steps", "trajectory")


def write_finished(path: Path, estimate: Estimate, of: dict[str, Any]) -> None:
    """Write everything but the final state, with the identity `of` the fit."""
    arrays = {name: getattr(estimate, name) for name in _ARRAYS}
    arrays |= {f"info.{name}": series for name, series in estimate.infos.items()}
    names = ("steps", "seconds", "device", "episodes", "measurements")
    described = {name: getattr(estimate, name) for name in names}
    write_archive(path, arrays, {"schema": SCHEMA, "identity": of, "estimate": described})


def read_finished(path: Path, config: dict[str, Any]) -> tuple[Estimate, dict[str, Any]]:
    """Return the estimate, its final state None, and the identity of its fit; DamagedError if changed."""
    arrays, described = read_archive(path)
    if described.get("schema") != SCHEMA:
        raise InputError(
            f"{path}: its schema is {described.get('schema')!r}, this version reads {SCHEMA!r}; go on with the "
            "version that wrote it, or --force to start again"
        )
    plan = described["identity"]["plan"]
    estimate = Estimate(
        estimator=plan["estimator"],
        config=config,
        gamma=plan["gamma"],
        seeds=tuple(plan["seeds"]),
        bootstrap=plan.get("bootstrap", False),  # a version without it wrote the file
        infos={name[5:]: array for name, array in arrays.items() if name.startswith("info.")},
        values=arrays["values"],
        recorded_steps=arrays["recorded_steps"],
        trajectory=arrays["trajectory"],
        **described["estimate"],
    )
    return estimate, described["identity"]
