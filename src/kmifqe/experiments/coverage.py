"""How often the intervals hold the truth, and how wide they are: against overlap, size and action dimensions.

What is hopeless is told apart by a rule on the log alone (`problems_family.hopeless`), fixed before any estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kmifqe.experiments.problems_family import HOPELESS_ROWS
from kmifqe.experiments.trust_run import read_estimate
from kmifqe.report.result import provenance
from kmifqe.trust.checks.overlap import REFERENCE_BANDWIDTHS
from kmifqe.trust.interval import interval_of

SCHEMA = "kmifqe.coverage/1"
LEVEL = 0.9  # nominal
OVERLAP_EDGES = (0.0, 0.03, 0.1, 0.3, 1.0)
WILSON = 1.96  # the share of covered problems is known only so well: a 95 % interval for it


class Row(NamedTuple):
    """One estimate of one problem, with its interval, beside the truth."""

    problem: str
    number: int
    estimator: str
    world: str
    action_dim: int
    rows: int
    episodes: int
    overlap: float
    hopeless: bool
    truth: float
    truth_error: float
    value: float
    low: float | None  # None: a seed diverged, there is no interval
    high: float | None
    unit: float  # standard deviation of logged episodes' discounted returns, normalised as values are
    seconds: float
    device: str  # that it was fitted on

    @property
    def inside(self) -> bool:
        """Whether the interval holds the truth; where there is no interval it does not."""
        return self.low is not None and self.high is not None and self.low <= self.truth <= self.high

    @property
    def scaled_width(self) -> float:
        """The interval's width in units of single episodes' spread; infinite where there is none."""
        return np.inf if self.low is None or self.high is None else (self.high - self.low) / self.unit

    @property
    def scaled_error(self) -> float:
        """|V̂ − V| in units of single episodes' spread."""
        return abs(self.value - self.truth) / self.unit


def rows_of(records: Iterable[Mapping[str, Any]], level: float = LEVEL) -> list[Row]:
    """Return every estimate of the records whose problem was told its true density."""
    told_right = (record for record in records if record["problem"]["told_width"] == 1.0)
    return [_row(record, judged, level) for record in told_right for judged in record["judged"]]


def _row(record: Mapping[str, Any], judged: Mapping[str, Any], level: float) -> Row:
    estimate, shape = read_estimate(judged), record["problem"]["shape"]
    interval = interval_of(estimate, level)
    return Row(
        problem=record["description"],
        number=record["number"],
        estimator=estimate.estimator,
        world=shape["world"],
        action_dim=shape["action_dim"],
        rows=shape["episodes"] * shape["length"],
        episodes=shape["episodes"],
        overlap=record["overlap"],
        hopeless=record["hopeless"],
        truth=record["truth"],
        truth_error=record["truth_error"],
        value=estimate.value,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        unit=max(judged["measurements"]["return_std"], 1e-12),
        seconds=estimate.seconds,
        device=estimate.device,
    )


def summary(rows: Sequence[Row], group: str) -> dict[str, Any]:
    """Return one line of a table: how many of the rows are covered, how wide their intervals are."""
    count, covered = len(rows), sum(row.inside for row in rows)
    low, high = share_interval(covered, count)
    return {
        "group": group,
        "problems": count,
        "covered": covered,
        "share": covered / count if count else None,
        "share_low": low,
        "share_high": high,
        "too_high": sum(row.low is not None and row.truth < row.low for row in rows),
        "too_low": sum(row.high is not None and row.truth > row.high for row in rows),
        "without_interval": sum(row.low is None for row in rows),
        "median_width": float(np.median([row.scaled_width for row in rows])) if count else None,
        "median_error": float(np.nanmedian([row.scaled_error for row in rows])) if count else None,
    }


def share_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval for a share, from `successes` of `trials`."""
    if trials == 0:
        return 0.0, 1.0
    z2, share = WILSON**2, successes / trials
    middle = (share + 0.5 * z2 / trials) / (1.0 + z2 / trials)
    half = WILSON / (1.0 + z2 / trials) * np.sqrt(share * (1 - share) / trials + 0.25 * z2 / trials**2)
    return max(0.0, middle - half), min(1.0, middle + half)


def groups(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of one estimator: all problems, and those not hopeless by overlap, size, world, actions."""
    judged = [row for row in rows if not row.hopeless]

    def by(name: str, of: Callable[[Row], Any]) -> list[dict[str, Any]]:
        kinds = sorted({of(row) for row in judged})
        return [summary([row for row in judged if of(row) == kind], f"{name} {kind}") for kind in kinds]

    def between(low: float, high: float) -> list[Row]:
        return [row for row in judged if low <= row.overlap < high]

    edges = list(zip(OVERLAP_EDGES[:-1], (*OVERLAP_EDGES[1:-1], np.inf)))
    return {
        "all": [
            summary(judged, "not hopeless"),
            summary([row for row in rows if row.hopeless], "hopeless"),
            summary(rows, "all"),
        ],
        "overlap": [
            summary(between(low, high), f"overlap {low:g} to {min(high, 1.0):g}") for low, high in edges
        ],
        "rows": by("rows", lambda row: row.rows),
        "world": by("world", lambda row: row.world),
        "actions": by("actions", lambda row: row.action_dim),
    }


def coverage_record(
    rows: Sequence[Row], preset: str, command: Sequence[str], level: float = LEVEL
) -> dict[str, Any]:
    """Return what the study found: tables per estimator, and every estimate."""
    names = list(dict.fromkeys(row.estimator for row in rows))
    return {
        "schema": SCHEMA,
        "preset": preset,
        "command": list(command),
        **provenance(),
        "level": level,
        "hopeless_rule": f"fewer than {HOPELESS_ROWS:g} effective rows at the best bandwidth of "
        f"{', '.join(map(str, REFERENCE_BANDWIDTHS))} half action ranges, judged before anything is estimated",
        "unit": "widths and errors are in standard deviations of single logged episodes' discounted returns",
        "tables": {name: groups([row for row in rows if row.estimator == name]) for name in names},
        "estimates": [row._asdict() | {"inside": row.inside} for row in rows],
    }
