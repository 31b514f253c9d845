"""Which policies the experiments judge and collect with; training them, and packing a training run for shipping."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.errors import InputError
from kmifqe.experiments.context import MUJOCO, Context, Experiment
from kmifqe.experiments.presets import TASKS
from kmifqe.io.files import whole_folder
from kmifqe.io.policies.actor import Actor, load_safetensors_actor

METHOD = "td3"
SNAPSHOTS = 8  # policies that stand for a training run up to medium, in a regenerated replay log
RECORD = "training.json"


@dataclass(frozen=True)
class Actors:
    """The policies of one task. `medium` data come from `behavior`, replay data from `replay` in order."""

    target: Actor
    behavior: Actor
    replay: tuple[Actor, ...]
    source: str  # "shipped", or "trained" by `reproduce policies`


def _run(row: str, context: Context) -> None:
    """Train TD3 on a task, pack the chosen actors into the work folder, and keep the curve as a record."""
    from kmifqe.worlds.gym_train import TrainConfig, train
    from kmifqe.worlds.td3 import Td3Config

    size = context.preset.training
    config = TrainConfig(
        env_id=TASKS[row],
        steps=size.steps,
        envs=size.envs,
        workers=context.workers,
        eval_episodes=size.episodes,
        choice_episodes=min(100, 10 * size.episodes),
        eval_every=max(1, size.steps // size.checkpoints),
        td3=Td3Config(actor_hidden=(size.hidden,) * 2, critic_hidden=(size.hidden,) * 2),
    )
    without_effect = ("workers", "save_seconds")
    settings = {"training": {k: v for k, v in config.as_record().items() if k not in without_effect}}
    place = context.place("policies", row, METHOD)
    if not context.wants(place, settings):
        return
    started = time.perf_counter()
    folder = context.work / "training" / row
    train(config, folder, resume=True)
    packed = pack_policies(folder, packed_folder(context.work, row))
    measured = {name: packed[name] for name in ("curve", "choice", "replay_steps")}
    context.keep(place, settings, time.perf_counter() - started, packages=MUJOCO, **measured)


POLICIES = Experiment("policies", lambda preset: preset.tasks, _run, (METHOD,))


def packed_folder(work: Path, task: str) -> Path:
    """Return where `reproduce policies` puts a task's actors."""
    return work / "policies" / task


def load_actors(task: str, work: Path) -> Actors:
    """Return a task's actors: those that `reproduce policies` left in the work folder, else the shipped ones."""
    trained = packed_folder(work, task)
    if (trained / RECORD).is_file():
        return _read_actors(trained, "trained")
    if not (_shipped() / task / RECORD).is_file():
        raise InputError(
            f"{task}: no actors come with the package and none are in {trained}; "
            f"train them with kmifqe reproduce policies --only {task}"
        )
    return load_shipped_actors(task)


def load_shipped_actors(task: str) -> Actors:
    """Return the actors of a task that come with the package."""
    return _read_actors(_shipped() / task, "shipped")


def shipped_training() -> dict[str, dict[str, Any]]:
    """Return the training record of every task whose actors come with the package."""
    return {task: _training_record(_shipped() / task) for task in TASKS if (_shipped() / task).is_dir()}


def _shipped() -> Path:
    return Path(str(files("kmifqe.worlds") / "actors"))


def _read_actors(folder: Path, source: str) -> Actors:
    replay = sorted(folder.glob("replay-*.safetensors"), key=lambda path: int(path.stem.split("-")[1]))
    return Actors(
        target=load_safetensors_actor(folder / "target.safetensors"),
        behavior=load_safetensors_actor(folder / "behavior.safetensors"),
        replay=tuple(map(load_safetensors_actor, replay)),
        source=source,
    )


def pack_policies(training: Path, out: Path, *, snapshots: int = SNAPSHOTS) -> dict[str, Any]:
    """Write target, behaviour mean, replay snapshots and curve of a training run; return the record written.

    Weights are rounded to float16: the rounded policy is the policy, whose return the experiments measure anew.

    Args:
        training: a folder of `kmifqe train`.
        out: the folder to write; replaced if it is there.
        snapshots: how many policies to keep, evenly spaced over the checkpoints from the untrained policy to the
            behaviour mean; default SNAPSHOTS.
    """
    record = _training_record(training)
    curve, choice = record["curve"], record["choice"]
    # Where nothing came before the target there is no behaviour mean: the target then plays both parts.
    medium = (choice["behavior"] or choice["target"])["steps"]
    replay = spaced([point["steps"] for point in curve if point["steps"] <= medium], snapshots)
    chosen = {"target": choice["target"]["steps"], "behavior": medium}
    chosen |= {f"replay-{number}": step for number, step in enumerate(replay)}
    series = ("steps", "episode_return", "standard_error")
    packed = {name: record[name] for name in ("settings", "jax", "device", "choice")}
    packed |= {"replay_steps": replay, "curve": {name: [point[name] for point in curve] for name in series}}
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as partial:
        for name, step in chosen.items():
            actor = load_safetensors_actor(training / "checkpoints" / f"step-{step:09d}.safetensors")
            rounded(actor).save(partial / f"{name}.safetensors")
        (partial / RECORD).write_text(json.dumps(packed) + "\n", encoding="utf-8")
    return packed


def rounded(actor: Actor) -> Actor:
    """Return the actor with weights and biases in float16; it still computes in float32."""
    with np.errstate(over="ignore"):  # a weight beyond float16's range becomes infinite, which Actor refuses
        return replace(
            actor,
            weights=tuple(w.astype(np.float16) for w in actor.weights),
            biases=tuple(b.astype(np.float16) for b in actor.biases),
        )


def spaced(items: Sequence[int], count: int) -> list[int]:
    """Return `count` of the items (all, if there are fewer), evenly spaced, the first and the last included."""
    places = np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int))
    return [items[place] for place in places]


def digest(actor: Actor) -> str:
    """Return twelve letters that name a policy: a hash of its arrays and settings."""
    found = sha256(repr((actor.hidden, actor.output, actor.mean_clip)).encode())
    for array in (*actor.weights, *actor.biases, actor.low, actor.high, actor.obs_mean, actor.obs_var):
        if array is not None:
            found.update(np.asarray(array, np.float64).tobytes())
    return found.hexdigest()[:12]


def _training_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not the record of a training run ({error})") from error
    if not isinstance(record, dict) or not record.get("choice"):
        raise InputError(f"{path}: choice is missing; expected a training run that has ended")
    return record
