"""What makes two runs the same run: the plan, the data, the versions and the machine; and how they differ."""

from __future__ import annotations

import hashlib
import math
import os
import platform
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kmifqe.errors import InputError
from kmifqe.estimators.fit import Plan
from kmifqe.io.serialize import plain
from kmifqe.mdp.problem import Problem

PACKAGES = ("kmifqe", "jax", "jaxlib", "optax", "numpy")
# Made by a policy or density, perhaps on a GPU, whose last bits may differ from one process to the next.
COMPUTED = {
    "target_actions": "another policy",
    "first_actions": "another policy",
    "log_mu": "another behaviour density",
    "log_mu_target": "another behaviour density",
}
ROUNDING = 1e-5  # of the root mean square: what float32 arithmetic in another order may change a mean by


def identity(plan: Plan, data: dict[str, Any]) -> dict[str, Any]:
    """Return what identifies a fit, as it reads back from JSON; `data` is `fingerprint(problem)`."""
    return plain(
        {
            "plan": plan._asdict(),
            "data": data,
            "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
            "machine": machine(),
        }
    )


def fingerprint(problem: Problem) -> dict[str, Any]:
    """Return a digest of each of the problem's arrays; of computed ones also mean and root mean square."""
    prints: dict[str, Any] = {}
    for field in fields(problem):
        if field.name in (
            "counts",
            "gamma",
            "episode_weights",
        ):  # follow from the arrays, or stand in the plan
            continue
        array = getattr(problem, field.name)
        prints[field.name] = None if array is None else array_print(np.asarray(array))
    return prints


def array_print(array: np.ndarray) -> dict[str, Any]:
    """Return digest, shape, mean and root mean square of an array."""
    array = np.asarray(array, order="C")
    digest = hashlib.blake2b(array.data if array.size else b"", digest_size=12)
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    mean = float(array.mean(dtype=np.float64)) if array.size else 0.0
    # einsum squares and adds without a float64 copy of the array
    square = float(np.einsum("i,i->", array.ravel(), array.ravel(), dtype=np.float64)) if array.size else 0.0
    return {
        "digest": digest.hexdigest(),
        "shape": list(array.shape),
        "mean": mean,
        "rms": math.sqrt(square / max(array.size, 1)),
    }


def machine() -> dict[str, Any]:
    """Return what the bits of a result depend on besides versions: device, processor, cores, XLA's flags."""
    device = jax.devices()[0]
    return {
        "device": str(device.device_kind),
        "platform": str(device.platform),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def differences(stored: dict[str, Any], present: dict[str, Any], path: Path) -> list[str]:
    """Refuse to go on with another plan or other data; return warnings where only the bits may differ.

    `stored` and `present` are identities of fits, `path` is the file that holds the stored one.
    """
    _refuse_other_plan(stored.get("plan", {}), present["plan"], path)
    warnings = _data_differences(stored.get("data", {}), present["data"], path)
    for part in ("versions", "machine"):
        then = stored.get(part, {})
        warnings += [
            f"{name} was {then.get(name)!r} when the run began and is {now!r} now: it goes on, but its last bits "
            "may differ from an uninterrupted run's"
            for name, now in present[part].items()
            if then.get(name) != now
        ]
    return warnings


def _refuse_other_plan(then: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    for name, value in now.items():
        before = then.get(name, Plan._field_defaults.get(name))  # a version without the field had the default
        if isinstance(value, dict) and isinstance(before, dict):
            for key in sorted(value.keys() | before.keys()):
                if value.get(key) != before.get(key):
                    _refuse(path, key, before.get(key), value.get(key))
        elif before != value:
            _refuse(path, name, before, value)


def _refuse(path: Path, name: str, then: Any, now: Any) -> None:
    raise InputError(
        f"{path}: was made with {name} = {then!r}, this command has {name} = {now!r}; "
        "give the same, choose another --out, or --force to start again"
    )


def _data_differences(then: dict[str, Any], now: dict[str, Any], path: Path) -> list[str]:
    warnings = []
    for name, present in now.items():
        stored = then.get(name)
        if stored == present:
            continue
        if name in COMPUTED and stored and present and _differ_by_rounding(stored, present):
            warnings.append(
                f"{name} differs from the run's by rounding: it goes on, but its last bits may differ"
            )
            continue
        reason = COMPUTED.get(name, "another policy" if name.startswith("action_") else "another log")
        raise InputError(
            f"{path}: was made with other data: {name} was {_described(stored)} and is {_described(present)} "
            f"({reason}?); give the same, choose another --out, or --force to start again"
        )
    return warnings


def _differ_by_rounding(a: dict[str, Any], b: dict[str, Any]) -> bool:
    allowed = ROUNDING * max(abs(b["rms"]), 1e-30)
    return a["shape"] == b["shape"] and all(abs(a[name] - b[name]) <= allowed for name in ("mean", "rms"))


def _described(array: dict[str, Any] | None) -> str:
    if not array:
        return "absent"
    return f"{tuple(array['shape'])} with mean {array['mean']:.6g} (digest {array['digest'][:8]})"


def _processor() -> str:
    """Return the processor's model: vector width decides the order of float32 sums."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
