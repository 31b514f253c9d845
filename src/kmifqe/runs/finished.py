"""A finished estimate as one file, so that a resumed run does not compute it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate
from kmifqe.runs.archive import read_archive, write_archive

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
