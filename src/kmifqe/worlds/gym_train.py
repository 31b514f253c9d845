"""TD3 on a Gymnasium task: environments step in worker processes while the learner updates on the device."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from kmifqe.errors import InputError
from kmifqe.io.files import whole_file
from kmifqe.io.policies.actor import Actor, load_safetensors_actor
from kmifqe.worlds.gym_envs import EnvPool, Task, describe_task
from kmifqe.worlds.gym_truth import mean_and_error, play_episodes
from kmifqe.worlds.td3 import Batch, Buffer, Td3, Td3Config, Td3State, add, init_buffer, td3

MAY_CHANGE = ("steps", "workers", "save_seconds")  # on resuming; the rest is what the run is


@dataclass(frozen=True)
class TrainConfig:
    """Settings of `train`. The learner's own are in `td3`."""

    env_id: str
    steps: int  # environment steps in all, one update each after the warm-up
    seed: int = 0
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
        for name in ("steps", "envs", "workers", "eval_episodes", "choice_episodes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")
        for name in ("warmup", "eval_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; expected 1 or more")
        if self.replay < self.envs:
            raise InputError(f"replay is {self.replay}; expected at least envs, {self.envs}")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; expected 0 or more")

    @property
    def warmup_steps(self) -> int:
        """Steps of uniform actions before learning begins."""
        return min(25_000, self.steps // 20) if self.warmup is None else self.warmup

    @property
    def steps_between_checkpoints(self) -> int:
        """Steps between two evaluations."""
        return max(1, self.steps // 100) if self.eval_every is None else self.eval_every

    def as_record(self) -> dict[str, Any]:
        """Return the settings as JSON knows them."""
        record = asdict(self)
        record["td3"] = {k: list(v) if isinstance(v, tuple) else v for k, v in record["td3"].items()}
        return record

    def refuse_unlike(self, record: dict[str, Any], where: str) -> None:
        """Refuse to resume a run that was started with other settings."""
        ours = self.as_record()
        for name in ours:
            if name not in MAY_CHANGE and ours[name] != record.get(name):
                raise InputError(
                    f"{where}: the run was started with {name} = {record.get(name)}; found {ours[name]} "
                    f"(only {', '.join(MAY_CHANGE)} may change on resuming)"
                )


@dataclass(frozen=True)
class TrainProgress:
    """What a person wants to see while waiting."""

    steps: int  # taken so far, of all runs
    total: int
    last_return: float
    best_return: float
    choosing: bool = False  # the steps are done, the finalists are being evaluated


@dataclass
class TrainState:
    """What the next step needs, but for the environments, which cannot be saved. Keys follow `rounds`."""

    learner: Td3State
    buffer: Buffer
    steps: int  # environment steps taken
    rounds: int  # common steps of all environments taken


def save_state(state: TrainState, settings: dict[str, Any], path: Path) -> None:
    """Write the state; the filled rows of the buffer are stored from the oldest to the newest."""
    size, position = int(state.buffer.size), int(state.buffer.position)
    capacity = len(state.buffer.rows.rewards)
    order = (np.arange(size) + (position if size == capacity else 0)) % capacity
    tensors = {
        f"replay.{name}": np.asarray(rows)[order] for name, rows in state.buffer.rows._asdict().items()
    }
    tensors |= {f"learner{name}": np.asarray(leaf, order="C") for name, leaf in _named_leaves(state.learner)}
    progress = json.dumps({"steps": state.steps, "rounds": state.rounds})
    with whole_file(path) as partial:
        metadata = {"settings": json.dumps(settings), "progress": progress}
        save_file(tensors, partial, metadata=metadata)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings that a saved state was made with."""
    return _open(path)[0]["settings"]


def load_state(path: Path, fresh: TrainState) -> TrainState:
    """Return the saved state in the shapes of `fresh`, a state that has not begun."""
    described, tensors = _open(path)
    leaves = [_leaf(tensors, f"learner{name}", leaf, path) for name, leaf in _named_leaves(fresh.learner)]
    learner = jax.tree.unflatten(jax.tree.structure(fresh.learner), leaves)
    capacity = len(fresh.buffer.rows.rewards)
    columns = {}
    for name, column in fresh.buffer.rows._asdict().items():
        rows = tensors.get(f"replay.{name}")
        if rows is None or rows.shape[1:] != column.shape[1:] or rows.dtype != column.dtype:
            raise InputError(f"{path}: replay.{name} is missing or does not fit this task")
        columns[name] = jnp.asarray(rows[-capacity:])
    buffer = add(fresh.buffer, Batch(**columns)) if len(columns["rewards"]) else fresh.buffer
    return TrainState(
        learner, buffer, int(described["progress"]["steps"]), int(described["progress"]["rounds"])
    )


def _open(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with safe_open(path, framework="numpy") as file:
            described = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not a readable training state ({error})") from error
    if not {"settings", "progress"} <= set(described):
        raise InputError(f"{path}: not a training state; expected settings and progress in its metadata")
    return described, tensors


def _leaf(tensors: dict[str, np.ndarray], name: str, like: jax.Array, path: Path) -> jax.Array:
    found = tensors.get(name)
    if found is None or found.shape != like.shape or found.dtype != like.dtype:
        shape = "nothing" if found is None else f"{found.dtype} {found.shape}"
        raise InputError(f"{path}: {name} holds {shape}; expected {like.dtype} {like.shape}")
    return jnp.asarray(found)


def _named_leaves(learner: Td3State) -> list[tuple[str, jax.Array]]:
    return [
        (jax.tree_util.keystr(where), leaf) for where, leaf in jax.tree_util.tree_leaves_with_path(learner)
    ]


FINALISTS = 5  # checkpoints that get the fresh, larger evaluation
BEHAVIOR_BAND = (0.7, 0.8)  # the paper's behaviour means reach 70–80 % of the target's return
CLIMBED = 0.9  # share of the target's level at which the way up is over; later dips are accidents


@dataclass(frozen=True)
class Checkpoint:
    """A policy met while training, and its undiscounted return with a standard error."""

    steps: int  # environment steps taken
    episode_return: float
    standard_error: float
    episodes: int


@dataclass(frozen=True)
class Choice:
    """The two checkpoints, with their fresh evaluations."""

    target: Checkpoint
    behavior: Checkpoint | None  # None: nothing came before the target
    behavior_level: float | None  # see `level`
    notes: tuple[str, ...]  # what is not as wished, one sentence each


def level(episode_return: float, target_return: float, initial_return: float) -> float:
    """Return how far a policy has come, 1 at the target's return.

    Where the target's return is positive it is the plain ratio, as in the paper. Where it is not (Pendulum
    pays costs) a ratio means nothing: it is then the share of the way up from the untrained policy.
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
    initial = curve[0].episode_return

    def level_of(point: Checkpoint) -> float:
        return level(point.episode_return, target.episode_return, initial)

    def distance(point: Checkpoint) -> float:
        return abs(level_of(point) - sum(BEHAVIOR_BAND) / 2)

    def nearest(points: Iterable[Checkpoint]) -> list[Checkpoint]:
        return [measure(point) for point in sorted(points, key=distance)[:FINALISTS]]

    before = [point for point in curve if point.steps < target.steps]
    if not before:
        return Choice(target, None, None, ("no checkpoint came before the target: no behaviour mean",))
    candidates = nearest(itertools.takewhile(lambda p: level_of(p) < CLIMBED, before))
    if not any(_in_band(level_of(point)) for point in candidates):
        candidates += nearest(before)
    behavior = min(candidates, key=distance)
    reached = level_of(behavior)
    notes = () if _in_band(reached) else (_outside_band(reached),)
    return Choice(target, behavior, reached, notes)


def _in_band(reached: float) -> bool:
    return BEHAVIOR_BAND[0] <= reached <= BEHAVIOR_BAND[1]


def _outside_band(reached: float) -> str:
    low, high = BEHAVIOR_BAND
    return (
        f"no checkpoint at {low:.0%} to {high:.0%} of the target's level; the nearest is at {reached:.0%} "
        "(evaluate more often)"
    )


MOST_EVAL_ENVS = 16
CHOICE_ROUND = 1_000_000  # episodes numbered from here choose the finalists: no evaluation used them before
RECORD, STATE = "training.json", "state.safetensors"


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[TrainProgress], None] | None = None,
) -> Choice:
    """Train, keep every checkpoint with its return, and write target and behaviour mean into `out`.

    With `resume`, go on from the state saved there (or begin, if there is none): weights, optimiser, replay
    and random keys continue, environments start new episodes. The state is saved now and then, on Ctrl-C and
    at the end, so that more steps can be added.
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
            run.go(pool)
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
        _refuse_folder(out, resume)
        if (out / STATE).exists():
            config.refuse_unlike(read_settings(out / STATE), str(out))
        self.task = describe_task(config.env_id)
        self.learner = _learner(
            config.td3, self.task.state_dim, tuple(self.task.low.tolist()), tuple(self.task.high.tolist())
        )
        self.state = _fresh_state(config, self.task, self.learner)
        self.curve: list[Checkpoint] = []
        if (out / STATE).exists():
            self.state = load_state(out / STATE, self.state)
            # Killed between two savings, a run may have seen further than the state it goes back to.
            self.curve = [point for point in _read_curve(out / RECORD) if point.steps <= self.state.steps]
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._saved_at = time.monotonic()

    def go(self, pool: EnvPool) -> None:
        """Step and learn until all steps are taken; evaluate on the way."""
        config, envs = self.config, self.config.envs
        keys = _round_keys(config.seed)
        training = np.arange(pool.n_envs) < envs
        actions = np.zeros((pool.n_envs, self.task.action_dim), np.float32)
        if not self.curve:
            self._evaluate(pool)
        pool.reset(training)
        while self.state.steps < config.steps:
            state = self.state
            explore_key, update_key = keys(state.rounds)
            observed = pool.states[:envs]
            learning = state.steps >= config.warmup_steps
            if learning:
                actions[:envs] = self.learner.explore(explore_key, state.learner, jnp.asarray(observed))
                # Not waited for: the device learns from what is stored while the environments step.
                state.learner, _ = self.learner.update(update_key, state.learner, state.buffer, envs)
            else:
                rng = np.random.default_rng((config.seed, state.rounds))
                actions[:envs] = rng.uniform(self.task.low, self.task.high, (envs, self.task.action_dim))
            before = observed.copy()
            stepped = pool.step(actions, training)
            batch = Batch(
                states=jnp.asarray(before),
                actions=jnp.asarray(actions[:envs].copy()),  # jax may read it later, in place
                rewards=jnp.asarray(stepped.rewards[:envs], jnp.float32),
                next_states=jnp.asarray(stepped.reached[:envs]),
                terminated=jnp.asarray(stepped.terminated[:envs]),
            )
            state.buffer = add(state.buffer, batch)
            state.rounds += 1
            state.steps += envs
            self._tell()
            if state.steps - self.curve[-1].steps >= config.steps_between_checkpoints:
                self._evaluate(pool)
                if time.monotonic() - self._saved_at >= config.save_seconds:
                    self.save()

    def finish(self, pool: EnvPool) -> Choice:
        """Evaluate the finalists afresh, write the chosen two, and save the state."""
        if self.curve[-1].steps < self.state.steps:
            self._evaluate(pool)
        self.save()
        self._tell(choosing=True)
        measured: dict[int, Checkpoint] = {}

        def measure(point: Checkpoint) -> Checkpoint:
            if point.steps not in measured:
                actor = load_safetensors_actor(self._checkpoint(point.steps))
                measured[point.steps] = self._measure(
                    pool, actor, point.steps, self.config.choice_episodes, CHOICE_ROUND
                )
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
        save_state(self.state, self.config.as_record(), self.out / STATE)
        self._saved_at = time.monotonic()

    def _evaluate(self, pool: EnvPool) -> None:
        steps = self.state.steps
        actor = self.learner.export(self.state.learner, f"{self.config.env_id} TD3 at {steps} steps")
        slots = pool.n_envs - self.config.envs
        rounds = -(-self.config.eval_episodes // slots)
        point = self._measure(pool, actor, steps, self.config.eval_episodes, len(self.curve) * rounds)
        actor.save(self._checkpoint(steps))
        self.curve.append(point)
        self._write_record(None)
        self._tell()

    def _measure(
        self, pool: EnvPool, actor: Actor, steps: int, episodes: int, first_round: int
    ) -> Checkpoint:
        slots = range(self.config.envs, pool.n_envs)
        played = play_episodes(pool, actor, episodes, slots=slots, first_round=first_round)
        return Checkpoint(steps, *mean_and_error(played.returns), episodes)

    def _checkpoint(self, steps: int) -> Path:
        return self.out / "checkpoints" / f"step-{steps:09d}.safetensors"

    def _write_record(self, choice: Choice | None) -> None:
        record: dict[str, Any] = {
            "settings": self.config.as_record(),
            "jax": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "curve": [asdict(point) for point in self.curve],
            "choice": None if choice is None else asdict(choice),
        }
        with whole_file(self.out / RECORD) as partial:
            partial.write_text(json.dumps(record, indent=1), encoding="utf-8")

    def _tell(self, *, choosing: bool = False) -> None:
        if self._progress is not None:
            best = max(point.episode_return for point in self.curve)
            last = self.curve[-1].episode_return
            self._progress(TrainProgress(self.state.steps, self.config.steps, last, best, choosing))


def _refuse_folder(out: Path, resume: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: exists and is not a folder; expected a folder for the run")
    if not resume and ((out / RECORD).exists() or (out / STATE).exists()):
        raise InputError(f"{out}: holds a training run; give --resume (resume=True) or another folder")


@lru_cache(maxsize=8)  # compiling takes seconds: runs alike in one process share it
def _learner(config: Td3Config, state_dim: int, low: tuple[float, ...], high: tuple[float, ...]) -> Td3:
    return td3(config, state_dim, low, high)


def _fresh_state(config: TrainConfig, task: Task, learner: Td3) -> TrainState:
    capacity = max(config.envs, min(config.replay, config.steps + config.envs))
    return TrainState(
        learner.init(jax.random.fold_in(jax.random.key(config.seed), 0)),
        init_buffer(capacity, task.state_dim, task.action_dim),
        steps=0,
        rounds=0,
    )


def _round_keys(seed: int) -> Callable[[int], tuple[jax.Array, jax.Array]]:
    """Return a function from a round's number to its keys: nothing random has to be saved."""
    base = jax.random.fold_in(jax.random.key(seed), 1)

    @jax.jit
    def keys(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        explore_key, update_key = jax.random.split(jax.random.fold_in(base, number))
        return explore_key, update_key

    return lambda number: keys(jnp.int32(number))


def _read_curve(path: Path) -> list[Checkpoint]:
    try:
        points = json.loads(path.read_text(encoding="utf-8"))["curve"]
        return [Checkpoint(**point) for point in points]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: the curve of the run to resume cannot be read ({error})") from error
