"""A benchmark of choosing among policies, after DOPE: tasks, logs of three kinds, and at least ten policies for each.

The policies are the actors that come with the package, snapshots of their training, versions that act more softly or
whose weights were perturbed, policies between two actors, and actors of others where a user has them in a folder.
True values are measured by playing. Every row is a task and a kind of log; its record has the scores of each
estimator and of the ranking that all of them make together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kmifqe.behavior import GaussianBehavior
from kmifqe.errors import InputError
from kmifqe.estimators.registry import DEFAULT
from kmifqe.experiments.candidates import Candidate, candidates
from kmifqe.experiments.context import MUJOCO, Context, Experiment
from kmifqe.experiments.policies import digest, load_shipped_actors
from kmifqe.experiments.presets import TASKS, Preset
from kmifqe.experiments.problems_gym import Blend
from kmifqe.experiments.records import kept, settings_hash
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.policies.actor import Actor, load_npz_actor
from kmifqe.ranking import rank
from kmifqe.report.ranking import Ranking
from kmifqe.report.ranking_judged import TOGETHER
from kmifqe.worlds.gym_truth import measure_truth
from kmifqe.worlds.pendulum_policies import load_pendulum_actors

# The rankings of a row, each with a record of its own: what "auto" averages, whose two estimators are scored too, and
# SR-DICE alone.
METHODS = {"auto": ("auto",), "sr-dice": ("sr-dice",)}
PENDULUM = "pendulum"
ENVS = {PENDULUM: "Pendulum-v1"} | {task: TASKS[task] for task in ("hopper", "halfcheetah", "walker2d")}
GAMMAS = {PENDULUM: 0.95}  # of the others 0.99
SEED = 0
TRUTH_SEED = 1_000  # not the log's: the truth is of the population, not of the logged first states


@dataclass(frozen=True)
class LogKind:
    """Who made a log: an actor with noise around it."""

    actor: str  # "target" or "behavior"
    noise: float  # standard deviation, in half action ranges
    uniform_share: float = 0.0


KINDS = {
    "medium": LogKind("behavior", 0.3),  # a worse controller, as the paper's
    "expert": LogKind("target", 0.3),  # the best policy's own log: others act differently
    "wide": LogKind("behavior", 0.5, 0.2),  # much noise: every action is tried, and episodes are short
}


@dataclass(frozen=True)
class Size:
    """How large the benchmark is in a preset."""

    rows: int  # of a log
    truth_episodes: int
    seeds: int
    rough: int
    tasks: tuple[str, ...] = tuple(ENVS)
    kinds: tuple[str, ...] = tuple(KINDS)
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: METHODS)  # estimators by method
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by method
    steps: int | None = None  # of every estimator; None: as many as a user gets


SMALLER_SR_DICE = (
    "hidden=128",
    "features=128",
    "ratio_batch=1024",
    "learning_rate=0.001",
    "tau=0.02",
    "stages=3000,10000,25000",
)
SIZES = {
    "smoke": Size(
        rows=400,
        truth_episodes=2,
        seeds=2,
        rough=2,
        tasks=(PENDULUM,),
        kinds=("medium",),
        methods={"auto": ("fqe",)},
        settings={"auto": ("hidden=8", "batch=16")},
        steps=20,
    ),
    "small": Size(rows=20_000, truth_episodes=50, seeds=4, rough=4, methods={"auto": ("auto",)}, steps=4_000),
    # Some minutes of a GPU with a process for every row: as many steps as a user gets, and as many networks as every
    # policy gets at first. SR-DICE has a network as large as the others', and a tenth of the paper's steps.
    "fast": Size(rows=40_000, truth_episodes=100, seeds=4, rough=4, settings={"sr-dice": SMALLER_SR_DICE}),
    "paper": Size(rows=1_000_000, truth_episodes=1_000, seeds=10, rough=10),
}


def ranking_rows(preset: Preset) -> tuple[str, ...]:
    """Return the rows of a preset: every task with every kind of log."""
    size = SIZES[preset.name]
    return tuple(f"{task}-{kind}" for task in size.tasks for kind in size.kinds)


def policies_of(task: str, folder: Path | None = None) -> dict[str, Candidate]:
    """Return the policies of a task by name; `folder` may hold actors that others trained."""
    if task == PENDULUM:
        target, behavior = load_pendulum_actors()
        found = candidates(target, behavior)
    else:
        actors = load_shipped_actors(task)
        target = actors.target
        found = candidates(
            target, actors.behavior, actors.replay[:-1]
        )  # the last one is the behaviour's mean
    pattern = f"*-{ENVS[task].rpartition('-')[0]}-v[0-9].npz"
    for path in sorted(folder.glob(pattern)) if folder is not None else ():
        actor = load_npz_actor(path)
        if (actor.state_dim, actor.action_dim) == (target.state_dim, target.action_dim):
            found[path.stem.split("-")[0]] = actor
    return found


def _run(row: str, context: Context) -> None:
    """Rank the policies of a row's task from a log of its kind, and keep the scores: a record for every method."""
    size = SIZES[context.preset.name]
    for method in size.methods:
        _run_method(row, method, size, context)


def _run_method(row: str, method: str, size: Size, context: Context) -> None:
    task, kind = _parts(row)
    policies = policies_of(task, context.policies)
    texts = size.settings.get(method, ())
    settings = {
        "env": ENVS[task],
        "gamma": _gamma(task),
        "log": vars(KINDS[kind]),
        "rows": size.rows,
        "seed": SEED,
        "policies": {name: _digest(policy) for name, policy in policies.items()},
        "truth_episodes": size.truth_episodes,
        "estimators": list(size.methods[method]),
        "preset": DEFAULT,
        "settings": list(texts),
        "steps": size.steps,
        "seeds": size.seeds,
        "rough": size.rough,
    }
    place = context.place("ranking", row, method)
    if not context.wants(place, settings):
        return
    truths = {name: _truth(task, name, context) for name in policies}
    actor = _behavior_actor(task, kind)
    chosen = KINDS[kind]
    density = GaussianBehavior(actor, chosen.noise, actor.low, actor.high, chosen.uniform_share)
    folder = context.work / "ranking"
    folder.mkdir(parents=True, exist_ok=True)
    log = load_dataset(_log_file(row, context))
    started = time.perf_counter()
    ranking = rank(
        log,
        dict(policies),
        behavior=density,
        gamma=_gamma(task),
        estimators=size.methods[method],
        settings=texts,
        steps=size.steps,
        seeds=size.seeds,
        rough=size.rough,
        minutes=math.inf,  # what is measured must not depend on the machine
        level=0.9,
        truth=truths,
        out=folder / f"{row}-{method}-{settings_hash(settings)}",
        resume=context.resume,
        force=not context.resume,
        watch=context.watch,
        stop_asked=context.stop_asked,
    )
    context.keep(place, settings, time.perf_counter() - started, packages=MUJOCO, **_fields(ranking, method))


def _jobs(row: str, context: Context) -> dict[str, Callable[[], object]]:
    """Return what the row needs of the processor alone, by name: its log, and the truth of every policy."""
    task, _ = _parts(row)
    jobs: dict[str, Callable[[], object]] = {
        f"truth of {name} on {task}": partial(_truth, task, name, context)
        for name in policies_of(task, context.policies)
    }
    return jobs | {f"log {row}": partial(_log_file, row, context)}


def _prepare(row: str, context: Context) -> None:
    for job in _jobs(row, context).values():
        job()


RANKING = Experiment("ranking", ranking_rows, _run, tuple(METHODS), _prepare, jobs=_jobs)


def _parts(row: str) -> tuple[str, str]:
    task, _, kind = row.partition("-")
    if task not in ENVS or kind not in KINDS:
        raise InputError(
            f"row {row!r} is unknown; expected TASK-KIND of {', '.join(ENVS)} and {', '.join(KINDS)}"
        )
    return task, kind


def _gamma(task: str) -> float:
    return GAMMAS.get(task, 0.99)


def _behavior_actor(task: str, kind: str) -> Actor:
    found = policies_of(task)[KINDS[kind].actor]
    assert isinstance(found, Actor)
    return found


def _log_file(row: str, context: Context) -> Path:
    """Return the row's log, after collecting it if it is not there."""
    from kmifqe.worlds.gym_collect import collect

    task, kind = _parts(row)
    size, chosen, actor = SIZES[context.preset.name], KINDS[kind], _behavior_actor(task, kind)
    settings = {"env": ENVS[task], "actor": digest(actor), "rows": size.rows, "seed": SEED, **vars(chosen)}
    path = context.work / "logs" / f"ranking-{row}-{settings_hash(settings)}.hdf5"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        collect(
            ENVS[task],
            actor,
            path,
            transitions=size.rows,
            noise=chosen.noise,
            uniform_share=chosen.uniform_share,
            seed=SEED,
            workers=context.workers,
            overwrite=True,  # another process may have collected the same rows meanwhile
        )
    return path


def _truth(task: str, name: str, context: Context) -> float:
    """Return the true value of a policy of the task, measured once and kept."""
    policy = policies_of(task, context.policies)[name]
    episodes, gamma = SIZES[context.preset.name].truth_episodes, _gamma(task)
    settings = {
        "env": ENVS[task],
        "policy": _digest(policy),
        "gamma": gamma,
        "episodes": episodes,
        "seed": TRUTH_SEED,
    }

    def play() -> float:
        truth = measure_truth(
            ENVS[task],
            policy,
            episodes=episodes,
            gamma=gamma,
            seed=TRUTH_SEED,
            workers=context.workers,
        )
        return truth.value

    return kept(context.work / "truths", f"ranking-{task}", settings, float, play)


def _digest(policy: Candidate) -> str:
    if isinstance(policy, Blend):
        return f"{policy.share:g} from {digest(policy.start)} to {digest(policy.end)}"
    return digest(policy)


def _fields(ranking: Ranking, method: str) -> dict[str, Any]:
    """Return what the record keeps of a ranking; what all estimators say together is called by the method."""
    separated = [each for each in ranking.differences if each.separated]
    truths = {each.policy: each.truth or 0.0 for each in ranking.policies}
    return {
        "policies": {
            each.policy: {
                "truth": each.truth,
                "value": each.value,
                "low": each.low,
                "high": each.high,
                "verdict": each.verdict,
                "p_best": each.p_best,
                "networks": each.networks,
                "estimates": {name: own.value for name, own in each.estimates.items()},
                "verdicts": {name: own.verdict for name, own in each.estimates.items()},
            }
            for each in ranking.policies
        },
        "not_ranked": [each.policy for each in ranking.not_ranked],
        "scores": {method if name == TOGETHER else name: own for name, own in ranking.scores.items()},
        "pairs": len(ranking.differences),
        "separated": len(separated),
        "wrongly_separated": sum(truths[each.better] < truths[each.worse] for each in separated),
    }
