"""What verdicts are worth: of estimates called trustworthy, how many have the truth in their interval.

Problems with an even seed are for setting thresholds; what is reported is counted on those with an odd one, and
docs/diagnostics.md says what was looked at. No verdict can know a log's luck: where nothing is wrong, a 90 % interval
misses the truth one time in ten. So both are counted, the 90 % and the 95 % interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kmifqe.experiments.trust_run import read_estimate
from kmifqe.report.result import provenance
from kmifqe.trust.interval import interval_of
from kmifqe.trust.verdict import WORDS, Word, diagnose_run

SCHEMA = "kmifqe.verdicts/1"
LARGE = 0.5  # of the standard deviation of single logged episodes' discounted returns


class Row(NamedTuple):
    """One estimate of one problem, judged."""

    problem: str
    number: int
    reported: bool  # odd seed: no threshold was set by looking at it
    estimator: str
    misled: bool  # the density that was told is wrong
    hopeless: bool  # too few effective rows near the target, judged before anything was estimated
    overlap: float
    truth: float
    value: float
    half_width: float | None
    inside: bool  # the truth in the interval that users are shown; False where there is none
    inside_90: bool  # in the 90 % interval
    scaled_error: float  # |V̂ − V| over the standard deviation of logged episodes' returns
    word: Word
    named: tuple[str, ...]  # diagnostics that speak against it, the weightiest first
    device: str  # that it was fitted on

    @property
    def large(self) -> bool:
        """Whether the error is large, or no number at all."""
        return not self.scaled_error <= LARGE


def rows_of(records: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return every estimate of the records, diagnosed and judged with the thresholds of today."""
    return [row for record in records for row in _judged(record)]


def _judged(record: Mapping[str, Any]) -> list[Row]:
    estimates = [read_estimate(judged) for judged in record["judged"]]
    measurements = [judged["measurements"] for judged in record["judged"]]
    intervals = [interval_of(estimate) for estimate in estimates]
    diagnosis = diagnose_run(estimates, measurements)
    rows = []
    for estimate, facts, interval in zip(estimates, measurements, intervals):
        against = [
            d.name for d in diagnosis.diagnostics if d.level != "ok" and d.about in ("", estimate.estimator)
        ]
        rows.append(
            Row(
                problem=record["description"],
                number=record["number"],
                reported=record["problem"]["seed"] % 2 == 1,
                estimator=estimate.estimator,
                misled=record["problem"]["told_width"] != 1.0,
                hopeless=record["hopeless"],
                overlap=record["overlap"],
                truth=record["truth"],
                value=estimate.value,
                half_width=None if interval is None else 0.5 * interval.width,
                inside=interval is not None and interval.contains(record["truth"]),
                inside_90=(narrow := interval_of(estimate, 0.9)) is not None
                and narrow.contains(record["truth"]),
                scaled_error=abs(estimate.value - record["truth"]) / max(facts["return_std"], 1e-12),
                word=diagnosis.verdicts[estimate.estimator].word,
                named=tuple(against),
                device=estimate.device,
            )
        )
    return rows


def confusion(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one line per verdict: how many, with the truth inside, with large errors, hopeless, misled."""
    table = []
    for word in WORDS:
        these = [row for row in rows if row.word == word]
        errors = [row.scaled_error for row in these if np.isfinite(row.scaled_error)]
        table.append(
            {
                "verdict": word,
                "estimates": len(these),
                "inside": sum(row.inside for row in these),
                "inside_share": sum(row.inside for row in these) / len(these) if these else None,
                "inside_90_share": sum(row.inside_90 for row in these) / len(these) if these else None,
                "large_errors": sum(row.large for row in these),
                "median_scaled_error": float(np.median(errors)) if errors else None,
                "hopeless": sum(row.hopeless for row in these),
                "misled": sum(row.misled and row.estimator == "kmifqe" for row in these),
            }
        )
    return table


def verdicts_record(rows: Sequence[Row], preset: str, problems: int) -> dict[str, Any]:
    """Return what the study found: the table on problems with odd seeds, that on even ones, and every estimate."""
    return {
        "schema": SCHEMA,
        "preset": preset,
        **provenance(),
        "problems": problems,
        "large_error": f"more than {LARGE:g} standard deviations of the discounted returns of logged episodes",
        "reported": confusion([row for row in rows if row.reported]),
        "calibrated_on": confusion([row for row in rows if not row.reported]),
        "by_estimator": {
            name: confusion([row for row in rows if row.reported and row.estimator == name])
            for name in dict.fromkeys(row.estimator for row in rows)
        },
        "estimates": [row._asdict() for row in rows],
    }
