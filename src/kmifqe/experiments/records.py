"""Experiment records: one small JSON file per (preset, experiment, row, method), written whole, read with checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate, plain
from kmifqe.experiments.paper_tables import error_of_mean
from kmifqe.io.files import whole_file
from kmifqe.report.result import provenance

SCHEMA = "kmifqe.experiment/1"
RESULTS = Path("experiments") / "results"  # under the current directory, unless the user says where
MOST_POINTS = 50  # of a stored trajectory
DIGITS = 6  # significant, of stored numbers: float32 has no more
# Settings that came later than records that are kept, and the value at which they change nothing.
LATER = {"bias_share": 1.0, "start_at_mean": False, "average_step": 0}
NAMES = ("experiment", "row", "method", "preset")

Record = dict[str, Any]


def experiment_record(
    experiment: str,
    row: str,
    method: str,
    preset: str,
    *,
    settings: Mapping[str, Any],
    wall_seconds: float,
    packages: Sequence[str] = (),
    **measured: Any,
) -> Record:
    """Return the record of one method on one row.

    `settings` is everything that decides the outcome, as JSON can hold it: `is_done` compares it. `measured` is
    what came out; `estimate_fields` makes it from an Estimate. `packages` are versions worth keeping besides ours.
    """
    return {
        "schema": SCHEMA,
        "experiment": experiment,
        "row": row,
        "method": method,
        "preset": preset,
        "command": command_of(experiment, preset, row, method),
        **provenance(*packages),
        "wall_seconds": wall_seconds,
        "settings": dict(settings),
        **measured,
    }


def command_of(experiment: str, preset: str, row: str, method: str) -> str:
    """Return the command line that makes a record again."""
    return f"kmifqe reproduce {experiment} --preset {preset} --only {row} --method {method}"


def estimate_fields(estimate: Estimate, truths: Mapping[str, float | None]) -> dict[str, Any]:
    """Return the values per seed, a thin trajectory, and the error against each named truth that is known."""
    return {
        "values": estimate.values,
        "discounted_return": estimate.discounted_return,
        "trajectory": thin_trajectory(estimate),
        "errors": {
            name: error_of(estimate.values, truth) for name, truth in truths.items() if truth is not None
        },
    }


def error_of(values: Sequence[float] | np.ndarray, truth: float) -> dict[str, Any]:
    """Return the RMSE over seeds, its standard error, the bias, the spread over seeds, and how many diverged.

    With e_i = V̂_i − V of n seeds: RMSE = sqrt(mean e²); its standard error is that of mean e², carried through
    the root: sd(e²)/sqrt(n)/(2·RMSE), sd with n − 1. A seed without a finite value leaves no RMSE (None): an
    average over the others would flatter the method. Bias and spread are of the finite seeds.
    """
    errors = np.asarray(values, np.float64) - truth
    finite = errors[np.isfinite(errors)]
    n = len(errors)
    rmse = standard_error = None
    if len(finite) == n and n > 0:
        rmse, its_error = error_of_mean(errors, 0.0, 1)
        standard_error = its_error if n > 1 else None
    return {
        "truth": truth,
        "rmse": rmse,
        "standard_error": standard_error,
        "bias": float(finite.mean()) if len(finite) else None,
        "spread": float(finite.std(ddof=1)) if len(finite) > 1 else None,
        "diverged": n - len(finite),
    }


def thin_trajectory(estimate: Estimate) -> dict[str, Any]:
    """Return at most MOST_POINTS records, the last included: V̂ per seed, infos as means over seeds."""
    total = len(estimate.recorded_steps)
    kept = np.unique(np.linspace(0, total - 1, min(total, MOST_POINTS)).round().astype(int))
    with np.errstate(over="ignore", invalid="ignore"):  # a diverged seed's infos are infinite: kept as null
        infos = {name: series[kept].mean(axis=1) for name, series in estimate.infos.items()}
    return {"step": estimate.recorded_steps[kept], "value": estimate.trajectory[kept], **infos}


def record_path(root: Path, preset: str, experiment: str, row: str, method: str) -> Path:
    """Return where a record lives: ROOT/preset/experiment/row/method.json."""
    return root / preset / experiment / row / f"{method}.json"


def write_record(record: Record, root: Path) -> Path:
    """Write the record to its place under `root`, whole or not at all, one field a line; return the path."""
    path = record_path(root, *(record[name] for name in ("preset", "experiment", "row", "method")))
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = (f" {json.dumps(key)}: {_json(value)}" for key, value in record.items())
    with whole_file(path) as partial:
        partial.write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")
    return path


def read_record(path: Path) -> Record:
    """Return the record in a file; refuse what is no experiment record, naming the file and the field."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable JSON record ({error})") from error
    found = record.get("schema") if isinstance(record, dict) else None
    if found != SCHEMA:
        raise InputError(f"{path}: schema is {found!r}; expected {SCHEMA!r}")
    for name in NAMES:
        if not isinstance(record.get(name), str):
            raise InputError(f"{path}: {name} is {record.get(name)!r}; expected a name")
    return record


def read_records(root: Path, experiment: str | None = None, preset: str | None = None) -> list[Record]:
    """Return the records under `root`, of one experiment and preset where named, in order of their paths."""
    pattern = f"{preset or '*'}/{experiment or '*'}/*/*.json"
    return [read_record(path) for path in sorted(root.glob(pattern))]


def is_done(
    root: Path, preset: str, experiment: str, row: str, method: str, settings: Mapping[str, Any]
) -> bool:
    """Return whether a record made with these settings is there already."""
    path = record_path(root, preset, experiment, row, method)
    if not path.exists():
        return False
    return _same(read_record(path).get("settings"), json.loads(_json(dict(settings))))


def _same(recorded: Any, asked: Any) -> bool:
    if not (isinstance(recorded, dict) and isinstance(asked, dict)):
        return bool(recorded == asked)
    new = asked.keys() - recorded.keys()
    return (
        recorded.keys() <= asked.keys()
        and all(name in LATER and asked[name] == LATER[name] for name in new)
        and all(_same(recorded[name], asked[name]) for name in recorded)
    )


def _json(value: Any) -> str:
    return json.dumps(stored(value), allow_nan=False, ensure_ascii=False)


def stored(x: Any) -> Any:
    """Return x as plain JSON values, floats to DIGITS significant digits, non-finite numbers as None."""
    if isinstance(x, Mapping):
        return {str(key): stored(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [stored(value) for value in x]
    if isinstance(x, (np.ndarray, np.generic)):
        return stored(x.tolist())
    x = plain(x)
    return float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x
