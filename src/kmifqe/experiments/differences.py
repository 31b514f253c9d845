"""The study of paired differences: how often their intervals hold the truth, and how many pairs they tell apart.

Every problem is a log and a few policies whose true values are known, on linear-quadratic worlds in closed form and
on Pendulum by many rollouts. A pair is told apart by unpaired intervals where the difference exceeds the root of the
sum of both squared half-widths, which is what two intervals made one by one allow to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np

from kmifqe.cluster import Cluster
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate
from kmifqe.experiments.candidates import perturbed, scaled
from kmifqe.experiments.drive import make_records
from kmifqe.experiments.problems_base import Half
from kmifqe.experiments.problems_family import (
    SHAPES,
    TRUTH_EPISODES,
    LqrProblem,
    PendulumProblem,
    Shape,
    family,
)
from kmifqe.experiments.records import Record, made_here, read_record
from kmifqe.experiments.study import part_of
from kmifqe.io.policies.actor import Actor
from kmifqe.mdp.ask import Behavior, Policy
from kmifqe.mdp.transitions import Transitions
from kmifqe.ranking import rank
from kmifqe.report.ranking import Ranking
from kmifqe.report.watch import Watch
from kmifqe.trust.ranking import actions_of, least_error, moves_of
from kmifqe.worlds.lqr import LinearPolicy
from kmifqe.worlds.pendulum import true_value
from kmifqe.worlds.pendulum_policies import load_pendulum_actors

LEVEL = 0.9
STEPS_TO_BEHAVIOR = (0.0, 0.5, 1.0)  # of the way from the target's gain to the behaviour's
BEYOND = 0.6  # of a random direction as long as the target's own gain, for one policy more


@dataclass(frozen=True)
class DifferencesPreset:
    """Which problems, and how they are fitted."""

    name: str
    lqr: tuple[Shape, ...]
    pendulum: tuple[Shape, ...]
    per_shape: int
    seeds: int
    estimators: tuple[str, ...] = ("kmifqe", "fqe")
    settings: tuple[str, ...] = ()
    steps: int | None = None
    truth_episodes: int = TRUTH_EPISODES
    family_seed: int = 31  # no other study has problems of this seed


PRESETS = {
    "smoke": DifferencesPreset(
        "smoke",
        lqr=SHAPES[:1],
        pendulum=(),
        per_shape=1,
        seeds=3,
        estimators=("fqe",),
        settings=("hidden=16", "batch=64"),
        steps=200,
        truth_episodes=20,
    ),
    "small": DifferencesPreset(  # two cores: KMIFQE takes five times as long
        "small", lqr=SHAPES[1:4], pendulum=SHAPES[7:10], per_shape=12, seeds=6, estimators=("fqe",)
    ),
    "full": DifferencesPreset("full", lqr=SHAPES[:7], pendulum=SHAPES[7:10], per_shape=8, seeds=10),
}


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of policies: the true difference of their values, and what was said of it."""

    truth: float
    estimate: float
    low: float  # of the paired interval
    high: float
    simultaneous_low: float
    simultaneous_high: float
    unpaired: float  # half the width of the unpaired interval

    @property
    def is_covered(self) -> bool:
        """Whether the paired interval holds the true difference."""
        return self.low <= self.truth <= self.high

    @property
    def is_covered_unpaired(self) -> bool:
        """Whether the unpaired interval does."""
        return abs(self.estimate - self.truth) <= self.unpaired


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the intervals of one problem are made from, so that another rule can be tried without another fit."""

    fits: list[tuple[str, str]]  # policy and estimator of every fit
    truths: list[float]  # of the policy of every fit
    values: list[list[float | None]]  # V̂ of every network, by fit
    least: list[float]  # the error that is left where networks agree, by fit (`trust.ranking.least_error`)
    log: list[list[float]]  # covariance over logs like this one, fit by fit; empty where it is not known
    unsolved: list[float | None]  # `ChanceFacts.unsolved`, by fit
    actions: list[list[float]]  # what the policy of every fit does at some states (`Measurements.actions`)
    episodes: int


class DifferencesProblem(Record, tag="kmifqe.differences-problem/3", kw_only=True):
    """The pairs of one problem, by what they were judged by: each estimator, or all of them together."""

    number: int
    kind: str
    description: str
    pairs: dict[str, list[Pair]]
    evidence: Evidence
    half: Half = (
        "report"  # of the problems: one half is for choosing a rule, the other for reporting what it does
    )


class Differences(Record, tag="kmifqe.differences/1", kw_only=True):
    """What the study comes to: a line for each kind of problem and each estimator."""

    level: float
    seeds: int
    lines: list[dict[str, Any]]


def preset_named(name: str) -> DifferencesPreset:
    """Return the preset; refuse a name that is none."""
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


def run_differences(
    preset: DifferencesPreset,
    folder: Path,
    shard: tuple[int, int] | None = (1, 1),
    say: Callable[[str], None] = lambda line: None,
    cluster: Cluster | None = None,
    watch: Watch | None = None,
) -> Differences:
    """Run the problems of `preset` that have no record in `folder`, and return what all records there come to.

    `shard` is (I, N) to run only the I-th of N parts, by default everything; None runs nothing. `say` is given a
    line for every problem that was run; by default nobody is told. `cluster` is a Ray cluster that runs them, None,
    the default, for this process; `watch` hears how far it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    problems = family(preset.per_shape, (*preset.lqr, *preset.pendulum), preset.family_seed)
    paths = [folder / f"{preset.name}-{number:03d}.json" for number in range(len(problems))]
    part = () if shard is None else part_of(problems, range(len(problems)), shard)
    make_records(
        {
            paths[number]: (
                f"{number + 1} of {len(problems)}: {problems[number].description}",
                partial(_run, number, problems[number], preset),
            )
            for number in part
            if not paths[number].exists()
        },
        say,
        cluster,
        watch,
    )
    records = [read_record(path, DifferencesProblem) for path in paths if path.exists()]
    return Differences(
        preset=preset.name, **made_here(), level=LEVEL, seeds=preset.seeds, lines=summary(records)
    )


def _run(number: int, problem: LqrProblem | PendulumProblem, preset: DifferencesPreset) -> DifferencesProblem:
    case = _lqr_case(problem) if isinstance(problem, LqrProblem) else _pendulum_case(problem, preset)
    pairs: dict[str, list[Pair]] = {}
    heard: list[Mapping[str, Mapping[str, Estimate]]] = []
    with TemporaryDirectory() as folder:
        # All estimators together first: what each says alone is then read from the same networks.
        for judged_by in dict.fromkeys((preset.estimators, *((name,) for name in preset.estimators))):
            ranking = rank(
                case.log,
                case.policies,
                behavior=case.behavior,
                gamma=problem.gamma,
                estimators=judged_by,
                settings=preset.settings,
                steps=preset.steps,
                seeds=preset.seeds,
                rough=preset.seeds,
                minutes=math.inf,  # what is measured must not depend on the machine
                level=LEVEL,
                out=Path(folder) / "run",
                resume=True,
                watch=Watch(),
                on_estimates=heard.append,
            )
            pairs["+".join(judged_by)] = pairs_of(ranking, case.truths)
    return DifferencesProblem(
        preset=preset.name,
        **made_here(),
        number=number,
        kind=problem.kind,
        description=problem.description,
        pairs=pairs,
        evidence=evidence_of(heard[0], case.truths),
        half=problem.half,
    )


def evidence_of(estimates: Mapping[str, Mapping[str, Estimate]], truths: Mapping[str, float]) -> Evidence:
    """Return what the intervals of these `estimates` are made from, by policy and estimator, beside the `truths`."""
    fits = [(policy, name) for policy, own in estimates.items() for name in own]
    each = [estimates[policy][name] for policy, name in fits]
    moves = [found for found in map(moves_of, each) if found is not None]
    known = len(moves) == len(each)
    chances = [None if one.measurements is None else one.measurements.chance for one in each]
    return Evidence(
        fits=fits,
        truths=[truths[policy] for policy, _ in fits],
        values=[[float(x) if np.isfinite(x) else None for x in one.values] for one in each],
        least=[least_error(one) for one in each],
        log=(np.stack(moves) @ np.stack(moves).T).tolist() if known else [],
        unsolved=[None if chance is None else chance.unsolved for chance in chances],
        actions=[[] if found is None else found.tolist() for found in map(actions_of, each)],
        episodes=each[0].episodes,
    )


def pairs_of(ranking: Ranking, truths: dict[str, float]) -> list[Pair]:
    """Return every pair of ranked policies beside its true difference."""
    halves = {each.policy: 0.5 * ((each.high or 0.0) - (each.low or 0.0)) for each in ranking.ranking}
    return [
        Pair(
            truth=truths[each.better] - truths[each.worse],
            estimate=each.value,
            low=each.low,
            high=each.high,
            simultaneous_low=each.simultaneous_low,
            simultaneous_high=each.simultaneous_high,
            unpaired=math.hypot(halves[each.better], halves[each.worse]),
        )
        for each in ranking.differences
    ]


class Case(NamedTuple):
    """A log, the policies that are compared on it, and their true values."""

    log: Transitions
    behavior: Behavior
    policies: dict[str, Policy]
    truths: dict[str, float]


def _lqr_case(problem: LqrProblem) -> Case:
    world = problem.world()
    log = problem.log()
    rng = np.random.default_rng(problem.seed)
    away = rng.standard_normal(world.gain.shape)
    away *= BEYOND * np.linalg.norm(world.gain) / np.linalg.norm(away)
    gains = {
        f"towards-{share:g}": world.gain + share * (world.behavior_gain - world.gain)
        for share in STEPS_TO_BEHAVIOR
    }
    gains["aside"] = world.gain + away
    policies: dict[str, Policy] = {
        name: LinearPolicy(gain, world.action_bound) for name, gain in gains.items()
    }
    truths = {name: replace(world, gain=gain).value for name, gain in gains.items()}
    return Case(log, world.behavior, policies, truths)


def _pendulum_case(problem: PendulumProblem, preset: DifferencesPreset) -> Case:
    log, behavior = problem.log()
    truths = _pendulum_truths(problem.gamma, preset.truth_episodes)
    return Case(log, behavior, dict(_pendulum_policies()), truths)


def _pendulum_policies() -> dict[str, Actor]:
    target, mean = load_pendulum_actors()
    return {
        "target": target,
        "behavior": mean,
        "target-scaled": scaled(target, 0.5),
        "target-perturbed": perturbed(target, 0.2),
    }


@cache  # all problems of one discount have the same policies, and 20,000 rollouts take as long as a small fit
def _pendulum_truths(gamma: float, episodes: int) -> dict[str, float]:
    """Return the true value of every policy, from the same first states: differences are then known better."""
    return {
        name: true_value(0, policy, gamma, episodes).value for name, policy in _pendulum_policies().items()
    }


def summary(records: list[DifferencesProblem]) -> list[dict[str, Any]]:
    """Return for each kind of problem and each estimator how often intervals hold, and what they tell apart."""
    lines = []
    for kind in dict.fromkeys(record.kind for record in records):
        own = [record for record in records if record.kind == kind]
        for name in own[0].pairs:
            by_problem = [record.pairs[name] for record in own if record.pairs[name]]
            pairs = [pair for pairs in by_problem for pair in pairs]
            if not pairs:
                continue
            shares = np.array([np.mean([pair.is_covered for pair in pairs]) for pairs in by_problem])
            lines.append(
                {
                    "kind": kind,
                    "estimator": name,
                    "problems": len(by_problem),
                    "pairs": len(pairs),
                    "covered": float(np.mean([pair.is_covered for pair in pairs])),
                    # Pairs of one problem depend on each other: problems are the units.
                    "covered_standard_error": float(shares.std(ddof=1) / math.sqrt(len(shares)))
                    if len(shares) > 1
                    else None,
                    "covered_unpaired": float(np.mean([pair.is_covered_unpaired for pair in pairs])),
                    "all_covered": float(
                        np.mean(
                            [
                                all(p.simultaneous_low <= p.truth <= p.simultaneous_high for p in pairs)
                                for pairs in by_problem
                            ]
                        )
                    ),
                    "separated": sum(pair.low > 0.0 for pair in pairs),
                    "separated_simultaneous": sum(pair.simultaneous_low > 0.0 for pair in pairs),
                    "separated_unpaired": sum(pair.estimate > pair.unpaired for pair in pairs),
                    "wrongly_separated": sum(pair.low > 0.0 > pair.truth for pair in pairs),
                    "median_width_ratio": float(
                        np.median([0.5 * (p.high - p.low) / max(p.unpaired, 1e-300) for p in pairs])
                    ),
                }
            )
    return lines
