"""Environments in several processes, stepped in lockstep as if they were one array."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np

from kmifqe.errors import InputError
from kmifqe.worlds.gym_group import EnvGroup, Stepped
from kmifqe.worlds.gym_task import Task

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
