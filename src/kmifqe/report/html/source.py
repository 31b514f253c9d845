"""A run directory's result.json and landscape.npz, checked once, as a page needs them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmifqe.errors import InputError, shown
from kmifqe.trust.landscape import LANDSCAPE, Landscape, read_landscape

RESULT = "result.json"
SCHEMAS = ("kmifqe.result/1", "kmifqe.result/2")
LEVELS = ("bad", "care", "ok")
Number = float | None
_KINDS = {dict: "an object", list: "a list", str: "text", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Interval:
    """An interval for V, in its normalised scale."""

    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Told:
    """One estimate, as its record tells it. A number that does not exist is None."""

    estimator: str
    gamma: float
    seeds: tuple[int, ...]
    steps: int
    value: Number
    spread: Number
    values: tuple[Number, ...]  # by seed
    recorded: tuple[int, ...]  # steps
    series: Mapping[str, list[list[Number]]]  # name -> records × seeds; "value" is V̂
    interval: Interval | None
    config: Mapping[str, Any]
    measurements: Mapping[str, Any]
    notes: tuple[str, ...]
    seconds: Number
    device: str


@dataclass(frozen=True)
class Check:
    """One diagnostic."""

    name: str
    value: str
    level: str  # one of LEVELS
    line: str
    threshold: str
    reason: str
    about: str  # the estimator, or "" for the log itself


@dataclass(frozen=True)
class Run:
    """One run directory: what was asked, what came out, how far to believe it."""

    path: Path
    record: Mapping[str, Any]
    estimates: tuple[Told, ...]
    checks: tuple[Check, ...]
    verdict: str | None
    reasons: tuple[str, ...]
    landscape: Landscape | None
    landscape_note: str | None  # why there is none, if a file was there

    @property
    def main(self) -> Told:
        """The estimate the page is about, and the verdict too: that of the estimator asked for first."""
        return self.estimates[0]

    @property
    def policy(self) -> str:
        """What the policy was called on the command line."""
        return self.text("policy", "the policy")

    def text(self, name: str, otherwise: str = "not recorded") -> str:
        """Return a field of the record as text."""
        found = self.record.get(name)
        return otherwise if found in (None, "", [], {}) else str(found)


def read_run(path: Path) -> Run:
    """Return the run in a directory (or of a result.json), or raise InputError naming what is wrong with it."""
    file = path / RESULT if path.is_dir() else path
    record = _read_json(file)
    schema = record.get("schema")
    if schema not in SCHEMAS:
        raise InputError(
            f"{file}: field schema is {shown(repr(schema))}; this version reads {' and '.join(SCHEMAS)}"
        )
    estimates = tuple(
        _told(file, i, found) for i, found in enumerate(_field(file, record, "estimates", list))
    )
    if not estimates:
        raise InputError(f"{file}: field estimates is empty; expected at least one estimate")
    verdict = _optional(file, record, "verdict", dict)
    landscape, note = _landscape(file.parent / LANDSCAPE, estimates)
    return Run(
        path=file.parent,
        record=record,
        estimates=estimates,
        checks=tuple(
            _check(file, i, found) for i, found in enumerate(_optional(file, record, "diagnostics", list))
        ),
        verdict=_field(file, verdict, "word", str, "verdict.") if verdict else None,
        reasons=tuple(str(reason) for reason in _optional(file, verdict, "reasons", list, "verdict.")),
        landscape=landscape,
        landscape_note=note,
    )


def finite(x: object) -> Number:
    """Return x as a float, or None where it is not a finite number."""
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        return None
    try:
        number = float(x)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{file}: not found; expected a directory that `kmifqe evaluate` or `kmifqe demo` wrote {RESULT} into"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read as a JSON record ({shown(error)})") from error
    if not isinstance(record, dict):
        raise InputError(f"{file}: expected an object with a field schema, found {type(record).__name__}")
    return record


def _field(file: Path, record: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    found = record.get(name)
    right = isinstance(found, (int, float) if kind is float else kind) and not isinstance(found, bool)
    if not right:
        what = "nothing" if found is None else shown(repr(found), 60)
        raise InputError(f"{file}: field {where}{name} should be {_KINDS[kind]}, found {what}")
    return found


def _optional(file: Path, record: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    """Return a field that older records, and records of runs without it, leave out or null."""
    return kind() if record.get(name) is None else _field(file, record, name, kind, where)


def _told(file: Path, i: int, found: object) -> Told:
    where = f"estimates[{i}]."
    if not isinstance(found, dict):
        raise InputError(f"{file}: field estimates[{i}] should be an object, found {shown(repr(found), 60)}")
    trajectory = _field(file, found, "trajectory", dict, where)
    recorded = [finite(step) for step in _field(file, trajectory, "step", list, f"{where}trajectory.")]
    values = [finite(value) for value in _field(file, found, "values", list, where)]
    _field(file, trajectory, "value", list, f"{where}trajectory.")
    gamma = float(_field(file, found, "gamma", float, where))
    if not 0.0 <= gamma < 1.0:
        raise InputError(f"{file}: field {where}gamma is {gamma}; expected 0 <= gamma < 1")
    series = {}
    for name, rows in trajectory.items():
        if name != "step":
            series[str(name)] = _series(file, f"{where}trajectory.{name}", rows, len(recorded), len(values))
    seeds = tuple(int(finite(seed) or 0) for seed in _field(file, found, "seeds", list, where))
    if len(seeds) != len(values):
        raise InputError(f"{file}: {where}values has {len(values)} entries for {len(seeds)} seeds")
    interval = _optional(file, found, "interval", dict, where)
    return Told(
        estimator=_field(file, found, "estimator", str, where),
        gamma=gamma,
        seeds=seeds,
        steps=int(_field(file, found, "steps", int, where)),
        value=finite(found.get("value")),
        spread=finite(found.get("spread")),
        values=tuple(values),
        recorded=tuple(int(step or 0) for step in recorded),
        series=series,
        interval=_interval(interval),
        config=_optional(file, found, "config", dict, where),
        measurements=_optional(file, found, "measurements", dict, where),
        notes=tuple(str(note) for note in _optional(file, found, "notes", list, where)),
        seconds=finite(found.get("seconds")),
        device=str(found.get("device", "")),
    )


def _interval(found: Mapping[str, Any]) -> Interval | None:
    low, high, level = (finite(found.get(name)) for name in ("low", "high", "level"))
    return None if low is None or high is None or level is None else Interval(low, high, level)


def _series(file: Path, where: str, rows: object, records: int, seeds: int) -> list[list[Number]]:
    if (
        not isinstance(rows, list)
        or len(rows) != records
        or not all(isinstance(row, list) and len(row) == seeds for row in rows)
    ):
        raise InputError(f"{file}: field {where} should hold {records} records of {seeds} seeds each")
    return [[finite(x) for x in row] for row in rows]


def _check(file: Path, i: int, found: object) -> Check:
    where = f"diagnostics[{i}]."
    if not isinstance(found, dict):
        raise InputError(
            f"{file}: field diagnostics[{i}] should be an object, found {shown(repr(found), 60)}"
        )
    level = _field(file, found, "level", str, where)
    if level not in LEVELS:
        raise InputError(f"{file}: field {where}level is {shown(repr(level), 60)}; expected ok, care or bad")
    value, threshold = (_short(found.get(name)) for name in ("value", "threshold"))
    name, line, reason, about = (str(found.get(name) or "") for name in ("name", "line", "reason", "about"))
    return Check(name, value, level, line, threshold, reason, about)


def _short(x: object) -> str:
    if x is None:
        return "–"
    if isinstance(x, list):
        return ", ".join(_short(each) for each in x)
    number = finite(x)
    return str(x) if number is None else f"{number:.4g}".replace("-", "−")


def _landscape(path: Path, estimates: tuple[Told, ...]) -> tuple[Landscape | None, str | None]:
    """Return the landscape if it belongs to these estimates; a missing, broken or foreign one costs only itself."""
    if not path.exists():
        return None, None
    try:
        landscape = read_landscape(path)
    except InputError as error:
        return None, str(error)
    ended = {(told.estimator, seed): v for told in estimates for seed, v in zip(told.seeds, told.values)}
    for surface in landscape.surfaces:
        for seed, value in zip(surface.seeds, surface.values):
            known = ended.get((surface.estimator, int(seed)))
            if known is None or abs(known - float(value)) > 1e-6 * max(1.0, abs(known)):
                return None, f"{path}: it is of another run ({shown(surface.estimator)} ended elsewhere)"
    return landscape, None
