"""A run as one JSON record: what was asked, of what, with which versions, and what came out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kmifqe.data.atomic import whole_file
from kmifqe.estimators.base import Estimate, plain
from kmifqe.problem import Problem
from kmifqe.report.provenance import provenance
from kmifqe.report.result import Result
from kmifqe.trust.interval import ConfidenceInterval

SCHEMA = "kmifqe.result/2"


def result_record(
    result: Result,
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
        **provenance(),
        "command": command,
        "data": data,
        "policy": policy,
        "behavior": behavior,
        "gamma": round(float(problem.gamma), 7),
        "rows": asdict(problem.counts),
        "estimates": [_estimate_record(*each) for each in zip(result.estimates, result.intervals)],
        "verdict": result.verdict.to_dict(),
        "verdicts": {name: verdict.to_dict() for name, verdict in result.diagnosis.verdicts.items()},
        "diagnostics": [diagnostic.to_dict() for diagnostic in result.diagnostics],
        **more,
    }


def _estimate_record(estimate: Estimate, interval: ConfidenceInterval | None) -> dict[str, Any]:
    return estimate.to_dict() | {"interval": None if interval is None else interval.to_dict()}


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
