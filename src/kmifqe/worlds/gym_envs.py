"""Gymnasium tasks: what they are, and many environments stepped in lockstep."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from kmifqe.errors import InputError
from kmifqe.io.policies.objects import check_policy_fits
from kmifqe.mdp.ask import Policy


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
    """Return a new environment; `max_episode_steps` takes the place of the task's own time limit."""
    with warnings.catch_warnings():
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
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class Stepped(NamedTuple):
    """What one step of each environment gave. Rows of environments that were not stepped mean nothing."""

    reached: np.ndarray  # (n, q) float32: the state the step led to, also where the episode ended there
    rewards: np.ndarray  # (n,) float64
    terminated: np.ndarray  # (n,) bool: the environment ended
    truncated: np.ndarray  # (n,) bool: a time limit cut the episode, and the environment did not end
    states: (
        np.ndarray
    )  # (n, q) float32: where the next step starts; after an end, a new episode's first state


class EnvGroup:
    """Environments numbered `slots`, out of `n_slots` in all.

    Every episode has its own seed, made from `seed` and its number `round · n_slots + slot`: first states
    depend neither on how slots are spread over processes nor on what happened in earlier episodes.
    """

    def __init__(
        self, task: Task, slots: range, n_slots: int, seed: int, max_episode_steps: int | None
    ) -> None:
        self._task, self._slots, self._n_slots, self._seed = task, slots, n_slots, seed
        self._envs = [make_env(task.env_id, max_episode_steps) for _ in slots]
        self._rounds = [0] * len(slots)
        self._states = np.zeros((len(slots), task.state_dim), np.float32)

    def reset(self, active: np.ndarray, first_round: int) -> np.ndarray:
        """Return all current states after starting episode `first_round` in each active environment."""
        for i in np.flatnonzero(active).tolist():
            self._rounds[i] = first_round
            self._start_episode(i)
        return self._states.copy()

    def step(self, actions: np.ndarray, active: np.ndarray) -> Stepped:
        """Step each active environment; where its episode ends, start the next one."""
        n = len(self._envs)
        reached, rewards = self._states.copy(), np.zeros(n)
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        dtype = self._envs[0].action_space.dtype
        clipped = np.clip(actions, self._task.low, self._task.high).astype(dtype)
        for i in np.flatnonzero(active).tolist():
            observation, reward, ended, cut, _ = self._envs[i].step(clipped[i])
            reached[i] = self._states[i] = _finite_state(observation)
            rewards[i] = reward
            terminated[i], truncated[i] = ended, cut and not ended
            if ended or cut:
                self._start_episode(i)
        if not np.isfinite(rewards).all():
            raise ValueError("a reward is NaN or infinite")
        return Stepped(reached, rewards, terminated, truncated, self._states.copy())

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    def _start_episode(self, i: int) -> None:
        number = self._rounds[i] * self._n_slots + self._slots[i]
        seed = int(np.random.SeedSequence((self._seed, number)).generate_state(1)[0])
        observation, _ = self._envs[i].reset(seed=seed)
        self._states[i] = _finite_state(observation)
        self._rounds[i] += 1


def _finite_state(observation: np.ndarray) -> np.ndarray:
    # float32 is what the log holds: the policy must act on what is logged, or the density is not exact.
    state = np.asarray(observation, np.float32)
    if not np.isfinite(state).all():
        raise ValueError("an observation holds NaN, infinity or a number beyond float32's range")
    return state


PATIENCE = 5.0  # seconds a worker is given to end by itself


class EnvPool:
    """`n_envs` environments over `workers` processes; use it in a `with` block, which ends the processes.

    One worker means this process itself. What the environments do does not depend on the number of workers.
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
        workers = min(workers, n_envs)
        # Interleaved, so that any run of neighbouring environments is spread over all workers.
        self._members = [range(start, n_envs, workers) for start in range(workers)]
        self._groups: list[EnvGroup | _RemoteGroup] = []
        kind = EnvGroup if workers == 1 else _RemoteGroup
        try:
            for slots in self._members:
                self._groups.append(kind(task, slots, n_envs, seed, max_episode_steps))
        except BaseException:
            self.close()
            raise
        self.states = np.zeros((n_envs, task.state_dim), np.float32)  # where the next step starts

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def reset(self, active: np.ndarray | None = None, first_round: int = 0) -> np.ndarray:
        """Return all states after the active environments (default: all) began episode `first_round`."""
        active = self._mask(active)
        answers = self._ask("reset", [(active[slots], first_round) for slots in self._members])
        for slots, states in zip(self._members, answers):
            self.states[slots] = states
        return self.states.copy()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Stepped:
        """Return what one step of each active environment (default: all) gave, in order."""
        active = self._mask(active)
        answers = self._ask("step", [(actions[slots], active[slots]) for slots in self._members])
        n, q = self.n_envs, self.task.state_dim
        whole = Stepped(
            np.empty((n, q), np.float32), np.empty(n), np.empty(n, bool), np.empty(n, bool), self.states
        )
        for slots, part in zip(self._members, answers):
            for target, values in zip(whole, part):
                target[slots] = values
        return whole._replace(states=self.states.copy())

    def close(self) -> None:
        """Close the environments and end the processes."""
        for group in self._groups:
            group.close()
        for group in self._groups:  # after all were told, so that they end at the same time
            if isinstance(group, _RemoteGroup):
                group.join()
        self._groups = []

    def _mask(self, active: np.ndarray | None) -> np.ndarray:
        return np.ones(self.n_envs, bool) if active is None else active

    def _ask(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Return every group's answer; all of them work at the same time."""
        waiting = []
        for group, given in zip(self._groups, arguments):
            if isinstance(group, _RemoteGroup):
                group.send(method, given)
                waiting.append(group)
        if waiting:
            return [group.receive() for group in waiting]
        try:
            return [getattr(group, method)(*given) for group, given in zip(self._groups, arguments)]
        except Exception as error:  # an environment's own code may raise anything
            raise InputError(_failure(self.task, error)) from error


class _RemoteGroup:
    """An EnvGroup in a process of its own."""

    def __init__(
        self, task: Task, slots: range, n_slots: int, seed: int, max_episode_steps: int | None
    ) -> None:
        # Not forked: jax in this process has threads, whose locks a forked child would inherit held.
        context = multiprocessing.get_context("spawn")
        self._task = task
        self._pipe, remote_end = context.Pipe()
        arguments = (remote_end, task, slots, n_slots, seed, max_episode_steps)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        remote_end.close()  # else the end of the worker would not show as the end of the pipe

    def send(self, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            self._pipe.send((method, arguments))
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> Any:
        try:
            answer, failure = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if failure is not None:
            raise InputError(failure)
        return answer

    def close(self) -> None:
        self._pipe.close()

    def join(self) -> None:
        self._process.join(PATIENCE)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def _lost(self) -> InputError:
        self._process.join(PATIENCE)
        return InputError(
            f"{self._task.env_id}: a worker process ended by itself (exit code {self._process.exitcode}); "
            "out of memory, a crash inside the environment, or a script that starts work outside "
            'if __name__ == "__main__"'
        )


def _serve(
    pipe: Connection, task: Task, slots: range, n_slots: int, seed: int, max_episode_steps: int | None
) -> None:
    """Answer requests until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe
    group: EnvGroup | None = None
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            if group is None:
                group = EnvGroup(task, slots, n_slots, seed, max_episode_steps)
            answer, failure = getattr(group, method)(*arguments), None
        except Exception as error:  # reported to the parent, which raises it
            answer, failure = None, _failure(task, error)
        try:
            pipe.send((answer, failure))
        except OSError:  # the parent left while we worked
            break
    if group is not None:
        group.close()


def _failure(task: Task, error: Exception) -> str:
    detail = " ".join(str(error).split())
    return f"{task.env_id}: the environment failed ({type(error).__name__}: {detail})"
