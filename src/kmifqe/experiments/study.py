"""The studies of intervals and verdicts: the family of problems is run once, and both are read off its records.

A record keeps what checks are made from, so that new thresholds can be tried on old records. Problems with an even
seed are for setting thresholds; verdicts are reported on those with an odd one (docs/diagnostics.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.stats import binomtest

from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, FQEConfig, KMIFQEConfig, make_fqe, make_kmifqe
from kmifqe.experiments.context import fit_run
from kmifqe.experiments.presets import METHODS, Run
from kmifqe.experiments.problems_family import HOPELESS_ROWS, SHAPES, Facts, FamilyProblem, Shape, family
from kmifqe.experiments.records import Record, made_here, read_record, write_record
from kmifqe.trust.checks import measure, restored
from kmifqe.trust.checks.overlap import REFERENCE_BANDWIDTHS
from kmifqe.trust.interval import interval_of
from kmifqe.trust.verdict import WORDS, Word, judge_run

POINTS = 20  # of a stored trajectory
COPIES = 60  # of the target network: at γ = 0.9 all but 0.2 % of the value arrives
LEVEL = 0.9  # nominal, of the intervals whose coverage is counted
OVERLAP_EDGES = (0.0, 0.03, 0.1, 0.3)
LARGE = 0.5  # an error, in standard deviations of single logged episodes' discounted returns

Line = dict[str, Any]  # of a table of results


@dataclass(frozen=True)
class StudyPreset:
    """Which problems, and how large the fits are."""

    name: str
    shapes: tuple[Shape, ...]
    per_shape: int
    seeds: int  # each with episode weights of its own
    kernel_steps: int
    fqe_steps: int
    hidden: int
    misled_every: int  # after every so many problems, the same with a wrong density
    family_seed: int = 0

    def items(self) -> tuple[FamilyProblem, ...]:
        """Return the problems, those whose estimators are told a wrong density last."""
        right = family(self.per_shape, self.shapes, self.family_seed)
        misled = right[:: self.misled_every]
        return (*right, *(replace(x, told_width=0.6 if i % 2 else 1.6) for i, x in enumerate(misled)))

    def runs(self) -> tuple[Run, ...]:
        """Return the estimators that every problem is judged by, with their steps."""
        kernel = KMIFQEConfig(
            hidden=self.hidden,
            batch=128,
            learning_rate=1e-2,
            decay_steps=self.kernel_steps,
            target_period=max(1, self.kernel_steps // COPIES),
            metric_period=10,
            bandwidth_period=4,
            clip=(1e-3, 10.0),
            bias="subtracted",
        )
        plain = FQEConfig(hidden=self.hidden, batch=128, learning_rate=3e-3, tau=0.02, inputs="standardized")
        return Run(make_kmifqe(kernel), self.kernel_steps), Run(make_fqe(plain), self.fqe_steps)


PRESETS = {
    "smoke": StudyPreset(
        "smoke",
        (SHAPES[0],),
        per_shape=4,  # the fourth is the first with an odd seed
        seeds=4,
        kernel_steps=300,
        fqe_steps=300,
        hidden=16,
        misled_every=2,
    ),
    "full": StudyPreset(
        "full",
        SHAPES,
        per_shape=24,
        seeds=16,
        kernel_steps=3_600,
        fqe_steps=4_000,
        hidden=64,
        misled_every=9,
        family_seed=1,  # problems of seed 0 were looked at while thresholds and settings were chosen
    ),
}


class ProblemRecord(Record, tag="kmifqe.trust-run/2", kw_only=True):
    """One problem of the family, its truth, and every estimate of it with what was measured on its final state."""

    number: int
    facts: Facts
    estimates: list[Estimate]


def preset_named(name: str) -> StudyPreset:
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


def part_of(items: Sequence[FamilyProblem], shard: tuple[int, int]) -> list[int]:
    """Return the numbers of a shard's problems: neighbours in shape, so that each shard compiles for few of them."""
    by_shape = sorted(range(len(items)), key=lambda number: items[number].shape)
    ends = [len(items) * part // shard[1] for part in (shard[0] - 1, shard[0])]
    return by_shape[slice(*ends)]


def run_missing(
    preset: StudyPreset,
    directory: Path,
    shard: tuple[int, int] = (1, 1),
    say: Callable[[str], None] = lambda line: None,
) -> list[ProblemRecord]:
    """Run the problems that have no record yet; return all records that are there, in the order of the problems.

    Args:
        preset: which problems, and how large the fits are.
        directory: of the records; made if it is missing.
        shard: (I, N) to run only the I-th of N parts; default: everything.
        say: is given a line for every problem that was run; default: nobody is told.
    """
    items = preset.items()
    directory.mkdir(parents=True, exist_ok=True)
    for number in part_of(items, shard):
        path = directory / f"{preset.name}-{number:04d}.json"
        if not path.exists():
            started = time.perf_counter()
            record = run_problem(preset, number)
            write_record(record, path)
            seconds = time.perf_counter() - started
            say(f"{number + 1} of {len(items)}: {record.facts.description}, {seconds:.0f} s")
    records = [read_record(path, ProblemRecord) for path in sorted(directory.glob(f"{preset.name}-*.json"))]
    for record in records:
        record.estimates = [restored(estimate) for estimate in record.estimates]
    return records


def run_problem(preset: StudyPreset, number: int) -> ProblemRecord:
    """Return the record of one problem: what it is, its truth, and what every estimator said of it."""
    built = preset.items()[number].build()
    estimates, problem = [], built.problem
    for run in preset.runs():
        every = -(-run.steps // POINTS)
        estimate, problem = fit_run(problem, run, seeds=preset.seeds, bootstrap=True, record_every=every)
        found = measure(run.estimator, estimate, problem)
        estimates.append(replace(estimate, measurements=found, final_state=None))
    return ProblemRecord(
        preset=preset.name, **made_here(), number=number, facts=built.facts, estimates=estimates
    )


class Judged(msgspec.Struct, kw_only=True):
    """One estimate of one problem beside the truth, with its intervals and its verdict."""

    number: int
    facts: Facts
    estimator: str
    value: float
    unit: float  # standard deviation of logged episodes' discounted returns, normalised as values are
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
    def misled(self) -> bool:
        """Whether the density that estimators were told is wrong."""
        return self.facts.settings.told_width != 1.0

    @property
    def reported(self) -> bool:
        """Whether the problem's seed is odd: no threshold was set by looking at it."""
        return self.facts.settings.seed % 2 == 1

    @property
    def scaled_error(self) -> float:
        """|V̂ − V| in `unit`."""
        return abs(self.value - self.facts.truth) / self.unit

    @property
    def scaled_width(self) -> float:
        """The 90 % interval's width in `unit`; infinite where there is none."""
        return np.inf if self.interval_90 is None else (self.interval_90[1] - self.interval_90[0]) / self.unit

    @property
    def large(self) -> bool:
        """Whether the error is large, or no number at all."""
        return not self.scaled_error <= LARGE


def judge(records: Iterable[ProblemRecord]) -> list[Judged]:
    """Return every estimate of the records, judged with the thresholds in force."""
    return [judged for record in records for judged in _judge_problem(record)]


def _judge_problem(record: ProblemRecord) -> Iterator[Judged]:
    judgement = judge_run(record.estimates)
    for estimate in record.estimates:
        shown, narrow = interval_of(estimate), interval_of(estimate, LEVEL)
        yield Judged(
            number=record.number,
            facts=record.facts,
            estimator=estimate.estimator,
            value=estimate.value,
            unit=max(estimate.measurements.log.return_std, 1e-12),
            inside=shown is not None and shown.contains(record.facts.truth),
            interval_90=None if narrow is None else (narrow.low, narrow.high),
            inside_90=narrow is not None and narrow.contains(record.facts.truth),
            verdict=judgement.verdicts[estimate.estimator].word,
            against=list(judgement.verdicts[estimate.estimator].checks),
            seconds=estimate.seconds,
            device=estimate.device,
        )


class Coverage(Record, tag="kmifqe.coverage/2", kw_only=True):
    """How often intervals hold the truth, and how wide they are: against overlap, size and action dimensions."""

    command: list[str]
    level: float
    hopeless_rule: str
    unit: str
    tables: dict[str, dict[str, list[Line]]]  # by estimator, and by what the problems are grouped by
    estimates: list[Judged]


def coverage(judged: Sequence[Judged], preset: str, command: Sequence[str]) -> Coverage:
    """Return what the study of intervals found on the problems whose estimators were told the true density.

    `judged` is every estimate, `preset` the study's preset, and `command` the arguments it was called with.
    """
    right = [each for each in judged if not each.misled]
    names = dict.fromkeys(each.estimator for each in right)
    return Coverage(
        preset=preset,
        **made_here(),
        command=list(command),
        level=LEVEL,
        hopeless_rule=f"fewer than {HOPELESS_ROWS:g} effective rows at the best bandwidth of "
        f"{', '.join(map(str, REFERENCE_BANDWIDTHS))} half action ranges, judged before anything is estimated",
        unit="widths and errors are in standard deviations of single logged episodes' discounted returns",
        tables={name: groups([each for each in right if each.estimator == name]) for name in names},
        estimates=right,
    )


def groups(judged: Sequence[Judged]) -> dict[str, list[Line]]:
    """Return the tables of one estimator: all problems, and those not hopeless by overlap, size, world, actions."""
    hopeful = [each for each in judged if not each.facts.hopeless]
    apart = [each for each in judged if each.facts.hopeless]

    def by(name: str, field: str) -> list[Line]:
        of = {each.number: getattr(each.facts.settings.shape, field) for each in hopeful}
        kinds = sorted(set(of.values()))
        return [group([x for x in hopeful if of[x.number] == kind], f"{name} {kind}") for kind in kinds]

    def overlapping(low: float, high: float) -> Line:
        these = [each for each in hopeful if low <= each.facts.overlap < high]
        return group(these, f"overlap {low:g} to {min(high, 1.0):g}")

    return {
        "all": [group(hopeful, "not hopeless"), group(apart, "hopeless"), group(judged, "all")],
        "overlap": [overlapping(*edges) for edges in pairwise((*OVERLAP_EDGES, np.inf))],
        "rows": by("rows", "rows"),
        "world": by("world", "world"),
        "actions": by("actions", "action_dim"),
    }


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


class Verdicts(Record, tag="kmifqe.verdicts/2", kw_only=True):
    """What verdicts are worth: of estimates called trustworthy, how many have the truth in their interval."""

    problems: int
    large_error: str
    reported: list[Line]
    calibrated_on: list[Line]
    by_estimator: dict[str, list[Line]]
    estimates: list[Judged]


def verdicts(judged: Sequence[Judged], preset: str) -> Verdicts:
    """Return what the study of verdicts found: on problems with odd seeds, and on the even ones besides."""
    reported = [each for each in judged if each.reported]
    names = dict.fromkeys(each.estimator for each in judged)
    return Verdicts(
        preset=preset,
        **made_here(),
        problems=len({each.number for each in judged}),
        large_error=f"more than {LARGE:g} standard deviations of the discounted returns of logged episodes",
        reported=confusion(reported),
        calibrated_on=confusion([each for each in judged if not each.reported]),
        by_estimator={name: confusion([x for x in reported if x.estimator == name]) for name in names},
        estimates=list(judged),
    )


def confusion(judged: Sequence[Judged]) -> list[Line]:
    """Return one line per verdict: how many, with the truth inside, with large errors, hopeless, misled.

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
                "large_errors": sum(each.large for each in these),
                "median_scaled_error": float(np.median(errors)) if errors else None,
                "hopeless": sum(each.facts.hopeless for each in these),
                "misled": sum(each.misled and METHODS[each.estimator].needs_density for each in these),
            }
        )
    return lines
