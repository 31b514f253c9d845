"""The fitted behaviour density beside the run that uses it: fitted once, whatever happens after."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.errors import InputError
from kmifqe.runs.durable import write_durably
from kmifqe.runs.identity import array_print

DENSITY = "behavior.safetensors"
REPORT = "behavior_fit.json"
SCHEMA = "kmifqe.behavior_fit/1"


def fitted_on(**arrays: np.ndarray | None) -> dict[str, str]:
    """Return a digest of every array a density is fitted to."""
    return {
        name: "absent" if array is None else array_print(np.asarray(array))["digest"]
        for name, array in arrays.items()
    }


def write_report(folder: Path, on: dict[str, str], report: dict[str, Any]) -> None:
    """Write the fit's report; it vouches for the density file, which must be there already."""
    record = {"schema": SCHEMA, "fitted_on": on, "digest": _digest(folder / DENSITY), "report": report}
    write_durably(folder / REPORT, (json.dumps(record, indent=1) + "\n").encode())


def read_report(folder: Path, on: dict[str, str]) -> dict[str, Any] | None:
    """Return the report of the stored density; None if there is none, or its file is not what was written.

    Raises InputError where the density was fitted to something else than `on`.
    """
    path = folder / REPORT
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # as good as lost: it is fitted again
    if record.get("schema") != SCHEMA:
        raise InputError(
            f"{path}: its schema is {record.get('schema')!r}, this version reads {SCHEMA!r}; "
            "--force to start again"
        )
    changed = [name for name, digest in on.items() if record["fitted_on"].get(name) != digest]
    if changed:
        raise InputError(
            f"{folder / DENSITY}: was fitted to other data: {', '.join(changed)} differ; "
            "give the same, choose another --out, or --force to fit again"
        )
    return record["report"] if record["digest"] == _digest(folder / DENSITY) else None


def _digest(path: Path) -> str:
    if not path.is_file():
        return "absent"
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
