"""TD3 on a Gymnasium task: environments step in worker processes while the learner updates on the device."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from kmifqe.errors import InputError, listed
from kmifqe.io.files import PARTIAL, whole_file
from kmifqe.io.policies.actor import Actor, load_safetensors_actor
from kmifqe.io.serialize import from_json, read_json, to_json, write_json
from kmifqe.worlds.gym_envs import EnvPool, Task, describe_task
from kmifqe.worlds.gym_truth import mean_and_error, play_episodes
from kmifqe.worlds.td3 import Batch, Buffer, Td3, Td3Config, Td3State, add, init_buffer, td3

MAY_CHANGE = ("steps", "workers", "save_seconds")  # on resuming; the other settings are what the run is
MOST_EVAL_ENVS = 16
CHOICE_ROUND = 1_000_000  # episodes numbered from here choose the finalists: no evaluation used them before
RECORD, STATE = "training.json", "state.safetensors"
FINALISTS = 5  # checkpoints that get the fresh, larger evaluation
BEHAVIOR_BAND = (0.7, 0.8)  # the paper's behaviour means reach 70–80 % of the target's return
CLIMBED = 0.9  # share of the target's level at which the way up is over; later dips are accidents


@dataclass(frozen=True)
class TrainConfig:
    """Settings of `train`. The learner's own are in `td3`."""

    env_id: str
    steps: int  # environment steps in all, one update each after the warm-up
    seed: int = 0  # 0 or more
    envs: int = 8  # stepped side by side; the learner makes as many updates after each common step
    workers: int = 1  # processes that step them; 1: this one
    warmup: int | None = None  # steps of uniform actions first; None: steps / 20, at most 25,000 (TD3's code)
    eval_every: int | None = None  # steps between checkpoints; None: steps / 100
    eval_episodes: int = 10  # per checkpoint
    choice_episodes: int = 100  # per finalist, at the end
    replay: int = 1_000_000  # transitions kept
    save_seconds: float = 300.0  # least time between two savings of the whole state
    td3: Td3Config = field(default_factory=Td3Config)

    def __post_init__(self) -> None:
        least = {name: 1 for name in ("steps", "envs", "workers", "eval_episodes", "choice_episodes")}
        least |= {"warmup": 1, "eval_every": 1, "seed": 0, "replay": self.envs}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise InputError(f"{name} is {value}; expected {bound} or more")

    @property
    def warmup_steps(self) -> int:
        """Steps of uniform actions before learning begins."""
        return min(25_000, self.steps // 20) if self.warmup is None else self.warmup

    @property
    def steps_between_checkpoints(self) -> int:
        """Steps between two evaluations."""
        return max(1, self.steps // 100) if self.eval_every is None else self.eval_every

    def as_record(self) -> dict[str, Any]:
        """Return the settings as they read back from JSON."""
        return from_json(to_json(self), dict[str, Any])

    def refuse_other_run(self, begun: TrainConfig, where: Path) -> None:
        """Raise InputError if the run in the folder `where` was `begun` with other settings than these."""
        for name in (each.name for each in fields(self) if each.name not in MAY_CHANGE):
            ours, theirs = getattr(self, name), getattr(begun, name)
            if ours != theirs:
                raise InputError(
                    f"{where}: the run was started with {name} = {theirs}; found {ours} "
                    f"(only {', '.join(MAY_CHANGE)} may change on resuming)"
                )


@dataclass(frozen=True)
class Checkpoint:
    """A policy met while training, and its undiscounted return with a standard error."""

    steps: int  # of the environments, before it
    episode_return: float
    standard_error: float | None  # None: a single episode shows no spread
    episodes: int


@dataclass(frozen=True)
class Choice:
    """The two checkpoints, with their fresh evaluations."""

    target: Checkpoint
    behavior: Checkpoint | None  # None: nothing came before the target
    behavior_level: float | None  # see `level`
    notes: tuple[str, ...]  # what is not as wished, one sentence each


@dataclass(frozen=True)
class TrainRecord:
    """The content of `training.json`."""

    settings: TrainConfig
    jax: str  # its version
    device: str
    curve: list[Checkpoint]  # in order of steps, from the untrained policy on
    choice: Choice | None  # None: the run has not ended


@dataclass(frozen=True)
class TrainProgress:
    """What a person wants to see while waiting."""

    steps: int  # so far, of all runs
    total: int
    last_return: float
    best_return: float
    choosing: bool = False  # the steps are done, the finalists are being evaluated


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[TrainProgress], None] | None = None,
) -> Choice:
    """Train, keep every checkpoint with its return, and write target and behaviour mean into a folder.

    config: the task, the number of steps and all other settings.
    out: the folder; it is made if it is missing.
    resume: go on from the state saved there, or begin if there is none; False by default, and a folder that
        holds a run is then refused. Weights, optimiser, replay and random keys continue; environments start new
        episodes. The state is saved every `config.save_seconds`, on Ctrl-C and at the end.
    progress: called after every common step of the environments, and before the choice.
    """
    run = _Run(config, Path(out).expanduser(), resume, progress)
    with EnvPool(
        run.task,
        config.envs + min(config.eval_episodes, MOST_EVAL_ENVS),
        # After a resumption the environments must not repeat the episodes of the beginning.
        seed=int(np.random.SeedSequence((config.seed, run.state.steps)).generate_state(1)[0]),
        workers=config.workers,
    ) as pool:
        try:
            run.learn(pool)
        except KeyboardInterrupt:
            if run.curve:  # else nothing has happened yet
                run.save()
            raise
        return run.finish(pool)


class _Run:
    """One training run: its state, its curve, and its folder."""

    def __init__(
        self, config: TrainConfig, out: Path, resume: bool, progress: Callable[[TrainProgress], None] | None
    ) -> None:
        self.config, self.out, self._progress = config, out, progress
        self.curve: list[Checkpoint] = []
        saved = out / STATE
        if out.exists() and not out.is_dir():
            raise InputError(f"{out}: exists and is not a folder; expected a folder for the run")
        if not resume and ((out / RECORD).exists() or saved.exists()):
            raise InputError(f"{out}: holds a training run; give --resume (resume=True) or another folder")
        if saved.exists() or (out / RECORD).exists():
            record = read_json(out / RECORD, TrainRecord)
            config.refuse_other_run(record.settings, out)
        else:
            _refuse_files(out)
        self.task = describe_task(config.env_id)
        low, high = (tuple(bound.tolist()) for bound in (self.task.low, self.task.high))
        self.learner = _learner(config.td3, self.task.state_dim, low, high)
        self.state = _fresh_state(config, self.task, self.learner)
        if saved.exists():
            self.state = load_state(saved, self.state)
            # Between two savings, a run may have seen further than the state it goes back to.
            self.curve = [point for point in record.curve if point.steps <= self.state.steps]
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._saved_at = time.monotonic()

    def learn(self, pool: EnvPool) -> None:
        """Step and learn until all steps are done; evaluate on the way."""
        config, envs = self.config, self.config.envs
        keys = _round_keys(config.seed)
        training = np.arange(pool.n_envs) < envs
        actions = np.zeros((pool.n_envs, self.task.action_dim), np.float32)
        if not self.curve:
            self._evaluate(pool)
        pool.reset(training)
        while self.state.steps < config.steps:
            learner, buffer, steps, rounds = self.state
            explore_key, update_key = keys(rounds)
            before = pool.states[:envs].copy()
            if steps >= config.warmup_steps:
                actions[:envs] = self.learner.explore(explore_key, learner, jnp.asarray(before))
                # Not waited for: the device learns from what is stored while the environments step.
                learner, _ = self.learner.update(update_key, learner, buffer, envs)
            else:
                rng = np.random.default_rng((config.seed, rounds))
                actions[:envs] = rng.uniform(self.task.low, self.task.high, (envs, self.task.action_dim))
            stepped = pool.step(actions, training)
            batch = Batch(
                states=jnp.asarray(before),
                actions=jnp.asarray(actions[:envs].copy()),  # jax may read it later, in place
                rewards=jnp.asarray(stepped.rewards[:envs], jnp.float32),
                next_states=jnp.asarray(stepped.reached[:envs]),
                terminated=jnp.asarray(stepped.terminated[:envs]),
            )
            self.state = TrainState(learner, add(buffer, batch), steps + envs, rounds + 1)
            self._report()
            if self.state.steps - self.curve[-1].steps >= config.steps_between_checkpoints:
                self._evaluate(pool)
                if time.monotonic() - self._saved_at >= config.save_seconds:
                    self.save()

    def finish(self, pool: EnvPool) -> Choice:
        """Evaluate the finalists afresh, write the chosen two, and save the state."""
        if self.curve[-1].steps < self.state.steps:
            self._evaluate(pool)
        self.save()
        self._report(choosing=True)
        measured: dict[int, Checkpoint] = {}

        def measure(point: Checkpoint) -> Checkpoint:
            if point.steps not in measured:
                actor = load_safetensors_actor(self._checkpoint(point.steps))
                episodes = self.config.choice_episodes
                measured[point.steps] = self._measure(pool, actor, point.steps, episodes, CHOICE_ROUND)
            return measured[point.steps]

        choice = choose(self.curve, measure)
        for name, point in (("target", choice.target), ("behavior", choice.behavior)):
            if point is not None:
                actor = load_safetensors_actor(self._checkpoint(point.steps))
                actor.save(self.out / f"{name}.safetensors")
        self._write_record(choice)
        return choice

    def save(self) -> None:
        """Save everything needed to go on."""
        save_state(self.state, self.out / STATE)
        self._saved_at = time.monotonic()

    def _evaluate(self, pool: EnvPool) -> None:
        steps, episodes = self.state.steps, self.config.eval_episodes
        actor = self.learner.export(self.state.learner, f"{self.config.env_id} TD3 at {steps} steps")
        rounds = -(-episodes // (pool.n_envs - self.config.envs))
        point = self._measure(pool, actor, steps, episodes, len(self.curve) * rounds)
        self.curve.append(point)
        self._write_record(None)  # before the first checkpoint: it tells that the folder is this run's
        actor.save(self._checkpoint(steps))
        self._report()

    def _measure(
        self, pool: EnvPool, actor: Actor, steps: int, episodes: int, first_round: int
    ) -> Checkpoint:
        slots = range(self.config.envs, pool.n_envs)
        mean, error = mean_and_error(
            play_episodes(pool, actor, episodes, slots=slots, first_round=first_round).returns
        )
        return Checkpoint(steps, mean, None if math.isnan(error) else error, episodes)

    def _checkpoint(self, steps: int) -> Path:
        return self.out / "checkpoints" / f"step-{steps:09d}.safetensors"

    def _write_record(self, choice: Choice | None) -> None:
        device = jax.devices()[0].device_kind
        write_json(self.out / RECORD, TrainRecord(self.config, jax.__version__, device, self.curve, choice))

    def _report(self, *, choosing: bool = False) -> None:
        if self._progress is not None:
            best = max(point.episode_return for point in self.curve)
            last = self.curve[-1].episode_return
            self._progress(TrainProgress(self.state.steps, self.config.steps, last, best, choosing))


def _refuse_files(out: Path) -> None:
    """Refuse a folder that holds files and no training run: theirs might have the names of ours."""
    files = (path for path in out.rglob("*") if path.is_symlink() or not path.is_dir())
    others = [str(path.relative_to(out)) for path in files if PARTIAL not in str(path)]
    if others:
        raise InputError(
            f"{out}: holds {listed(others, 3)} and no training run; nothing in it was changed: choose another --out, "
            "or an empty folder"
        )


@lru_cache(maxsize=8)  # compiling takes seconds: runs alike in one process share it
def _learner(config: Td3Config, state_dim: int, low: tuple[float, ...], high: tuple[float, ...]) -> Td3:
    return td3(config, state_dim, low, high)


def _round_keys(seed: int) -> Callable[[int], tuple[jax.Array, jax.Array]]:
    """Return a function from a round's number to its keys: nothing random has to be saved."""
    base = jax.random.fold_in(jax.random.key(seed), 1)

    @jax.jit
    def keys(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        explore_key, update_key = jax.random.split(jax.random.fold_in(base, number))
        return explore_key, update_key

    return lambda number: keys(jnp.int32(number))


# --- the state of a run, saved and loaded


class TrainState(NamedTuple):
    """What the next step needs, but for the environments, which cannot be saved. Keys are made from `rounds`."""

    learner: Td3State
    buffer: Buffer
    steps: int  # environment steps so far
    rounds: int  # common steps of all environments so far


def _fresh_state(config: TrainConfig, task: Task, learner: Td3) -> TrainState:
    capacity = max(config.envs, min(config.replay, config.steps + config.envs))
    key = jax.random.fold_in(jax.random.key(config.seed), 0)
    return TrainState(learner.init(key), init_buffer(capacity, task.state_dim, task.action_dim), 0, 0)


def save_state(state: TrainState, path: Path) -> None:
    """Write `state` to the safetensors file `path`; the replay's rows go from the oldest to the newest."""
    rows, size, position = state.buffer
    order = (np.arange(int(size)) + int(position) - int(size)) % len(rows.rewards)
    tensors = {f"replay.{name}": np.asarray(column)[order] for name, column in rows._asdict().items()}
    tensors |= {name: np.asarray(leaf, order="C") for name, leaf in _named_leaves(state.learner).items()}
    tensors |= {"steps": np.asarray(state.steps), "rounds": np.asarray(state.rounds)}
    with whole_file(path) as partial:
        save_file(tensors, partial)


def load_state(path: Path, fresh: TrainState) -> TrainState:
    """Return the state saved at `path` in the shapes of `fresh`, a state that has not begun."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: not a readable training state ({error})") from error

    def saved(name: str, shape: tuple[int, ...], dtype: Any, *, rows: bool = False) -> np.ndarray:
        found = tensors.get(name)
        if found is None or found.shape[rows:] != shape or found.dtype != dtype:
            holds = "nothing" if found is None else f"{found.dtype} {found.shape}"
            raise InputError(f"{path}: {name} holds {holds}; expected {dtype} {shape}{' a row' * rows}")
        return found

    wanted = _named_leaves(fresh.learner)
    leaves = [jnp.asarray(saved(name, leaf.shape, leaf.dtype)) for name, leaf in wanted.items()]
    learner = jax.tree.unflatten(jax.tree.structure(fresh.learner), leaves)
    newest = slice(-len(fresh.buffer.rows.rewards), None)  # the run may be resumed with a smaller replay
    columns = {
        name: jnp.asarray(saved(f"replay.{name}", column.shape[1:], column.dtype, rows=True)[newest])
        for name, column in fresh.buffer.rows._asdict().items()
    }
    buffer = add(fresh.buffer, Batch(**columns)) if len(columns["rewards"]) else fresh.buffer
    steps, rounds = (int(saved(name, (), np.int64)) for name in ("steps", "rounds"))
    return TrainState(learner, buffer, steps, rounds)


def _named_leaves(learner: Td3State) -> dict[str, jax.Array]:
    named = jax.tree_util.tree_leaves_with_path(learner)
    return {f"learner{jax.tree_util.keystr(where)}": leaf for where, leaf in named}


# --- the choice of two checkpoints


def level(episode_return: float, target_return: float, initial_return: float) -> float:
    """Return how far a policy with `episode_return` has come: 1 at `target_return`.

    Where the target's return is positive it is the plain ratio, as in the paper. Where it is not (Pendulum
    pays costs) a ratio means nothing: it is then the share of the way up from `initial_return`, that of the
    untrained policy. All returns are undiscounted.
    """
    if target_return > 0.0:
        return episode_return / target_return
    gap = target_return - initial_return
    return (episode_return - initial_return) / gap if gap > 0.0 else 1.0


def choose(curve: Sequence[Checkpoint], measure: Callable[[Checkpoint], Checkpoint]) -> Choice:
    """Return the best checkpoint and one on the way up whose level is nearest to the middle of the band.

    `curve` is in order of steps and begins with the untrained policy. Its few episodes only nominate;
    `measure` evaluates the finalists again, afresh, and that decides.
    """
    best = sorted(curve, key=lambda point: point.episode_return)[-FINALISTS:]
    target = max((measure(point) for point in best), key=lambda point: point.episode_return)
    low, high = BEHAVIOR_BAND

    def level_of(point: Checkpoint) -> float:
        return level(point.episode_return, target.episode_return, curve[0].episode_return)

    def distance(point: Checkpoint) -> float:
        return abs(level_of(point) - (low + high) / 2)

    def nearest(points: Iterable[Checkpoint]) -> list[Checkpoint]:
        return [measure(point) for point in sorted(points, key=distance)[:FINALISTS]]

    before = [point for point in curve if point.steps < target.steps]
    if not before:
        return Choice(target, None, None, ("no checkpoint came before the target: no behaviour mean",))
    candidates = nearest(itertools.takewhile(lambda point: level_of(point) < CLIMBED, before))
    if not any(low <= level_of(point) <= high for point in candidates):
        candidates += nearest(before)
    behavior = min(candidates, key=distance)
    reached = level_of(behavior)
    if low <= reached <= high:
        return Choice(target, behavior, reached, ())
    note = (
        f"no checkpoint at {low:.0%} to {high:.0%} of the target's level; the nearest is at {reached:.0%} "
        "(evaluate more often)"
    )
    return Choice(target, behavior, reached, (note,))
