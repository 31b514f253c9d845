"""Gymnasium tasks: what they are, and many environments stepped together, in this process or in several.

Each process steps its share of the environments with `gymnasium.vector.SyncVectorEnv`. `AsyncVectorEnv` starts a
process for every environment, and a message to each of them at every step takes longer than a step: on two cores
64 Pendulums took 7,700 steps/s with it and 74,000 here, 64 Hoppers 4,000 and 11,700. So a pipe to each of a few
processes stays here. Neither class can leave some environments where they are, which `_Pausable` adds.
"""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from kmifqe.errors import InputError, shown
from kmifqe.io.policies.objects import check_policy_fits, importable_from_here
from kmifqe.mdp.ask import Policy

PATIENCE = 5.0  # seconds a worker is given to end by itself


@dataclass(frozen=True)
class Task:
    """What a policy, a log and a learner must fit."""

    env_id: str
    state_dim: int
    low: np.ndarray  # (d,) float32, action bounds
    high: np.ndarray
    time_limit: int | None  # steps after which the task itself cuts an episode; None: never

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return len(self.low)


def describe_task(env_id: str) -> Task:
    """Return the facts about a Gymnasium id; refuse what is not registered, or not made of flat Boxes."""
    env = make_env(env_id)
    try:
        states = _flat_box(env.observation_space, env_id, "observation")
        actions = _flat_box(env.action_space, env_id, "action")
        low, high = np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32)
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise InputError(f"{env_id}: the action box is {actions}; expected finite bounds, low below high")
        limit = None if env.spec is None else env.spec.max_episode_steps
        return Task(env_id, states.shape[0], low, high, limit)
    finally:
        env.close()


def make_env(env_id: str, max_episode_steps: int | None = None) -> gymnasium.Env[Any, Any]:
    """Return a new environment; `max_episode_steps` takes the place of the task's own time limit.

    The id `module:Name-v0` imports the module, which may lie in the current directory, and which registers Name-v0.
    """
    with warnings.catch_warnings(), importable_from_here():
        # "-v4 is out of date": that it is the closest to the paper's tasks is why it was asked for.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return gymnasium.make(env_id, max_episode_steps=max_episode_steps, disable_env_checker=True)
        except gymnasium.error.DependencyNotInstalled as error:
            hint = "; install kmifqe[mujoco]" if "mujoco" in str(error).lower() else ""
            raise InputError(f"{env_id}: a package it needs is missing ({_one_line(error)}){hint}") from error
        except Exception as error:  # making an environment runs its author's code, which may raise anything
            raise InputError(
                f"{env_id}: not an environment that Gymnasium can make ({_one_line(error)}); expected an id "
                "such as Pendulum-v1, or module:Name-v0 where importing the module registers it"
            ) from error


def check_policy_fits_task(policy: Policy, task: Task) -> None:
    """Raise InputError unless the policy maps the task's states to its actions."""
    try:
        check_policy_fits(policy, task.state_dim, task.action_dim)
    except InputError as error:
        # The check speaks of "the data"; here that is what the environment shows.
        raise InputError(str(error).replace("the data has", f"{task.env_id} has")) from error


def _flat_box(space: spaces.Space[Any], env_id: str, what: str) -> spaces.Box:
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] > 0:
        return space
    raise InputError(f"{env_id}: the {what} space is {space}; expected a Box of one axis")


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {shown(error)}"


class Stepped(NamedTuple):
    """What one step of each environment gave. Rows of environments that were not stepped mean nothing."""

    reached: np.ndarray  # (n, q) float32: the state the step led to, also where the episode ended there
    rewards: np.ndarray  # (n,) float64
    terminated: np.ndarray  # (n,) bool: the environment ended
    truncated: np.ndarray  # (n,) bool: a time limit cut the episode, and the environment did not end
    states: np.ndarray  # (n, q) float32: where the next step starts, after an end in a new episode


class EnvPool:
    """`n_envs` environments over `workers` processes; use it in a `with` block, which ends the processes.

    task: what `describe_task` returned.
    seed: 0 or more. Episode k of environment i has a seed of its own, made from `seed` and the number
        k · n_envs + i. So what the environments do does not depend on `workers`.
    workers: processes that step them. With 1, the default, this process does and none is started.
    max_episode_steps: takes the place of the task's own time limit; None, the default, keeps that.

    Workers know neither policies nor jax devices: they only step, so any policy can drive them.
    """

    def __init__(
        self,
        task: Task,
        n_envs: int,
        *,
        seed: int = 0,
        workers: int = 1,
        max_episode_steps: int | None = None,
    ) -> None:
        if min(n_envs, workers) < 1:
            raise InputError(f"{n_envs} environments in {workers} workers; expected 1 or more of each")
        if seed < 0:
            raise InputError(f"seed is {seed}; expected 0 or more")
        self.task, self.n_envs = task, n_envs
        self.states = np.zeros((n_envs, task.state_dim), np.float32)  # where the next step starts
        workers = min(workers, n_envs)
        # Interleaved, so that any run of neighbouring environments is spread over all workers.
        self._members = [range(start, n_envs, workers) for start in range(workers)]
        groups = [_Group(task, slots, n_envs, seed, max_episode_steps) for slots in self._members]
        self._own_group = groups[0]  # stays unused where there are workers
        self._workers: list[_Worker] = []
        try:
            for group in groups if workers > 1 else []:
                self._workers.append(_Worker(group))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self, active: np.ndarray | None = None, first_round: int = 0) -> np.ndarray:
        """Return all states, (n, q), after the `active` environments (default: all) began episode `first_round`."""
        active = np.ones(self.n_envs, bool) if active is None else active
        answers = self._ask("reset", [(active[slots], first_round) for slots in self._members])
        self.states = self._joined(answers)
        return self.states

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Stepped:
        """Return what one step of each `active` environment (default: all) gave, in order.

        `actions` has shape (n, d); an environment gets its action clipped to the task's box. Where an episode
        ends, the next one starts at once, so no step is spent on a reset.
        """
        active = np.ones(self.n_envs, bool) if active is None else active
        answers = self._ask("step", [(actions[slots], active[slots]) for slots in self._members])
        stepped = Stepped(*map(self._joined, zip(*answers)))
        self.states = stepped.states
        return stepped

    def close(self) -> None:
        """Close the environments and end the processes."""
        self._own_group.close()
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:  # a second loop, so that the processes end at the same time
            worker.join()
        self._workers = []

    def _joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        whole = np.empty((self.n_envs, *parts[0].shape[1:]), parts[0].dtype)
        for slots, part in zip(self._members, parts):
            whole[slots] = part
        return whole

    def _ask(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Return every group's answer; all of them work at the same time."""
        for worker, given in zip(self._workers, arguments):
            worker.send((method, given))
        answers = [worker.receive() for worker in self._workers]
        answers = answers or [self._own_group.answer(method, arguments[0])]
        for answer in answers:
            if isinstance(answer, InputError):
                raise answer
        return answers


class _Pausable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that stays where it is while its action is None. Nobody reads its infos: they are dropped."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self._observation, _ = self.env.reset(seed=seed)
        return self._observation, {}

    def step(self, action: np.ndarray | None) -> tuple[Any, Any, bool, bool, Any]:
        if action is None:
            return self._observation, 0.0, False, False, {}
        self._observation, reward, terminated, truncated, _ = self.env.step(action)
        return self._observation, reward, terminated, truncated, {}


class _Group:
    """The environments numbered `slots`, out of `n_slots` in all; made by the process that steps them."""

    def __init__(
        self, task: Task, slots: range, n_slots: int, seed: int, max_episode_steps: int | None
    ) -> None:
        self.task, self._slots, self._n_slots, self._seed = task, slots, n_slots, seed
        self._max_episode_steps = max_episode_steps
        self._rounds = np.zeros(len(slots), np.int64)  # the number of each environment's next episode
        self._envs: Any = None  # a SyncVectorEnv from the first reset on

    def reset(self, active: np.ndarray, first_round: int) -> np.ndarray:
        if self._envs is None:
            make = lambda: _Pausable(make_env(self.task.env_id, self._max_episode_steps))  # noqa: E731
            # Its own resets would not use the episodes' seeds. `_finite_states` copies its observations.
            disabled = AutoresetMode.DISABLED
            self._envs = SyncVectorEnv([make] * len(active), copy=False, autoreset_mode=disabled)
            self._start_episodes(np.ones(len(active), bool))  # the vector reads the paused ones too
        self._rounds[active] = first_round
        return self._start_episodes(active)

    def step(self, actions: np.ndarray, active: np.ndarray) -> Stepped:
        clipped = np.clip(actions, self.task.low, self.task.high).astype(self._envs.single_action_space.dtype)
        given = [action if moves else None for action, moves in zip(clipped, active)]
        observations, rewards, terminated, truncated, _ = self._envs.step(given)
        reached = self._states = _finite_states(observations)
        if not np.isfinite(rewards).all():
            raise ValueError("a reward is NaN or infinite")
        states = self._start_episodes(terminated | truncated)
        return Stepped(reached, rewards, terminated, truncated & ~terminated, states)

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()

    def answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Return what a method of this group returns, or the InputError that says why it failed."""
        try:
            with importable_from_here():
                return getattr(self, method)(*arguments)
        except InputError as error:
            return error
        except Exception as error:  # an environment's own code may raise anything
            failure = InputError(f"{self.task.env_id}: the environment failed ({_one_line(error)})")
            failure.__cause__ = error
            return failure

    def _start_episodes(self, where: np.ndarray) -> np.ndarray:
        """Return all current states after starting the next episode of each environment in the mask `where`."""
        if where.any():
            seeds: list[int | None] = [None] * len(where)
            for i in np.flatnonzero(where).tolist():
                number = int(self._rounds[i]) * self._n_slots + self._slots[i]
                seeds[i] = int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0])
            self._rounds[where] += 1
            self._states = _finite_states(self._envs.reset(seed=seeds, options={"reset_mask": where})[0])
        return self._states


def _finite_states(observations: np.ndarray) -> np.ndarray:
    # float32 is what the log holds: the policy must act on what is logged, or the density is not exact.
    states = observations.astype(np.float32)
    if not np.isfinite(states).all():
        raise ValueError("an observation holds NaN, infinity or a number beyond float32's range")
    return states


class _Worker:
    """A process that steps one group."""

    def __init__(self, group: _Group) -> None:
        # Not forked: jax in this process has threads, whose locks a forked child would inherit held.
        context = multiprocessing.get_context("spawn")
        self._env_id = group.task.env_id
        self.pipe, remote_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(remote_end, group), daemon=True)
        self._process.start()
        remote_end.close()  # else the end of the worker would not show as the end of the pipe

    def send(self, request: tuple[str, tuple[Any, ...]]) -> None:
        self._use_pipe(self.pipe.send, request)

    def receive(self) -> Any:
        return self._use_pipe(self.pipe.recv)

    def join(self) -> None:
        self._process.join(PATIENCE)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def _use_pipe(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except (EOFError, OSError) as error:
            self._process.join(PATIENCE)
            raise InputError(
                f"{self._env_id}: a worker process ended by itself (exit code {self._process.exitcode}); "
                "out of memory, a crash inside the environment, or a script that starts work outside "
                'if __name__ == "__main__"'
            ) from error


def _serve(pipe: Connection, group: _Group) -> None:
    """Answer requests until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe
    try:
        while True:
            pipe.send(group.answer(*pipe.recv()))
    except (EOFError, OSError):  # the parent closed its end, perhaps while we worked
        group.close()
