"""What makes two runs the same run: the plan, the data, the versions and the machine; and how they differ."""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kmifqe.errors import InputError
from kmifqe.estimators.fit import Plan
from kmifqe.io.serialize import plain
from kmifqe.mdp.problem import OF_POLICY, Problem

PACKAGES = ("kmifqe", "jax", "jaxlib", "optax", "numpy")
# Made by a policy or density, perhaps on a GPU, whose last bits may differ from one process to the next.
COMPUTED = {
    "target_actions": "policy",
    "first_actions": "policy",
    "log_mu": "density",
    "log_mu_target": "density",
    "first_log_mu": "density",
    "target_samples": "policy",
    "first_samples": "policy",
    "log_pi": "policy",
    "first_log_pi": "policy",
}
ROUNDING = (
    1e-5  # of a column's root mean square: what float32 arithmetic in another order may change a mean by
)
# Of the same: a projection is a normal number with the standard deviation of one entry's error, and the largest of
# many is several times that.
PROJECTED_ROUNDING = 1e-4
PROJECTIONS = 4  # of each column, with weights that follow from the row's number alone
DESCRIBED_COLUMNS = 4  # of an array, in a message
CHUNK = 65_536  # rows that are projected at a time: bounds the memory of the weights


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


def fingerprint(problem: Problem, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a digest of each of the problem's arrays, and column statistics of those in `COMPUTED`.

    `known` is the fingerprint of a problem with the same log and density, of which what no policy changes is taken;
    by default everything is computed.
    """
    shared = {} if known is None else {name: each for name, each in known.items() if name not in OF_POLICY}
    prints: dict[str, Any] = {}
    for field in fields(problem):
        if field.name in (
            "counts",
            "is_mapped",
            "gamma",
            "episode_weights",
        ):  # follow from the arrays, or stand in the plan
            continue
        if field.name in shared:
            prints[field.name] = shared[field.name]
            continue
        array = getattr(problem, field.name)
        if array is not None:
            held = np.asarray(array, order="C")
            prints[field.name] = exact_print(held)
            if field.name in COMPUTED:
                prints[field.name] |= column_print(held)
        else:
            prints[field.name] = None
    return prints


def joint_fingerprint(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fingerprint of a problem of several policies from those of `each` policy's own."""
    joint = {name: found for name, found in each[0].items() if name not in OF_POLICY}
    numbered = {f"{name}[{i}]": one[name] for i, one in enumerate(each) for name in OF_POLICY}
    return joint | numbered


def exact_print(array: np.ndarray) -> dict[str, Any]:
    """Return the shape of an array and the SHA-256 digest of its bytes, type and shape."""
    array = np.asarray(array, order="C")
    found = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    found.update(array.data if array.size else b"")
    return {"digest": found.hexdigest(), "shape": list(array.shape)}


def column_print(array: np.ndarray) -> dict[str, Any]:
    """Return what arrays that differ by rounding have nearly in common, and other arrays have not.

    For each column these are its mean, its root mean square and its projections Σᵢ rᵢ xᵢ / √n, where the weights r
    are normal numbers from a fixed seed. Rows in another order change the projections, and columns in another
    order change them all. Entries that are not finite, such as the logarithm of a density of 0, count as 0 there;
    where they stand is told by a digest of its own.
    """
    columns = array.reshape(len(array), math.prod(array.shape[1:]))
    rows, width = columns.shape
    total, square = np.zeros(width), np.zeros(width)
    projected = np.zeros((PROJECTIONS, width))
    infinite = hashlib.sha256()
    rng = np.random.default_rng(0)
    for start in range(0, rows, CHUNK):
        chunk = columns[start : start + CHUNK].astype(np.float64)
        finite = np.isfinite(chunk)
        infinite.update(np.packbits(finite).tobytes())
        chunk = np.where(finite, chunk, 0.0)
        total += chunk.sum(axis=0)
        square += np.einsum("ij,ij->j", chunk, chunk)
        # A row's weights stand together, so that they do not depend on how many rows follow.
        projected += rng.standard_normal((len(chunk), PROJECTIONS)).T @ chunk
    return {
        "mean": (total / max(rows, 1)).tolist(),
        "rms": np.sqrt(square / max(rows, 1)).tolist(),
        "projections": (projected / math.sqrt(max(rows, 1))).T.tolist(),
        "infinite": infinite.hexdigest(),
    }


def digests(data: dict[str, Any]) -> dict[str, str]:
    """Return one digest each of the log, the policy's answers and the density's; `data` is `fingerprint(problem)`.

    Where no density was asked for, none is named.
    """
    parts: dict[str, list[str]] = {"log": [], "policy": [], "density": []}
    for name, found in sorted(data.items()):
        if found is not None:
            parts[_source(name)].append(f"{name}:{found['digest']}")
    return {
        part: hashlib.sha256("\n".join(lines).encode()).hexdigest() for part, lines in parts.items() if lines
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
            for key in sorted(value.keys() ^ before.keys()):
                raise InputError(
                    f"{path}: was made by a version {'with' if key in before else 'without'} the setting {key}; go "
                    "on with that version, choose another --out, or --force to start again"
                )
            for key in sorted(value):
                if value[key] != before[key]:
                    _refuse(path, key, before[key], value[key])
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
        if _base(name) in COMPUTED and stored and present and _differ_by_rounding(stored, present):
            warnings.append(
                f"{name} differs from the run's by rounding: it goes on, but its last bits may differ"
            )
            continue
        raise InputError(
            f"{path}: was made with other data: {name} was {_described(stored)} and is {_described(present)} "
            f"(another {_source(name)}?); give the same, choose another --out, or --force to start again"
        )
    return warnings


def _source(name: str) -> str:
    """Return what an array of the problem comes from: the log, the policy or the density."""
    return COMPUTED.get(_base(name), "policy" if name.startswith("action_") else "log")


def _base(name: str) -> str:
    """Return the field behind a name such as target_actions[3]."""
    return name.partition("[")[0]


def _differ_by_rounding(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Return whether two arrays, known by their `column_print`, can be the same but for rounding."""
    if a["shape"] != b["shape"] or a["infinite"] != b["infinite"]:
        return False
    scale = np.asarray(b["rms"])

    def near(name: str, share: float) -> bool:
        moved = np.abs(np.asarray(a[name]) - np.asarray(b[name])).T
        return bool((moved <= share * scale).all())

    return near("mean", ROUNDING) and near("rms", ROUNDING) and near("projections", PROJECTED_ROUNDING)


def _described(array: dict[str, Any] | None) -> str:
    if not array:
        return "absent"
    means = ", ".join(f"{mean:.6g}" for mean in array.get("mean", [])[:DESCRIBED_COLUMNS])
    said = f" with column means {means}" if means else ""
    return f"{tuple(array['shape'])}{said} (digest {array['digest'][:8]})"


def _processor() -> str:
    """Return the processor's model: vector width decides the order of float32 sums."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
