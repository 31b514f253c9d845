"""run.json: what a run directory is for, so that `kmifqe resume DIR` needs nothing else."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kmifqe.errors import InputError
from kmifqe.runs.durable import write_durably

NAME = "run.json"
SCHEMA = "kmifqe.run/1"


@dataclass(frozen=True)
class Manifest:
    """What was asked for, when and from where."""

    created: str
    directory: str  # relative paths in the options start here
    options: dict[str, Any]

    @classmethod
    def now(cls, options: dict[str, Any]) -> Manifest:
        """Return the manifest of a run that begins now, here."""
        return cls(datetime.now(UTC).isoformat(timespec="seconds"), os.getcwd(), options)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write run.json, whole or not at all."""
    record = {"schema": SCHEMA, "kmifqe": version("kmifqe"), **vars(manifest)}
    write_durably(folder / NAME, (json.dumps(record, indent=1) + "\n").encode())


def read_manifest(folder: Path) -> Manifest | None:
    """Return what run.json says, None if there is none; refuse one of another schema or no JSON."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}); --force to start again") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"{path}: its schema is {schema!r}, this version ({version('kmifqe')}) reads {SCHEMA!r}; go on with "
            "the version that wrote it, choose another --out, or --force to start again"
        )
    try:
        return Manifest(str(record["created"]), str(record["directory"]), dict(record["options"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: the field {error} is missing or wrong; --force to start again") from error
