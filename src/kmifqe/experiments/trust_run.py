"""The family of problems, judged: value, interval, measurements beside the truth, one record for each problem.

Both studies read these records, how often intervals cover and what verdicts are worth: nothing is fitted twice. A
record keeps what diagnostics are made from, so that new thresholds can be tried on old records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, Estimator, FQEConfig, KMIFQEConfig, fit, fqe, kmifqe
from kmifqe.experiments.problems_family import SHAPES, FamilyProblem, Shape, family
from kmifqe.experiments.records import stored
from kmifqe.io.files import whole_file
from kmifqe.trust.checks.diagnose import measure

SCHEMA = "kmifqe.trust-run/1"
POINTS = 20  # of a stored trajectory
COPIES = 60  # of the target network: at γ = 0.9 all but 0.2 % of the value arrives


@dataclass(frozen=True)
class TrustPreset:
    """Which problems, and how large the fits are."""

    name: str
    shapes: tuple[Shape, ...]
    per_shape: int
    seeds: int  # each with episode weights of its own
    kernel_steps: int
    fqe_steps: int
    hidden: int = 32
    family_seed: int = 0
    misled_every: int = 0  # after every so many problems, the same with a wrong density; 0: none

    def items(self) -> tuple[FamilyProblem, ...]:
        """Return the problems, those that are told a wrong density last."""
        right = family(self.per_shape, self.shapes, self.family_seed)
        if not self.misled_every:
            return right
        misled = right[:: self.misled_every]
        return (*right, *(replace(x, told_width=0.6 if i % 2 else 1.6) for i, x in enumerate(misled)))


PRESETS = {
    preset.name: preset
    for preset in (
        TrustPreset(
            "smoke",
            (SHAPES[0],),
            per_shape=4,  # the fourth is the first with an odd seed
            seeds=4,
            kernel_steps=300,
            fqe_steps=300,
            hidden=16,
            misled_every=2,
        ),
        TrustPreset(
            "full",
            SHAPES,
            per_shape=24,
            seeds=16,
            kernel_steps=3_600,
            fqe_steps=4_000,
            hidden=64,
            family_seed=1,  # problems of seed 0 were looked at while thresholds and settings were chosen
            misled_every=9,
        ),
    )
}


def preset_named(name: str) -> TrustPreset:
    """Return the preset; refuse a name that is none."""
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


def shard_of(text: str) -> tuple[int, int]:
    """Return (I, N) of "I/N", the I-th of N parts of a study."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise InputError(f"shard is {text!r}; expected I/N with 1 <= I <= N, such as 2/8")
    return int(index), int(count)


def estimators(preset: TrustPreset) -> list[tuple[Estimator, int]]:
    """Return the estimators that every problem is judged by, with their steps."""
    kernel = KMIFQEConfig(
        hidden=preset.hidden,
        batch=128,
        learning_rate=1e-2,
        decay_steps=preset.kernel_steps,
        target_period=max(1, preset.kernel_steps // COPIES),
        metric_period=10,
        bandwidth_period=4,
        clip=(1e-3, 10.0),
        bias="subtracted",
    )
    baseline = FQEConfig(hidden=preset.hidden, batch=128, learning_rate=3e-3, tau=0.02, inputs="standardized")
    return [(kmifqe(kernel), preset.kernel_steps), (fqe(baseline), preset.fqe_steps)]


def run_missing(
    preset: TrustPreset,
    directory: Path,
    shard: tuple[int, int] = (1, 1),
    say: Callable[[str], None] = lambda words: None,
) -> list[dict[str, Any]]:
    """Run the shard's problems that have no record in the directory yet; return all records that are there."""
    items = preset.items()
    directory.mkdir(parents=True, exist_ok=True)
    for number in part_of(items, shard):
        path = directory / f"{preset.name}-{number:04d}.json"
        if path.exists():
            continue
        started = time.perf_counter()
        record = {
            "schema": SCHEMA,
            "preset": preset.name,
            "number": number,
            **run_item(items[number], preset),
        }
        with whole_file(path) as partial:
            partial.write_text(json.dumps(stored(record), allow_nan=False) + "\n", encoding="utf-8")
        say(f"{number + 1} of {len(items)}: {record['description']}, {time.perf_counter() - started:.0f} s")
    return read_records(directory, preset)


def part_of(items: Sequence[FamilyProblem], shard: tuple[int, int]) -> list[int]:
    """Return the numbers of a shard's problems: neighbours in shape, so that each shard compiles for few of them."""
    by_shape = sorted(range(len(items)), key=lambda number: items[number].shape)
    ends = [len(items) * part // shard[1] for part in (shard[0] - 1, shard[0])]
    return by_shape[slice(*ends)]


def read_records(directory: Path, preset: TrustPreset) -> list[dict[str, Any]]:
    """Return the records of a preset in a directory, in the order of their problems."""
    records = []
    for path in sorted(directory.glob(f"{preset.name}-*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path}: not a readable JSON record ({error})") from error
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            raise InputError(f"{path}: expected a record with the schema {SCHEMA!r}")
        records.append(record)
    return records


def run_item(item: FamilyProblem, preset: TrustPreset) -> dict[str, Any]:
    """Return the record of one problem: what it is, its truth, and what every estimator said of it."""
    built = item.build()
    judged = []
    for estimator, steps in estimators(preset):
        estimate = fit(
            estimator,
            built.problem,
            seeds=preset.seeds,
            steps=steps,
            record_every=-(-steps // POINTS),
            bootstrap=True,
        )
        told = measure(estimator, estimate, built.problem)
        judged.append({"estimate": estimate.to_dict(), "measurements": told})
    return {
        "problem": asdict(item) | {"shape": item.shape._asdict()},
        "description": built.description,
        "truth": built.truth,
        "truth_error": built.truth_error,
        "overlap": built.overlap,
        "hopeless": built.hopeless,
        "judged": judged,
    }


def read_estimate(judged: Mapping[str, Any]) -> Estimate:
    """Return the estimate of an entry of a record's `judged`, without its final state."""
    stored = judged["estimate"]
    series = {name: _numbers(values) for name, values in stored["trajectory"].items()}
    return Estimate(
        estimator=stored["estimator"],
        config=dict(stored["config"]),
        gamma=stored["gamma"],
        seeds=tuple(stored["seeds"]),
        steps=stored["steps"],
        values=_numbers(stored["values"]),
        recorded_steps=series.pop("step").astype(int),
        trajectory=series.pop("value"),
        infos=series,
        seconds=stored["seconds"],
        device=stored["device"],
        bootstrap=stored["bootstrap"],
        episodes=judged["measurements"]["episodes"],
    )


def _numbers(values: Any) -> np.ndarray:
    """Return an array of floats, NaN where JSON has null."""
    return np.asarray(values, object).astype(np.float64)
