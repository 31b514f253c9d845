"""A run as one JSON record: what was asked, of what, with which versions, and what came out."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from kmifqe.data.atomic import whole_file
from kmifqe.estimators.base import Estimate, plain
from kmifqe.problem import Problem
from kmifqe.report.notes import convergence_notes

SCHEMA = "kmifqe.result/1"


def result_record(
    estimates: list[Estimate],
    problem: Problem,
    *,
    data: str,
    policy: str,
    behavior: str,
    command: list[str],
    **more: Any,
) -> dict[str, Any]:
    """Return the record of one evaluation (docs/result.md has the schema); `more` adds fields of its own."""
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "versions": {name: version(name) for name in ("kmifqe", "jax", "jaxlib", "optax", "numpy")}
        | {"python": platform.python_version()},
        "device": str(jax.devices()[0].device_kind),
        "data": data,
        "policy": policy,
        "behavior": behavior,
        "gamma": round(float(problem.gamma), 7),
        "rows": asdict(problem.counts),
        "estimates": [e.to_dict() | {"notes": convergence_notes(e)} for e in estimates],
        **more,
    }


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write `record` as JSON, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps(_plain(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(value) for value in x]
    return plain(x)
