"""Arrays and JSON in one safetensors file with a checksum over both; finished estimates are kept so.

Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate
from kmifqe.io.archives import read_safetensors
from kmifqe.io.files import write_file
from kmifqe.io.serialize import to_json
from kmifqe.trust.checks import Measurements

SCHEMA = "kmifqe.finished/3"
_ARRAYS = ("values", "recorded_steps", "trajectory")
_DESCRIBED = ("steps", "seconds", "device", "episodes", "measurements")


class DamagedError(Exception):
    """A file is not what was written: cut off, changed, empty or unreadable. The message says which."""


def write_archive(path: Path, arrays: dict[str, np.ndarray], described: dict[str, Any]) -> None:
    """Write `arrays` and their description `described` to `path`, whole or not at all."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = to_json(described, sort_keys=True).decode()
    metadata = {"described": text, "checksum": _checksum(arrays, text)}
    write_file(path, save(arrays, metadata=metadata))


def read_archive(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what `write_archive` wrote, or raise DamagedError."""
    try:
        arrays, metadata = read_safetensors(path)
    except InputError as error:
        raise DamagedError(str(error)) from error
    text = metadata.get("described", "")
    if metadata.get("checksum") != _checksum(arrays, text):
        raise DamagedError(f"{path}: its checksum does not match its content")
    return arrays, json.loads(text)


def write_finished(path: Path, estimate: Estimate, identity: dict[str, Any]) -> None:
    """Write everything of `estimate` but its final state to `path`, with the `identity` of its fit."""
    arrays = {name: getattr(estimate, name) for name in _ARRAYS}
    arrays |= {f"info.{name}": series for name, series in estimate.infos.items()}
    described = {name: getattr(estimate, name) for name in _DESCRIBED}
    write_archive(path, arrays, {"schema": SCHEMA, "identity": identity, "estimate": described})


def read_finished(path: Path, config: dict[str, Any]) -> tuple[Estimate, dict[str, Any]]:
    """Return the estimate, its final state None, and the identity of its fit; DamagedError if changed.

    `config` is that of the fit that asks; whether the stored one is the same, its identity tells.
    """
    arrays, described = read_archive(path)
    check_schema(path, described, SCHEMA)
    plan, rest = described["identity"]["plan"], described["estimate"]
    rest["measurements"] = msgspec.convert(rest["measurements"], Measurements | None)
    estimate = Estimate(
        estimator=plan["estimator"],
        config=config,
        gamma=plan["gamma"],
        seeds=tuple(plan["seeds"]),
        bootstrap=plan["bootstrap"],
        infos={name[5:]: array for name, array in arrays.items() if name.startswith("info.")},
        values=arrays["values"],
        recorded_steps=arrays["recorded_steps"],
        trajectory=arrays["trajectory"],
        **rest,
    )
    return estimate, described["identity"]


def check_schema(path: Path, described: dict[str, Any], schema: str) -> None:
    """Refuse the archive `path`, of the description `described`, unless it was written with `schema`."""
    found = described.get("schema")
    if found != schema:
        raise InputError(
            f"{path}: its schema is {found!r}, this version reads {schema!r}; go on with the version that wrote it, "
            "or --force to start again"
        )


def _checksum(arrays: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()
