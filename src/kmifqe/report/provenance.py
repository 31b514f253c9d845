"""Where and with what a number was made: the fields that every record shares."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

PACKAGES = ("kmifqe", "jax", "jaxlib", "optax", "numpy")


def provenance(*more_packages: str) -> dict[str, Any]:
    """Return when, with which versions (of PACKAGES and `more_packages`) and on which device this runs."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name: _version(name) for name in (*PACKAGES, *more_packages)}
        | {"python": platform.python_version()},
        "device": str(jax.devices()[0].device_kind),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a source tree, or a package that this record can do without
        return "not installed"
