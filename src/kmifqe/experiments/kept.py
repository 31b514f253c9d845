"""Work that is done once: a value kept as JSON in the work folder under the settings that made it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from kmifqe.data.atomic import whole_file
from kmifqe.errors import InputError


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return twelve letters that name the settings."""
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def kept_json(
    folder: Path, name: str, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return what `make` gave under these settings, now or in an earlier run; settings go into the file."""
    path = folder / f"{name}-{settings_hash(settings)}.json"
    if path.is_file():
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))["made"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it, and it is made again") from error
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_text(json.dumps({"settings": settings, "made": made}), encoding="utf-8")
    return made
