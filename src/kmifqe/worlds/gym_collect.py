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

from kmifqe.behavior import GaussianBehavior
from kmifqe.errors import InputError
from kmifqe.io.files import whole_file
from kmifqe.io.logs.save import refuse_target
from kmifqe.mdp.ask import Policy
from kmifqe.worlds.gym_envs import EnvPool, Task, check_policy_fits_task, describe_task

BLOCK = 256  # steps of every environment kept in memory before they are written
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
    """Write steps of a policy plus Gaussian noise to a D4RL-layout HDF5 file.

    Actions are logged as drawn and clipped only on their way into the environment, so log μ(a|s), logged per
    dimension, is exact.

    env_id: a Gymnasium id.
    policy: maps states (n, q) to actions (n, d).
    noise: standard deviation in half action ranges, one number or one per dimension; default 0.3.
    uniform_share: share of uniform actions, in [0, 1], one number or one per dimension; default 0.

    `path`, `transitions`, `seed`, `envs`, `workers`, `overwrite` and `progress` are those of `collect_drawn`.
    """
    task = describe_task(env_id)
    check_policy_fits_task(policy, task)
    # The density of noise around a mean: its "policy" passes on a mean that is computed once a step.
    around_mean = GaussianBehavior(lambda mean: mean, noise, task.low, task.high, uniform_share)

    def draw(rng: np.random.Generator, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = policy(states)
        actions = around_mean.sample(rng, mean)
        return actions, around_mean.log_prob_per_dimension(mean, actions)

    settings = {
        "policy": str(getattr(policy, "name", type(policy).__name__)),
        "noise": around_mean.std.tolist(),
        "uniform_share": around_mean.uniform_share.tolist(),
    }
    return collect_drawn(
        task,
        draw,
        path,
        transitions=transitions,
        settings=settings,
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
    """Write steps of whatever `draw` plays to a D4RL-layout HDF5 file, whole or not at all.

    task: what `describe_task` returned.
    draw: gives the actions for a batch of states, and their log-densities.
    path: the file, which ends in .hdf5 or .h5.
    transitions: how many steps to log, 1 or more.
    settings: describe the player; they are stored in the file, beside the seed and the task.
    densities: False: the log says nothing about how likely its actions were, and `draw` may return None for them.
    seed: 0 or more, default 0. The log depends on `seed` and `envs`.
    envs: environments stepped side by side; None, the default, leaves each room for several whole episodes.
    workers: processes that step them, default 1; the log does not depend on it.
    overwrite: replace the file if it exists; False by default.
    progress: called after every step with the number of transitions so far.
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
    made = {"env": task.env_id, **settings, "seed": seed, "envs": envs, "gymnasium": gymnasium.__version__}
    with (
        log_writer(path, task, lengths, made, densities=densities) as store_rows,
        EnvPool(task, envs, seed=seed, workers=workers) as pool,
    ):
        rng = np.random.default_rng(seed)
        states = pool.reset()
        episodes = terminated = 0
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
            store_rows(rows)
            states = stepped.states
            episodes += int((active & (stepped.terminated | timeouts)).sum())
            terminated += int((active & stepped.terminated).sum())
            total_reward += float(stepped.rewards[active].sum())
            if progress is not None:
                progress(int(np.minimum(step + 1, lengths).sum()))
    return Collected(path, transitions, episodes, terminated, total_reward / transitions, envs)


def default_envs(task: Task, transitions: int) -> int:
    """Return how many environments share a collection: each must have room for several whole episodes.

    It does not depend on the machine, so neither does the log.
    """
    limit = task.time_limit or ASSUMED_TIME_LIMIT
    return int(np.clip(transitions // (EPISODES_PER_ENV * limit), 1, MOST_ENVS))


@contextmanager
def log_writer(
    path: Path, task: Task, lengths: np.ndarray, settings: Mapping[str, Any], *, densities: bool = True
) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """Give a function that stores one step of all environments; the file appears at `path` if all went well.

    The function is given one row of every field for every environment. Environment i of the `task` owns
    `lengths[i]` neighbouring rows of the file, so that its episodes stay in time order; rows past its length are
    ignored. `settings` are stored as JSON. Without `densities` the file has no column for those of the actions.
    The arrays are not compressed: random numbers do not shrink, and rows are written in many places at once.
    """
    q, d = task.state_dim, task.action_dim
    widths = {"observations": (q,), "actions": (d,), "rewards": (), "next_observations": (q,)}
    widths |= {"infos/action_log_probs": (d,)} if densities else {}
    columns: list[tuple[str, tuple[int, ...], type]] = [(*item, np.float32) for item in widths.items()]
    columns += [("terminals", (), np.bool_), ("timeouts", (), np.bool_)]
    block: dict[str, np.ndarray] = {
        name: np.zeros((BLOCK, len(lengths), *width), dtype) for name, width, dtype in columns
    }
    first_rows = np.cumsum(lengths) - lengths
    written = held = 0  # steps, the same for every environment

    def flush() -> None:
        nonlocal written, held
        for env, (first, length) in enumerate(zip(first_rows + written, lengths - written)):
            count = min(held, int(length))
            if count > 0:
                for name, rows in block.items():
                    file[name][first : first + count] = rows[:count, env]
        written, held = written + held, 0

    def add(rows: Mapping[str, np.ndarray]) -> None:
        nonlocal held
        for name, values in rows.items():
            block[name][held] = values
        held += 1
        if held == BLOCK:
            flush()

    with whole_file(path) as partial, h5py.File(partial, "w") as file:
        file.attrs["kmifqe"] = json.dumps(settings)
        for name, width, dtype in columns:
            file.create_dataset(name, (int(lengths.sum()), *width), dtype)
        yield add
        flush()
