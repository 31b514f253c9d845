"""What the studies' records show: how often intervals hold the truth, and what verdicts are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from scipy.stats import binomtest

from kmifqe.estimators import entry_named
from kmifqe.estimators.registry import all_entries, fitted_names
from kmifqe.experiments.problems_base import HOPELESS_ROWS, Half
from kmifqe.experiments.problems_family import Facts
from kmifqe.experiments.records import Record, made_here
from kmifqe.experiments.study import HALVES, ProblemRecord
from kmifqe.trust.checks.overlap import REFERENCE_BANDWIDTHS
from kmifqe.trust.choice import average
from kmifqe.trust.interval import interval_of
from kmifqe.trust.verdict import WORDS, Word, judge_run

LEVEL = 0.9  # nominal, of the intervals whose coverage is counted
OVERLAP_EDGES = (0.0, 0.03, 0.1, 0.3)
ROWS_EDGES = (0, 3_000, 10_000, 30_000)
SMALL = 0.25  # an error, in standard deviations of single logged episodes' discounted returns
LARGE = 0.5  # likewise

Line = dict[str, Any]  # of a table of results
Tables = dict[str, list[Line]]  # of one estimator, by what the problems are grouped by


class Judged(msgspec.Struct, kw_only=True):
    """One estimate of one problem beside the truth, with its intervals and its verdict."""

    number: int
    facts: Facts
    estimator: str
    value: float
    unit: float  # standard deviation of logged episodes' discounted returns, normalised as values are
    has_ends: bool  # whether episodes of the log terminated
    inside: (
        bool  # the truth in the interval that users are shown; False where a seed diverged and there is none
    )
    interval_90: tuple[float, float] | None
    inside_90: bool
    verdict: Word
    against: list[str]  # checks that speak against it, the weightiest first
    seconds: float
    device: str  # that it was fitted on

    @property
    def half(self) -> Half:
        """Which half of the study the problem belongs to."""
        return self.facts.settings.half

    @property
    def misled(self) -> bool:
        """Whether the density that estimators were told is wrong, and the estimator uses it."""
        return self.facts.settings.told_width != 1.0 and entry_named(self.estimator).needs_density

    @property
    def signed_error(self) -> float:
        """V̂ − V in `unit`."""
        return (self.value - self.facts.truth) / self.unit

    @property
    def scaled_error(self) -> float:
        """|V̂ − V| in `unit`."""
        return abs(self.signed_error)

    @property
    def scaled_width(self) -> float:
        """The 90 % interval's width in `unit`; infinite where there is none."""
        return np.inf if self.interval_90 is None else (self.interval_90[1] - self.interval_90[0]) / self.unit

    @property
    def large(self) -> bool:
        """Whether the error is large, or no number at all."""
        return not self.scaled_error <= LARGE

    @property
    def small(self) -> bool:
        """Whether the error is small."""
        return self.scaled_error <= SMALL


def judge(records: Iterable[ProblemRecord]) -> list[Judged]:
    """Return every estimate of the records, judged with the thresholds in force."""
    return [judged for record in records for judged in _judge_problem(record)]


def _judge_problem(record: ProblemRecord) -> Iterator[Judged]:
    accepted = record.facts.settings.accepted
    fitted = {estimate.estimator: estimate for estimate in record.estimates}
    averages = [
        average(entry.name, [fitted[name] for name in fitted_names([entry.name])], accepted)
        for entry in all_entries()
        if entry.panel and set(fitted_names([entry.name])) <= set(fitted)
    ]
    estimates = [*averages, *record.estimates]
    judgement = judge_run(estimates, accepted)
    for estimate in estimates:
        shown, narrow = interval_of(estimate), interval_of(estimate, LEVEL)
        log = estimate.measurements.log
        yield Judged(
            number=record.number,
            facts=record.facts,
            estimator=estimate.estimator,
            value=estimate.value,
            unit=log.value_unit,
            has_ends=log.rows.terminated > 0,
            inside=shown is not None and shown.contains(record.facts.truth),
            interval_90=None if narrow is None else (narrow.low, narrow.high),
            inside_90=narrow is not None and narrow.contains(record.facts.truth),
            verdict=judgement.verdicts[estimate.estimator].word,
            against=list(judgement.verdicts[estimate.estimator].checks),
            seconds=estimate.seconds,
            device=estimate.device,
        )


class Coverage(Record, tag="kmifqe.coverage/4", kw_only=True):
    """How often intervals hold the truth, and how wide they are, by what the problems differ in."""

    command: list[str]
    level: float
    hopeless_rule: str
    unit: str
    tables: dict[Half, dict[str, Tables]]  # by half, and by estimator
    choices: dict[Half, list[Line]]  # by half: errors of each way to choose among the estimators
    estimates: list[Judged]


def coverage(judged: Sequence[Judged], preset: str, command: Sequence[str]) -> Coverage:
    """Return what the study of intervals found on the problems whose estimators were told the true density.

    `judged` is every estimate, `preset` the study's preset, and `command` the arguments it was called with.
    """
    right = [each for each in judged if each.facts.settings.told_width == 1.0]
    return Coverage(
        preset=preset,
        **made_here(),
        command=list(command),
        level=LEVEL,
        hopeless_rule=f"fewer than {HOPELESS_ROWS:g} effective rows at the best bandwidth of "
        f"{', '.join(map(str, REFERENCE_BANDWIDTHS))} half action ranges, judged before anything is estimated",
        unit="widths and errors are in standard deviations of single logged episodes' discounted returns",
        tables={half: _by_estimator([x for x in right if x.half == half], groups) for half in HALVES},
        choices={half: choices([x for x in right if x.half == half]) for half in HALVES},
        estimates=right,
    )


def _by_estimator(judged: Sequence[Judged], make: Callable[[Sequence[Judged]], Tables]) -> dict[str, Tables]:
    names = _names(judged)
    return {name: make([each for each in judged if each.estimator == name]) for name in names}


def choices(judged: Sequence[Judged]) -> list[Line]:
    """Return the errors on problems that are not hopeless: of each estimator, of their plain average, of an oracle.

    The plain average and the oracle, which knows which estimate is nearest, are over those that are fitted.
    """
    hopeful = [each for each in judged if not each.facts.hopeless]
    by_name = {name: [x for x in hopeful if x.estimator == name] for name in _names(hopeful)}
    errors = {name: {x.number: x.signed_error for x in mine} for name, mine in by_name.items()}
    fitted = [mine for name, mine in errors.items() if not entry_named(name).panel]
    shared = sorted(set.intersection(*(set(mine) for mine in errors.values()))) if errors else []
    lines = [_errors(name, [mine[number] for number in shared]) for name, mine in errors.items()]
    if len(fitted) > 1:
        together = [[mine[number] for mine in fitted] for number in shared]
        lines.append(_errors("plain average", [float(np.mean(each)) for each in together]))
        lines.append(_errors("the nearest, by an oracle", [min(each, key=abs) for each in together]))
    return lines


def _names(judged: Sequence[Judged]) -> list[str]:
    return list(dict.fromkeys(each.estimator for each in judged))


def _errors(name: str, errors: Sequence[float]) -> Line:
    known = np.abs(errors)
    return {
        "choice": name,
        "problems": len(known),
        "rmse": float(np.sqrt(np.mean(known**2))) if len(known) else None,
        "median": float(np.median(known)) if len(known) else None,
        "quantile_90": float(np.quantile(known, 0.9)) if len(known) else None,
    }


def groups(judged: Sequence[Judged]) -> Tables:
    """Return the tables of one estimator: all problems, and those not hopeless by what they differ in."""
    hopeful = [each for each in judged if not each.facts.hopeless]
    apart = [each for each in judged if each.facts.hopeless]

    def overlapping(low: float, high: float) -> Line:
        these = [each for each in hopeful if low <= each.facts.overlap < high]
        return group(these, f"overlap {low:g} to {min(high, 1.0):g}")

    def logged(low: float, high: float) -> Line:
        these = [each for each in hopeful if low <= each.facts.settings.rows < high]
        return group(these, f"{low:,} to {high:,} rows" if high < np.inf else f"{low:,} rows or more")

    return {
        "all": [group(hopeful, "not hopeless"), group(apart, "hopeless"), group(judged, "all")],
        "kind": by_kind(hopeful, group),
        "gamma": _by(hopeful, lambda each: each.facts.settings.gamma, "γ {:g}"),
        "ends": _by(hopeful, lambda each: "with ends" if each.has_ends else "without ends", "{}"),
        "rows": [logged(*edges) for edges in pairwise((*ROWS_EDGES, np.inf))],
        "overlap": [overlapping(*edges) for edges in pairwise((*OVERLAP_EDGES, np.inf))],
    }


def by_kind(judged: Sequence[Judged], line: Callable[[Sequence[Judged], str], Line]) -> list[Line]:
    """Return a `line` for every kind of the `judged` problems; linear-quadratic ones are told apart by actions."""

    def name(each: Judged) -> str:
        settings = each.facts.settings
        actions = settings.action_dim
        return f"lqr, {actions} action{'s' * (actions > 1)}" if settings.family == "lqr" else each.facts.kind

    # By number they are in the order of their kinds; only those told a wrong density come after all others.
    in_order = sorted(judged, key=lambda each: (each.facts.settings.told_width != 1.0, each.number))
    names = dict.fromkeys(map(name, in_order))
    return [line([each for each in judged if name(each) == kind], kind) for kind in names]


def _by(judged: Sequence[Judged], value: Callable[[Judged], Any], text: str) -> list[Line]:
    """Return a line for every `value` of these estimates, called by the `text` with the value in it."""
    return [
        group([each for each in judged if value(each) == found], text.format(found))
        for found in sorted({value(each) for each in judged})
    ]


def group(judged: Sequence[Judged], name: str) -> Line:
    """Return how many of these estimates are covered, and how wide their intervals are, in units of `Judged.unit`."""
    count, covered = len(judged), sum(each.inside_90 for each in judged)
    low, high = share_interval(covered, count)
    ends = [(each.facts.truth, *each.interval_90) for each in judged if each.interval_90 is not None]
    return {
        "group": name,
        "problems": count,
        "covered": covered,
        "share": covered / count if count else None,
        "share_low": low,
        "share_high": high,
        "too_high": sum(truth < low for truth, low, _ in ends),
        "too_low": sum(truth > high for truth, _, high in ends),
        "without_interval": count - len(ends),
        "median_width": float(np.median([each.scaled_width for each in judged])) if count else None,
        "median_error": float(np.nanmedian([each.scaled_error for each in judged])) if count else None,
    }


def share_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval for a share, from `successes` of `trials`."""
    if trials == 0:
        return 0.0, 1.0
    interval = binomtest(successes, trials).proportion_ci(0.95, "wilson")
    return float(interval.low), float(interval.high)


class Verdicts(Record, tag="kmifqe.verdicts/3", kw_only=True):
    """What verdicts are worth: are the trusted ones right, and are the right ones trusted?"""

    problems: int
    small_error: str
    large_error: str
    tables: dict[Half, dict[str, Tables]]  # by half, and by estimator; "any" counts all of them together
    estimates: list[Judged]


ANY = "any"  # estimator


def verdicts(judged: Sequence[Judged], preset: str) -> Verdicts:
    """Return what the study of verdicts found on the estimates `judged` of this `preset`, in each half."""
    unit = "standard deviations of the discounted returns of logged episodes"
    tables = {}
    for half in HALVES:
        these = [each for each in judged if each.half == half]
        tables[half] = {ANY: verdict_tables(these), **_by_estimator(these, verdict_tables)}
    return Verdicts(
        preset=preset,
        **made_here(),
        problems=len({each.number for each in judged}),
        small_error=f"at most {SMALL:g} {unit}",
        large_error=f"more than {LARGE:g} {unit}",
        tables=tables,
        estimates=list(judged),
    )


def verdict_tables(judged: Sequence[Judged]) -> Tables:
    """Return the confusion table of these estimates, and the power of their verdicts overall and by kind.

    A problem told a wrong density is left out of the power of every estimator: one that uses no density says the same
    as of the problem told the right one, which is counted already.
    """
    right = [each for each in judged if each.facts.settings.told_width == 1.0]
    fair = [each for each in right if not each.facts.hopeless]
    return {
        "confusion": confusion(judged),
        "power": [power(fair, "not hopeless"), *by_kind(fair, power), power(right, "hopeless ones too")],
    }


def confusion(judged: Sequence[Judged]) -> list[Line]:
    """Return one line per verdict: how many, with the truth inside, with small and large errors, hopeless, misled.

    No verdict can know a log's luck: where nothing is wrong, a 90 % interval misses the truth one time in ten. So
    both are counted, the 90 % and the 95 % interval.
    """
    lines = []
    for verdict in WORDS:
        these = [each for each in judged if each.verdict == verdict]
        count, inside = len(these), sum(each.inside for each in these)
        errors = [each.scaled_error for each in these if np.isfinite(each.scaled_error)]
        lines.append(
            {
                "verdict": verdict,
                "estimates": count,
                "inside": inside,
                "inside_share": inside / count if count else None,
                "inside_90_share": sum(each.inside_90 for each in these) / count if count else None,
                "small_errors": sum(each.small for each in these),
                "large_errors": sum(each.large for each in these),
                "median_scaled_error": float(np.median(errors)) if errors else None,
                "hopeless": sum(each.facts.hopeless for each in these),
                "misled": sum(each.misled for each in these),
            }
        )
    return lines


def power(judged: Sequence[Judged], name: str) -> Line:
    """Return how many of these estimates have a small error, and how many of those are called trustworthy.

    `judged` are the estimates, and `name` is what the table calls them.
    """
    small = [each for each in judged if each.small]
    trusted = [each for each in judged if each.verdict == WORDS[0]]
    right = sum(each.verdict == WORDS[0] for each in small)
    low, high = share_interval(right, len(small))
    return {
        "group": name,
        "estimates": len(judged),
        "small": len(small),
        "small_trusted": right,
        "power": right / len(small) if small else None,
        "power_low": low,
        "power_high": high,
        "trusted": len(trusted),
        "trusted_inside": sum(each.inside for each in trusted),
    }
