"""TD3 on a Gymnasium task: environments step in worker processes while the learner updates on the device."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.data.atomic import whole_file
from kmifqe.errors import InputError
from kmifqe.policies.actor import Actor, load_safetensors_actor
from kmifqe.worlds.gym_choose import Checkpoint, Choice, choose
from kmifqe.worlds.gym_episodes import play_episodes
from kmifqe.worlds.gym_pool import EnvPool
from kmifqe.worlds.gym_task import Task, describe_task
from kmifqe.worlds.gym_train_config import TrainConfig, TrainProgress
from kmifqe.worlds.gym_train_state import TrainState, load_state, read_settings, save_state
from kmifqe.worlds.gym_truth import mean_and_error
from kmifqe.worlds.td3 import Batch, Td3, Td3Config, add, init_buffer, td3

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
