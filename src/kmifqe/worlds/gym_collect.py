"""Collect a log of a noisy policy on a Gymnasium task, with the exact density of every action."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

from kmifqe.behavior.gaussian import GaussianBehavior
from kmifqe.errors import InputError
from kmifqe.io.files import whole_file
from kmifqe.io.logs.save import refuse_target
from kmifqe.mdp.ask import Policy
from kmifqe.worlds.gym_envs import EnvPool, Task, check_policy_fits_task, describe_task

BLOCK = 256  # steps of every environment kept in memory before they are written


class LogWriter:
    """Rows that arrive one step of all environments at a time, stored environment after environment.

    Environment i owns `lengths[i]` neighbouring rows, so that its episodes stay in time order. The arrays are
    not compressed: random numbers do not shrink, and rows are written in many places at once.
    """

    def __init__(self, file: h5py.File, task: Task, lengths: np.ndarray, *, densities: bool = True) -> None:
        rows, envs = int(lengths.sum()), len(lengths)
        q, d = task.state_dim, task.action_dim
        columns: dict[str, tuple[tuple[int, ...], type]] = {
            "observations": ((q,), np.float32),
            "actions": ((d,), np.float32),
            "rewards": ((), np.float32),
            "next_observations": ((q,), np.float32),
            "terminals": ((), np.bool_),
            "timeouts": ((), np.bool_),
        }
        if densities:
            columns["infos/action_log_probs"] = ((d,), np.float32)
        self._file, self._lengths = file, lengths
        self._starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        self._block: dict[str, np.ndarray] = {
            name: np.zeros((BLOCK, envs, *shape), dtype) for name, (shape, dtype) in columns.items()
        }
        for name, (shape, dtype) in columns.items():
            file.create_dataset(name, (rows, *shape), dtype)
        self._written = self._held = 0  # steps, the same for every environment

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Take one row of every field from every environment; those past their length are ignored."""
        for name, values in rows.items():
            self._block[name][self._held] = values
        self._held += 1
        if self._held == BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write what is held in memory."""
        for env, (start, length) in enumerate(zip(self._starts, self._lengths)):
            count = min(self._held, int(length) - self._written)
            if count <= 0:
                continue
            first = int(start) + self._written
            for name, block in self._block.items():
                self._file[name][first : first + count] = block[:count, env]
        self._written, self._held = self._written + self._held, 0


@contextmanager
def log_writer(
    path: Path, task: Task, lengths: np.ndarray, settings: Mapping[str, Any], *, densities: bool = True
) -> Iterator[LogWriter]:
    """Give a writer to a file that appears at `path` only when all went well; `settings` go with it.

    `densities=False`: the log says nothing about how likely its actions were.
    """
    try:
        with whole_file(path) as partial, h5py.File(partial, "w") as file:
            file.attrs["kmifqe"] = json.dumps(settings)
            writer = LogWriter(file, task, lengths, densities=densities)
            yield writer
            writer.flush()
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error})") from error


MOST_ENVS = 64
EPISODES_PER_ENV = 10  # at the time limit, before another environment is worth its cut last episode
ASSUMED_TIME_LIMIT = 1_000  # steps, for tasks without one

# Random generator, states (n, q) -> actions (n, d) and their log-densities per dimension (n, d)
Draw = Callable[[np.random.Generator, np.ndarray], tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True)
class Collected:
    """What a log holds."""

    path: Path
    transitions: int
    episodes: int  # the last of each environment may have been cut by the end of the collection
    terminated: int
    mean_reward: float
    envs: int


def default_envs(task: Task, transitions: int) -> int:
    """Return how many environments share a collection: each must have room for several whole episodes.

    It does not depend on the machine, so neither does the log.
    """
    limit = task.time_limit or ASSUMED_TIME_LIMIT
    return int(np.clip(transitions // (EPISODES_PER_ENV * limit), 1, MOST_ENVS))


def collect(
    env_id: str,
    policy: Policy,
    path: str | Path,
    *,
    transitions: int,
    noise: float | Sequence[float] = 0.3,
    uniform_share: float | Sequence[float] = 0.0,
    seed: int = 0,
    envs: int | None = None,
    workers: int = 1,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Collected:
    """Write `transitions` steps of `policy` plus Gaussian noise to a D4RL-layout HDF5 file.

    `noise` is the standard deviation in units of half the action range, `uniform_share` the share of uniform
    actions; both may be given per dimension. Actions are logged as drawn and clipped only on their way into
    the environment, so log μ(a|s), logged per dimension, is exact. The log depends on `seed` and `envs`, not
    on `workers`. `progress` is told how many transitions were taken.
    """
    task = describe_task(env_id)
    check_policy_fits_task(policy, task)
    # The density of noise around a mean: its "policy" passes on a mean that is computed once a step.
    around_mean = GaussianBehavior(lambda mean: mean, noise, task.low, task.high, uniform_share)

    def draw(rng: np.random.Generator, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = policy(states)
        actions = around_mean.sample(rng, mean)
        return actions, around_mean.log_prob_per_dimension(mean, actions)

    return collect_drawn(
        task,
        draw,
        path,
        transitions=transitions,
        settings={
            "policy": str(getattr(policy, "name", type(policy).__name__)),
            "noise": around_mean.std.tolist(),
            "uniform_share": around_mean.uniform_share.tolist(),
        },
        seed=seed,
        envs=envs,
        workers=workers,
        overwrite=overwrite,
        progress=progress,
    )


def collect_drawn(
    task: Task,
    draw: Draw,
    path: str | Path,
    *,
    transitions: int,
    settings: Mapping[str, Any],
    densities: bool = True,
    seed: int = 0,
    envs: int | None = None,
    workers: int = 1,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Collected:
    """Write `transitions` steps of whatever `draw` plays to a D4RL-layout HDF5 file.

    `settings` describe the player in the file. `densities=False`: the log says nothing about how likely its
    actions were, and `draw` may return None for them.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in (".hdf5", ".h5"):
        raise InputError(
            f"{path}: the suffix is {path.suffix or '(none)'}; expected .hdf5 (convert it later)"
        )
    refuse_target(path, overwrite=overwrite)
    if transitions < 1:
        raise InputError(f"transitions is {transitions}; expected 1 or more")
    envs = min(envs or default_envs(task, transitions), transitions)
    lengths = transitions // envs + (np.arange(envs) < transitions % envs)
    told = {"env": task.env_id, **settings, "seed": seed, "envs": envs, "gymnasium": gymnasium.__version__}
    with (
        log_writer(path, task, lengths, told, densities=densities) as writer,
        EnvPool(task, envs, seed=seed, workers=workers) as pool,
    ):
        rng = np.random.default_rng(seed)
        states = pool.reset()
        ends = terminated = 0
        total_reward = 0.0
        for step in range(int(lengths[0])):
            active = step < lengths
            actions, log_probs = draw(rng, states)
            stepped = pool.step(actions, active)
            timeouts = ~stepped.terminated & (stepped.truncated | (step == lengths - 1))
            rows = {
                "observations": states,
                "actions": actions,
                "rewards": stepped.rewards,
                "next_observations": stepped.reached,
                "terminals": stepped.terminated,
                "timeouts": timeouts,
            }
            if log_probs is not None and densities:
                rows["infos/action_log_probs"] = log_probs
            writer.add(rows)
            states = stepped.states
            ends += int((active & (stepped.terminated | timeouts)).sum())
            terminated += int((active & stepped.terminated).sum())
            total_reward += float(stepped.rewards[active].sum())
            if progress is not None:
                progress(int(np.minimum(step + 1, lengths).sum()))
    return Collected(path, transitions, ends, terminated, total_reward / transitions, envs)
