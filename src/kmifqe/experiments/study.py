"""The studies of intervals and verdicts: the family of problems is run once, and both are read off its records.

A record keeps what checks are made from, so that new thresholds can be tried on old records. Every problem belongs to
one of two halves: one for choosing settings and thresholds, the other for reporting what they are worth
(docs/concepts/diagnostics.md). `study_tables` counts what the records show.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from kmifqe.api import SEEDS
from kmifqe.cluster import Cluster
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, make_estimator
from kmifqe.estimators.registry import DEFAULT
from kmifqe.estimators.sizing import size_of
from kmifqe.experiments.context import fit_run
from kmifqe.experiments.drive import helpers, make_records
from kmifqe.experiments.presets import Run
from kmifqe.experiments.problems_base import Half, Part, Sources
from kmifqe.experiments.problems_family import SHAPES, AnyProblem, Facts, Shape, build, family
from kmifqe.experiments.problems_gym import TASKS, GymProblem, gym_family
from kmifqe.experiments.records import Record, made_here, read_record
from kmifqe.mdp.problem import Problem
from kmifqe.report.watch import Watch
from kmifqe.trust.checks import measure, restored

POINTS = 20  # of a stored trajectory
TOGETHER = 6.0  # most that a shard takes of one compiled program as one piece, in linear-quadratic problems
COMPILATION = 2.0  # what compiling for a piece takes, likewise
HALVES: tuple[Half, ...] = ("choose", "report")


@dataclass(frozen=True)
class StudyPreset:
    """Which problems, which estimators, and how many networks."""

    name: str
    shapes: tuple[Shape, ...]
    per_shape: int
    gym: tuple[GymProblem, ...]
    seeds: int  # each with episode weights of its own
    misled_every: int  # after every so many problems, the same with a wrong density
    family_seed: int = 0
    estimators: tuple[str, ...] = ("kmifqe", "fqe")  # names of the registry
    settings: tuple[
        str, ...
    ] = ()  # texts "field=value" that change them; none where a user's own are studied
    steps: int | None = None  # of every estimator; None: as many as a user gets

    def items(self) -> tuple[AnyProblem, ...]:
        """Return the problems, those whose estimators are told a wrong density last."""
        right: tuple[AnyProblem, ...] = (*family(self.per_shape, self.shapes, self.family_seed), *self.gym)
        misled = right[:: self.misled_every]
        return (
            *right,
            *(msgspec.structs.replace(x, told_width=0.6 if i % 2 else 1.6) for i, x in enumerate(misled)),
        )

    def runs(self, problem: Problem) -> tuple[Run, ...]:
        """Return the estimators that a problem is judged by, with their steps."""
        return default_runs(problem, self.estimators, self.settings, self.steps)


def default_runs(
    problem: Problem, names: Sequence[str], settings: Sequence[str] = (), steps: int | None = None
) -> tuple[Run, ...]:
    """Return the estimators and steps that a user who changes nothing gets for a problem.

    `problem` is what they are fitted to and `names` are those of the registry. `settings` (texts "field=value") and
    `steps` are what a preset changes about that; by default nothing.
    """
    size = size_of(problem)
    made = (make_estimator(name, DEFAULT, settings, steps, size) for name in names)
    return tuple(Run(estimator, steps or estimator.default_steps) for estimator in made)


_SMOKE_GYM = GymProblem(
    task="hopper",
    target="target",
    behavior="target",
    noise=0.5,
    transitions=600,
    truth_episodes=2,
    gamma=0.95,
    seed=1,
    half="report",
)
PRESETS = {
    "smoke": StudyPreset(
        "smoke",
        (SHAPES[0],),
        per_shape=2,
        gym=(_SMOKE_GYM,),
        seeds=3,
        misled_every=2,
        family_seed=23,  # of its two linear-quadratic problems neither has ends: one program serves both
        settings=("hidden=16", "batch=64"),
        steps=200,
    ),
    "full": StudyPreset(
        "full",
        SHAPES,
        per_shape=20,
        gym=gym_family(tuple(TASKS), truth_episodes=400, seed=21),
        seeds=SEEDS,
        misled_every=16,
        family_seed=21,  # problems of other seeds were looked at while settings were tried out
    ),
}


class ProblemRecord(Record, tag="kmifqe.trust-run/3", kw_only=True):
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


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which problems of a study are run and judged: by default all."""

    only: str | None = None  # a family of worlds (lqr, pendulum, mujoco) or one MuJoCo task
    half: Half | None = None

    @classmethod
    def of(cls, only: str | None, half: str | None) -> Selection:
        """Return the selection of a command line's `only` and `half`; refuse names that are none."""
        known = ("lqr", "pendulum", "mujoco", *TASKS)
        if only not in (None, *known):
            raise InputError(f"--only is {only!r}; expected one of {', '.join(known)}")
        found = next((each for each in HALVES if each == half), None)
        if found is None and half is not None:
            raise InputError(f"--half is {half!r}; expected one of {', '.join(HALVES)}")
        return cls(only=only, half=found)

    def holds(self, item: AnyProblem) -> bool:
        """Return whether a problem is of this selection."""
        return self.only in (None, item.family, item.kind) and self.half in (None, item.half)


EVERYTHING = Selection()


@dataclass(frozen=True)
class Study:
    """A preset's problems with the folder of their records: what is there, what can be run, what is left out."""

    preset: StudyPreset
    folder: Path
    policies: Path | None = None
    selection: Selection = EVERYTHING

    @property
    def sources(self) -> Sources:
        """Where problems take simulated data and actors from."""
        return Sources(self.folder, self.policies)

    def path(self, number: int) -> Path:
        """Return the file of a problem's record."""
        return self.folder / f"{self.preset.name}-{number:04d}.json"

    def numbers(self) -> list[int]:
        """Return the selected problems that have a record or can be run here."""
        left_out = self.left_out()
        selected = (n for n, item in enumerate(self.preset.items()) if self.selection.holds(item))
        return [number for number in selected if number not in left_out]

    def left_out(self) -> dict[int, str]:
        """Return the selected problems that have no record and cannot be run here, each with what it needs."""
        found = {}
        for number, item in enumerate(self.preset.items()):
            if self.selection.holds(item) and not self.path(number).exists():
                missing = item.missing(self.sources)
                if missing is not None:
                    found[number] = missing
        return found

    def records(self) -> list[ProblemRecord]:
        """Return the records of the selected problems that are there, in the order of the problems."""
        paths = [self.path(number) for number in self.numbers()]
        records = [read_record(path, ProblemRecord) for path in paths if path.exists()]
        for record in records:
            record.estimates = [restored(estimate) for estimate in record.estimates]
        return records


def part_of(items: Sequence[AnyProblem], numbers: Sequence[int], shard: tuple[int, int]) -> list[int]:
    """Return the numbers of a shard's problems.

    Problems of one compiled program stay together, up to a few, so that each shard compiles for few of them. Such
    pieces go one by one, the longest first, to the shard that has the least to do of their family: every shard gets
    its share of each family, however long one takes beside another.

    Args:
        items: all problems.
        numbers: those of them that are shared out.
        shard: (I, N), for the I-th of N parts.
    """
    total = sum(items[number].weight for number in numbers)
    pieces = _pieces(items, numbers, min(TOGETHER, total / shard[1]))
    lengths = [COMPILATION + sum(items[number].weight for number in piece) for piece in pieces]
    loads: dict[str, list[float]] = defaultdict(lambda: [0.0] * shard[1])
    parts: list[list[int]] = [[] for _ in range(shard[1])]
    for which in sorted(range(len(pieces)), key=lambda i: -lengths[i]):
        own = loads[items[pieces[which][0]].family]
        least = min(range(shard[1]), key=lambda i: (own[i], sum(load[i] for load in loads.values())))
        own[least] += lengths[which]
        parts[least] += pieces[which]
    return parts[shard[0] - 1]


def _pieces(items: Sequence[AnyProblem], numbers: Sequence[int], longest: float) -> list[list[int]]:
    """Return these problems in pieces: each of one compiled program, and none much longer than `longest`."""
    pieces: list[list[int]] = []
    room: dict[
        str, tuple[list[int], float]
    ] = {}  # of each program, the last piece and what still fits into it
    for number in numbers:
        program, weight = items[number].program, items[number].weight
        piece, left = room.get(program, ([], 0.0))
        if left <= 0.0:
            piece, left = [], longest
            pieces.append(piece)
        piece.append(number)
        room[program] = piece, left - weight
    return pieces


def collect_data(
    study: Study, workers: int = 1, say: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """Make the logs and truths that the selected problems take from simulators, where they are not there yet.

    Args:
        study: whose problems.
        workers: processes that make them side by side, each one file after the other; default 1.
        say: is given a line for every file that was made; default: nobody is told.
    """
    items, sources = study.preset.items(), study.sources
    jobs: dict[Path, tuple[float, AnyProblem, Part]] = {}
    for number in study.numbers():
        item = items[number]
        if not study.path(number).exists():
            for part, steps in item.parts().items():
                jobs.setdefault(item.file(part, sources), (steps, item, part))
    missing = {path: job for path, job in jobs.items() if not path.exists()}
    order = sorted(missing, key=lambda path: -missing[path][0])
    with helpers(max(1, min(workers, len(order)))) as pool:
        made = [pool.submit(_timed_make, *missing[path][1:], sources) for path in order]
        for path, done in zip(order, made):
            say(f"{path.name}: {done.result():.0f} s")
    return order


def _timed_make(item: AnyProblem, part: Part, sources: Sources) -> float:
    started = time.perf_counter()
    item.make(part, sources)
    return time.perf_counter() - started


def run_missing(
    study: Study,
    shard: tuple[int, int] = (1, 1),
    say: Callable[[str], None] = lambda line: None,
    cluster: Cluster | None = None,
    watch: Watch | None = None,
) -> list[ProblemRecord]:
    """Run the problems that have no record yet; return all records that are there, in the order of the problems.

    Args:
        study: which problems, and the folder of their records, which is made if it is missing.
        shard: (I, N) to run only the I-th of N parts; default: everything.
        say: is given a line for every problem that was run; default: nobody is told.
        cluster: a Ray cluster whose nodes all see the study's folder; None, the default, for this process.
        watch: hears how far a cluster is; None for silence.
    """
    items = study.preset.items()
    study.folder.mkdir(parents=True, exist_ok=True)
    study = replace(study, folder=study.folder.resolve())
    make_records(
        {
            study.path(number): (
                f"{number + 1} of {len(items)}: {items[number].description}",
                partial(run_problem, study, number),
            )
            for number in part_of(items, study.numbers(), shard)
            if not study.path(number).exists()
        },
        say,
        cluster,
        watch,
    )
    return study.records()


def run_problem(study: Study, number: int) -> ProblemRecord:
    """Return the record of one problem: what it is, its truth, and what every estimator said of it."""
    preset = study.preset
    built = build(preset.items()[number], study.sources)
    estimates, problem = [], built.problem
    for run in preset.runs(problem):
        every = -(-run.steps // POINTS)
        estimate, problem = fit_run(problem, run, seeds=preset.seeds, bootstrap=True, record_every=every)
        found = measure(run.estimator, estimate, problem)
        estimates.append(replace(estimate, measurements=found, final_state=None))
    return ProblemRecord(
        preset=preset.name, **made_here(), number=number, facts=built.facts, estimates=estimates
    )
