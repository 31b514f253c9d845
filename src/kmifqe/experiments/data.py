"""The logs of Table 1's rows with their truths: collected once into the work folder, then read as problems."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.behavior import GaussianBehavior
from kmifqe.errors import InputError
from kmifqe.experiments.context import MUJOCO, Context, Experiment
from kmifqe.experiments.pendulum import logged_value
from kmifqe.experiments.policies import Actors, digest, load_actors
from kmifqe.experiments.presets import Row, d4rl_file, file_rows, row_named, table_rows
from kmifqe.experiments.records import PolicyValue, kept
from kmifqe.io.files import whole_folder
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.policies.actor import Actor, load_d4rl_actor
from kmifqe.io.serialize import read_json
from kmifqe.mdp.ask import Behavior, Policy
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.gym_collect import Draw
from kmifqe.worlds.gym_envs import describe_task
from kmifqe.worlds.pendulum import collect, true_value
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors, with_dummies

METHOD = "log"
SEED = 0
TRUTH_SEED = 1_000  # not the log's: the truth is of the population, not of the logged first states
NOISE = 0.3  # of the known Gaussian behaviours, in half action ranges: the paper's
DUMMIES = 1  # of the Pendulum row
MOST_ENVS = 64
PRE_TANH_STD = 0.3  # of the stochastic policies: near what a trained SAC policy keeps
PRE_TANH_LIMIT = 2.0  # of their mean: a TD3 actor saturates, a stochastic policy of D4RL's does not
EXPLORATION = 0.1  # of half the action range: TD3's
PLAYED = {"target": "target", "behavior_mean": "behaviour's mean", "behavior": "behaviour"}


def stochastic_mean(actor: Actor) -> Actor:
    """Return the mean policy of the stochastic one around a TD3 actor: tanh of its limited last layer."""
    if actor.output != "tanh":
        raise InputError(f"{actor.name}: output is {actor.output!r}; expected tanh, to put noise before it")
    return replace(actor, mean_clip=PRE_TANH_LIMIT)


def squashed_gaussian(actor: Actor, std: float = PRE_TANH_STD) -> Draw:
    """Return what draws a = tanh(z + std·ε), scaled to the box, z the actor's last layer within its limit."""
    mean = stochastic_mean(actor)
    unbounded = np.full(actor.action_dim, np.inf, np.float32)
    last_layer = replace(actor, output="clip", mean_clip=None, low=-unbounded, high=unbounded)

    def draw(rng: np.random.Generator, states: np.ndarray) -> tuple[np.ndarray, None]:
        z = np.clip(last_layer(states), -PRE_TANH_LIMIT, PRE_TANH_LIMIT)
        z = z + std * rng.standard_normal(z.shape)
        actions = mean.low + 0.5 * (np.tanh(z) + 1.0) * (mean.high - mean.low)
        return actions.astype(np.float32), None

    return draw


def exploring(actor: Actor, std: float = EXPLORATION) -> Draw:
    """Return what draws as TD3 explores: Gaussian noise on the action, clipped to the box, and stored so."""
    half = 0.5 * (actor.high - actor.low)

    def draw(rng: np.random.Generator, states: np.ndarray) -> tuple[np.ndarray, None]:
        actions = actor(states) + std * half * rng.standard_normal((len(states), actor.action_dim))
        return np.clip(actions, actor.low, actor.high).astype(np.float32), None

    return draw


@dataclass(frozen=True)
class Log:
    """A row's data and what is known about it."""

    transitions: Transitions
    target: Policy
    behavior: Behavior | None  # None: unknown, to be fitted
    policies: dict[str, PolicyValue]  # "target" is always there
    logged_truth: float | None  # V of the logged first states, where the dynamics make it exact

    @property
    def truths(self) -> dict[str, float | None]:
        """What the estimates are compared with."""
        return {"population": self.policies["target"].V, "logged_first_states": self.logged_truth}


def prepare_log(row: str, context: Context) -> None:
    """Do what only the processor is needed for: collect the row's log and play its policies."""
    found = row_named(row)
    if found.recipe != "pendulum":
        _log_folder(found, context)
        _gym_values(found, context)


def _run(row: str, context: Context) -> None:
    """Collect the row's log and truths, and keep what they look like as a record."""
    settings, place = data_settings(row_named(row), context), context.place("data", row, METHOD)
    if not context.wants(place, settings):
        return
    started = time.perf_counter()
    log = read_log(row, context)
    t = log.transitions
    looks = {
        "rows": len(t),
        "episodes": t.n_episodes,
        "terminated": int(t.terminated.sum()),
        "mean_reward": float(t.rewards.mean(dtype=np.float64)),
        "mean_episode_return": float(np.bincount(t.episode, t.rewards).mean()),
    }
    seconds = time.perf_counter() - started
    found = {"log": looks, "policies": log.policies, "truth": log.truths}
    context.keep(place, settings, seconds, packages=MUJOCO, **found)


DATA = Experiment("data", table_rows, _run, (METHOD,), prepare_log, file_rows)


def data_settings(row: Row, context: Context) -> dict[str, Any]:
    """Return everything that decides a row's data and truth, as JSON can hold it."""
    preset = context.preset
    if row.recipe == "file":
        file, expert = _files(row, context)
        return {
            "file": file.name,
            "bytes": file.stat().st_size,
            "target": digest(load_d4rl_actor(expert)),
            "truth_episodes": preset.truth_episodes,
        }
    shared = {"rows": row.logged(preset), "seed": SEED, "gamma": row.gamma}
    if row.recipe == "pendulum":
        target, mean = load_pendulum_actors()
        names = {"dummies": DUMMIES, "target": digest(target), "behavior": digest(mean)}
        return shared | names | {"truth_episodes": preset.pendulum_truth_episodes}
    actors = load_actors(row.task, context.work)
    named = {"env": row.env_id, "actors": actors.source, "target": digest(_target(row, actors))}
    return shared | named | _recipe_settings(row, actors) | {"truth_episodes": preset.truth_episodes}


def read_log(name: str, context: Context) -> Log:
    """Return a row's data, target, behaviour density where known, and truths; collect what is missing."""
    row = row_named(name)
    if row.recipe == "pendulum":
        return _pendulum_log(row, context)
    transitions = load_dataset(_log_folder(row, context))
    policies = _gym_values(row, context)
    if row.recipe == "file":
        return Log(transitions, load_d4rl_actor(_files(row, context)[1]), None, policies, None)
    actors = load_actors(row.task, context.work)
    density = None
    if row.recipe == "known":
        task = describe_task(row.env_id)  # its own bounds, as the collection used: an actor's may be rounded
        density = GaussianBehavior(actors.behavior, NOISE, task.low, task.high)
    return Log(transitions, _target(row, actors), density, policies, None)


def _pendulum_log(row: Row, context: Context) -> Log:
    actor, mean = load_pendulum_actors()
    target, behavior = with_dummies(actor, DUMMIES), PendulumBehavior(mean, DUMMIES)
    transitions = collect(SEED, behavior, row.logged(context.preset))
    played: dict[str, Any] = {"target": target, "behavior_mean": mean, "behavior": behavior}
    episodes = context.preset.pendulum_truth_episodes
    policies = {
        name: _policy_value(truth, truth.standard_error, episodes)
        for name, policy in played.items()
        for truth in (true_value(TRUTH_SEED, policy, row.gamma, episodes),)
    }
    return Log(transitions, target, behavior, policies, logged_value(transitions, target, row.gamma))


def _gym_values(row: Row, context: Context) -> dict[str, PolicyValue]:
    """Return R and V of the target, and of a known behaviour and its mean."""
    if row.recipe == "file":
        return {"target": _gym_value(row, "target", load_d4rl_actor(_files(row, context)[1]), context)}
    actors = load_actors(row.task, context.work)
    played = {"target": _gym_value(row, "target", _target(row, actors), context)}
    if row.recipe == "known":
        played["behavior_mean"] = _gym_value(row, "behavior_mean", actors.behavior, context)
        played["behavior"] = _gym_value(row, "behavior", actors.behavior, context, NOISE)
    return played


def _gym_value(row: Row, name: str, actor: Actor, context: Context, noise: float = 0.0) -> PolicyValue:
    """Return R and V of an actor with Gaussian noise (half action ranges), kept in the work folder."""
    from kmifqe.worlds.gym_truth import measure_truth

    episodes = context.preset.truth_episodes
    settings = {
        "env": row.env_id,
        "policy": digest(actor),
        "noise": noise,
        "episodes": episodes,
        "gamma": row.gamma,
        "seed": TRUTH_SEED,
    }

    def measure() -> PolicyValue:
        context.say(f"{row.name}: playing {episodes:,} episodes of the {PLAYED[name]}")
        truth = measure_truth(
            row.env_id,
            actor,
            episodes=episodes,
            gamma=row.gamma,
            noise=noise,
            seed=TRUTH_SEED,
            workers=context.workers,
        )
        return _policy_value(truth, truth.value_standard_error, episodes, truth.length)

    return kept(context.work / "truth", f"{row.task}-{name}", settings, PolicyValue, measure)


def _policy_value(truth: Any, value_error: float, episodes: int, length: float | None = None) -> PolicyValue:
    def known(x: float) -> float | None:
        return x if math.isfinite(x) else None  # the error of a single episode is not known

    return PolicyValue(
        R=truth.episode_return,
        R_standard_error=known(truth.episode_return_standard_error),
        V=truth.value,
        V_standard_error=known(value_error),
        episodes=episodes,
        length=length,
    )


def _log_folder(row: Row, context: Context) -> Path:
    """Return the file or folder that holds a row's log; collect it, unless one of the same settings is there."""
    if row.recipe == "file":
        return _files(row, context)[0]
    folder = context.work / "data" / row.name
    settings = {k: v for k, v in data_settings(row, context).items() if k != "truth_episodes"}
    manifest = folder / "settings.json"
    if manifest.is_file() and read_json(manifest, dict[str, Any]) == settings:
        return folder / "log"
    if folder.exists() and {path.name for path in folder.iterdir()} not in (set(), {"log", manifest.name}):
        raise InputError(f"{folder}: holds files that no experiment has written; choose another --work")
    context.say(f"{row.name}: collecting {row.logged(context.preset):,} rows")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as partial:
        (partial / "log").mkdir()
        _collect(row, context, partial / "log")
        (partial / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder / "log"


def _collect(row: Row, context: Context, folder: Path) -> None:
    """Write the parts of a log into a folder; their names give their order."""
    from kmifqe.worlds.gym_collect import collect, collect_drawn

    actors, total = load_actors(row.task, context.work), row.logged(context.preset)
    if row.recipe == "known":
        collect(
            row.env_id,
            actors.behavior,
            folder / "part-0.hdf5",
            transitions=total,
            noise=NOISE,
            seed=SEED,
            workers=context.workers,
        )
        return
    players = (
        [squashed_gaussian(actor) for actor in (actors.target, actors.behavior)]
        if row.recipe == "mix"
        else [exploring(actor) for actor in actors.replay]
    )
    task = describe_task(row.env_id)
    for number, draw in enumerate(players):
        part = total // len(players) + (number < total % len(players))
        collect_drawn(
            task,
            draw,
            folder / f"part-{number}.hdf5",
            transitions=part,
            settings=_recipe_settings(row, actors),
            densities=False,
            seed=SEED + number,
            envs=int(np.clip(part // (task.time_limit or 1), 1, MOST_ENVS)),
            workers=context.workers,
        )


def _recipe_settings(row: Row, actors: Actors) -> dict[str, Any]:
    if row.recipe == "known":
        return {"behavior": digest(actors.behavior), "noise": NOISE}
    if row.recipe == "mix":
        return {
            "medium": digest(actors.behavior),
            "pre_tanh_std": PRE_TANH_STD,
            "pre_tanh_limit": PRE_TANH_LIMIT,
        }
    return {"replay": [digest(actor) for actor in actors.replay], "exploration": EXPLORATION}


def _target(row: Row, actors: Actors) -> Actor:
    """Return the policy to judge: TD3's, or the mean of the stochastic expert made from it."""
    return actors.target if row.recipe == "known" else stochastic_mean(actors.target)


def _files(row: Row, context: Context) -> tuple[Path, Path]:
    """Return D4RL's file of the row, and the expert's, which carries the target policy."""
    return (
        d4rl_file(context.d4rl_dir, row.name),
        d4rl_file(context.d4rl_dir, f"{row.task}-expert"),
    )
