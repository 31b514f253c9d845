"""The study of planted faults: of wrong answers, how many are trusted, and which check names the fault.

Every fault is planted in the logs of several linear-quadratic worlds, whose values are known in closed form, and each
log is evaluated by every estimator of `runs`. An answer is wrong if the truth lies outside the interval that users
are shown, and further from V̂ than WRONG of itself. "Before" is the verdict on the same records without `NEW`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kmifqe.cluster import Cluster
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, FQEConfig, KMIFQEConfig, make_fqe, make_kmifqe
from kmifqe.experiments import planted
from kmifqe.experiments.context import fit_run
from kmifqe.experiments.drive import make_records
from kmifqe.experiments.presets import Run
from kmifqe.experiments.records import Record, made_here, read_record
from kmifqe.io.logs.fault_signs import LogFaults
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.report.watch import Watch
from kmifqe.trust.checks import measure, restored
from kmifqe.trust.interval import interval_of
from kmifqe.trust.verdict import Word, judge_run
from kmifqe.worlds.lqr import LQR, spectral_radius

POINTS = 20  # of a stored trajectory
WRONG = 0.02  # of |V|: a smaller error harms nobody, wherever the interval ends
OFFSET = 1e8  # of the states, whose standard deviation is about 1
UNBOUNDED = -1e30  # stands for a value of minus infinity, which JSON cannot hold
# The checks whose worth the study measures. `time_limit` is older, and saw a limit only where all its ends are false.
NEW = (
    *("row_order", "misplaced_rows", "lost_digits", "copied_rows"),
    *("reset_states", "reward_shift", "unexplained_ends"),
)


@dataclass(frozen=True)
class Planted:
    """A sound or faulty problem of one world."""

    problem: Problem
    truth: float


@dataclass(frozen=True)
class Fault:
    """A fault, how it is planted in a log of a world, and the checks that name it."""

    name: str
    plant: Callable[[LQR, Transitions], Planted]
    named_by: tuple[str, ...]  # none: the problem is sound, or no check need find it


def _of_log(change: Callable[[Transitions], Transitions]) -> Callable[[LQR, Transitions], Planted]:
    """Return what plants a fault that changes the log alone."""
    return lambda world, log: Planted(planted.problem_of(world, change(log)), world.value)


def _wrong_density(width: float = 1.0, shift: float = 0.0) -> Callable[[LQR, Transitions], Planted]:
    """Return what tells the estimators a density that is `width` times as wide and moved by `shift` of its width."""

    def plant(world: LQR, log: Transitions) -> Planted:
        right = world.behavior
        told = planted.Shifted(right.gain, width * right.std, shift)
        return Planted(planted.problem_of(world, log, told=told), world.value)

    return plant


def _far_target(world: LQR, log: Transitions) -> Planted:
    """Return the problem of a target far outside the log; where it makes the world unstable, V is UNBOUNDED."""
    gain = world.gain + 8.0 * np.sign(world.gain)
    loop = spectral_radius(world.F - world.B @ gain)
    stable = world.gamma * loop**2 < 1.0
    truth = replace(world, gain=gain).value if stable else UNBOUNDED
    return Planted(planted.problem_of(world, log, gain=gain), truth)


def _offset(world: LQR, log: Transitions) -> Planted:
    """Return the problem of states with an offset that both policies know and subtract."""
    problem = Problem.build(
        planted.offset_log(log, OFFSET), _Beside(world.policy), _Beside(world.behavior), world.gamma
    )
    return Planted(problem, world.value)


@dataclass(frozen=True, eq=False)
class _Beside:
    """A policy or a density of states to which OFFSET was added."""

    of: Any

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return np.asarray(self.of(np.asarray(states, np.float64) - OFFSET))

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.asarray(self.of.log_prob(np.asarray(states, np.float64) - OFFSET, actions))


FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("none", _of_log(lambda log: log), ()),
        Fault("rows shuffled inside episodes", _of_log(planted.shuffled_log), ("row_order",)),
        Fault("a fifth of the episodes shuffled", _of_log(planted.partly_shuffled_log), ("misplaced_rows",)),
        Fault("all timeouts marked terminal", _of_log(planted.ended_log), ("time_limit",)),
        Fault(
            "nine tenths of the timeouts marked terminal",
            _of_log(partial(planted.ended_log, share=0.9)),
            ("time_limit",),
        ),
        Fault(
            "half of the timeouts marked terminal",
            _of_log(partial(planted.ended_log, share=0.5)),
            ("time_limit",),
        ),
        Fault(
            "random interruptions marked terminal", _of_log(planted.interrupted_log), ("unexplained_ends",)
        ),
        Fault(
            "the next episode's first state at cuts",
            _of_log(planted.reset_log),
            ("reset_states",),
        ),
        Fault("every row doubled", _of_log(planted.doubled_log), ("copied_rows",)),
        Fault("the log appended to itself", _of_log(planted.appended_log), ("copied_rows",)),
        Fault("four episodes copied fifty times", _of_log(planted.copied_log), ("copied_rows", "episodes")),
        Fault("the reward's level shifted halfway", _of_log(planted.reward_shift_log), ("reward_shift",)),
        Fault("states offset by 1e8", _offset, ("lost_digits",)),
        Fault("actions clipped", _of_log(partial(planted.clipped_log, share=0.05)), ("clipped_actions",)),
        Fault("density's mean shifted", _wrong_density(shift=-0.6), ("density_fit", "mean_weight")),
        Fault("density too wide", _wrong_density(width=1.6), ("density_fit", "mean_weight")),
        Fault("target far outside the log", _far_target, ("distance", "rare_actions", "nearby_rows")),
    )
}


@dataclass(frozen=True)
class FaultsPreset:
    """Which worlds and faults, and how large the fits are."""

    name: str
    worlds: tuple[tuple[int, int], ...]  # seed, action dimensions
    faults: tuple[str, ...]
    seeds: int  # each with episode weights of its own
    steps: int
    gamma: float = 0.8
    episodes: int = 150
    length: int = 20

    def items(self) -> tuple[tuple[int, int, str], ...]:
        """Return every problem: the world's seed, its action dimensions and the planted fault."""
        return tuple((seed, d, fault) for fault in self.faults for seed, d in self.worlds)

    def build(self, number: int) -> Planted:
        """Return the problem of a number."""
        seed, d, fault = self.items()[number]
        world = planted.world_of(seed, d, gamma=self.gamma)
        return FAULTS[fault].plant(world, planted.log_of(world, seed, self.episodes, self.length))


def runs(preset: FaultsPreset) -> tuple[Run, ...]:
    """Return the estimators that every problem is evaluated by, with their steps."""
    kernel = KMIFQEConfig(
        hidden=24,
        batch=128,
        learning_rate=1e-2,
        decay_steps=preset.steps,
        target_period=max(1, preset.steps // 40),  # 40 copies: at γ = 0.8 all but 0.01 % of the value arrives
        clip=(1e-3, 20.0),
    )
    plain = FQEConfig(hidden=24, batch=128, learning_rate=5e-3, tau=0.03, inputs="standardized")
    return Run(make_kmifqe(kernel), preset.steps), Run(make_fqe(plain), preset.steps)


PRESETS = {
    "smoke": FaultsPreset(
        "smoke",
        worlds=((31, 1),),
        faults=("none", "rows shuffled inside episodes", "half of the timeouts marked terminal"),
        seeds=4,
        steps=200,
    ),
    "full": FaultsPreset(
        "full",
        worlds=((201, 1), (202, 2), (203, 1), (204, 2), (205, 1), (206, 2)),
        faults=tuple(FAULTS),
        seeds=8,
        steps=900,
    ),
}


def preset_named(name: str) -> FaultsPreset:
    """Return the preset; refuse a name that is none."""
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


class FaultRecord(Record, tag="kmifqe.fault-run/1", kw_only=True):
    """One world with one fault planted, its truth, and every estimate of it with what was measured."""

    number: int
    world: int
    fault: str
    truth: float
    estimates: list[Estimate]


def run_missing(
    preset: FaultsPreset,
    directory: Path,
    say: Callable[[str], None] = lambda line: None,
    cluster: Cluster | None = None,
    watch: Watch | None = None,
) -> list[FaultRecord]:
    """Run the problems that have no record yet; return all records in the order of the problems.

    Args:
        preset: which worlds and faults, and how large the fits are.
        directory: of the records; made if it is missing.
        say: is given a line for every problem that was run; default: nobody is told.
        cluster: a Ray cluster that runs them; None, the default, for this process.
        watch: hears how far a cluster is; None for silence.
    """
    directory.mkdir(parents=True, exist_ok=True)
    items = preset.items()
    paths = [directory / f"faults-{preset.name}-{number:04d}.json" for number in range(len(items))]
    make_records(
        {
            path: (
                f"{number + 1} of {len(items)}: {fault}, world {seed}",
                partial(run_problem, preset, number),
            )
            for number, (path, (seed, _, fault)) in enumerate(zip(paths, items, strict=True))
            if not path.exists()
        },
        say,
        cluster,
        watch,
    )
    records = [read_record(path, FaultRecord) for path in paths]
    for record in records:
        record.estimates = [restored(estimate) for estimate in record.estimates]
    return records


def run_problem(preset: FaultsPreset, number: int) -> FaultRecord:
    """Return the record of one problem: its truth, and what every estimator said of it."""
    seed, _, fault = preset.items()[number]
    built = preset.build(number)
    estimates, problem = [], built.problem
    for run in runs(preset):
        every = -(-run.steps // POINTS)
        estimate, problem = fit_run(problem, run, seeds=preset.seeds, bootstrap=True, record_every=every)
        found = measure(run.estimator, estimate, problem)
        estimates.append(replace(estimate, measurements=found, final_state=None))
    return FaultRecord(
        preset=preset.name,
        **made_here(),
        number=number,
        world=seed,
        fault=fault,
        truth=built.truth,
        estimates=estimates,
    )


class JudgedFault(msgspec.Struct, kw_only=True):
    """One estimate of a log with a planted fault beside the truth, with its verdict before and after."""

    world: int
    fault: str
    estimator: str
    truth: float
    value: float
    interval: tuple[float, float] | None
    before: Word
    after: Word
    against: list[str]  # checks that speak against it, the weightiest first
    named: bool  # whether a check that names the fault is among them

    @property
    def error(self) -> float:
        """|V̂ − V| as a share of |V|; infinite where there is no value."""
        error = abs(self.value - self.truth) / max(abs(self.truth), 1e-12)
        return error if np.isfinite(error) else np.inf

    @property
    def wrong(self) -> bool:
        """Whether the truth lies outside the interval that users are shown, and not beside V̂."""
        inside = self.interval is not None and self.interval[0] <= self.truth <= self.interval[1]
        return not inside and self.error > WRONG


def judge(records: Iterable[FaultRecord]) -> list[JudgedFault]:
    """Return every estimate of the records, judged with the thresholds in force, with and without the new checks."""
    judged = []
    for record in records:
        after, before = judge_run(record.estimates), judge_run([without_new(e) for e in record.estimates])
        for estimate in record.estimates:
            shown = interval_of(estimate)
            verdict = after.verdicts[estimate.estimator]
            judged.append(
                JudgedFault(
                    world=record.world,
                    fault=record.fault,
                    estimator=estimate.estimator,
                    truth=record.truth,
                    value=estimate.value,
                    interval=None if shown is None else (shown.low, shown.high),
                    before=before.verdicts[estimate.estimator].word,
                    after=verdict.word,
                    against=list(verdict.checks),
                    named=bool({*FAULTS[record.fault].named_by} & {*verdict.checks}),
                )
            )
    return judged


def without_new(estimate: Estimate) -> Estimate:
    """Return the estimate as if nobody had looked for the faults that the checks named in NEW find."""
    facts = estimate.measurements.log
    faults: LogFaults | None = facts.faults
    if faults is not None:
        all_ended = faults.spike_is_longest and faults.spike_ended == faults.spike_episodes
        spike = {name: getattr(faults, name) for name in ("spike_length", "spike_episodes", "spike_ended")}
        faults = msgspec.structs.replace(
            faults,
            **(spike if all_ended else dict.fromkeys(spike, 0)),
            ends_unexplained=None,
            reset_cuts=0,
            misplaced=0,
            order=None,
            repeated_rows=0.0,
            copied_rows=0.0,
            distinct_episodes=facts.rows.episodes,
            reward_shift=0.0,
            coarse_states=[],
            coarse_actions=[],
            coarse_rewards=False,
            coarse_share=0.0,
        )
    log = msgspec.structs.replace(facts, faults=faults)
    return replace(estimate, measurements=msgspec.structs.replace(estimate.measurements, log=log))


class Faults(Record, tag="kmifqe.faults/1", kw_only=True):
    """What the checks of a log are worth: of wrong answers to faulty logs, how many are trusted."""

    command: list[str]
    wrong: str  # what counts as wrong
    new_checks: list[str]
    lines: list[dict[str, Any]]  # one per fault, and their sum over all faults
    estimates: list[JudgedFault]


def summary(judged: Sequence[JudgedFault], preset: str, command: Sequence[str]) -> Faults:
    """Return what the study found.

    `judged` is every estimate, `preset` the study's preset, and `command` the arguments it was called with.
    """
    names = dict.fromkeys(each.fault for each in judged)
    faulty = [each for each in judged if FAULTS[each.fault].named_by]
    return Faults(
        preset=preset,
        **made_here(),
        command=list(command),
        wrong="the truth lies outside the 95 % interval, and further from the value than "
        f"{WRONG:.0%} of the truth",
        new_checks=list(NEW),
        lines=[
            *(line([each for each in judged if each.fault == name], name) for name in names),
            line(faulty, "all faults"),
        ],
        estimates=list(judged),
    )


def line(judged: Sequence[JudgedFault], name: str) -> dict[str, Any]:
    """Return how many of the estimates are wrong, how many of those are trusted, and which checks speak up.

    `judged` are the estimates, and `name` is what the line is called.
    """
    wrong = [each for each in judged if each.wrong]
    known = [each.error for each in wrong if np.isfinite(each.error)]
    return {
        "fault": name,
        "estimates": len(judged),
        "wrong": len(wrong),
        "trusted_before": sum(each.before == "trustworthy" for each in wrong),
        "trusted": sum(each.after == "trustworthy" for each in wrong),
        "named": sum(each.named for each in wrong),
        "right_trusted_before": sum(each.before == "trustworthy" for each in judged if not each.wrong),
        "right_trusted": sum(each.after == "trustworthy" for each in judged if not each.wrong),
        "worst_error": max(known, default=None),
        "checks": dict(Counter(check for each in wrong for check in each.against).most_common(6)),
    }
