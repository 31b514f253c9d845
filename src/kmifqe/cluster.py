"""Tasks on a Ray cluster: where they run, what they have reached, and how they are stopped.

Ray schedules the tasks and starts one again whose process or node was lost. A keeper, an actor on the node of the
process that asks, holds the last snapshot and the progress of every task. A task that begins again goes on from its
snapshot, so no file system need be shared. The process that asks writes what the keeper has into its run directory.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from kmifqe.errors import InputError, shown
from kmifqe.estimators.fit import Checkpoints, Plan, Progress, Snapshot
from kmifqe.io.cache import refuse_shared
from kmifqe.io.format import size
from kmifqe.mdp.host_rows import HostRows, free_device_bytes
from kmifqe.mdp.problem import WIDE, Problem
from kmifqe.report.watch import TaskProgress, Watch
from kmifqe.store.checkpoints import SAVE_SECONDS, Interrupted

HERE = "auto"  # the address that stands for: the cluster of RAY_ADDRESS, one that runs here, or a new one
RETRIES = 20  # of a task whose process or node was lost
POLL_SECONDS = 0.2
ANSWER_SECONDS = 5.0  # for a head node to take a connection; Ray itself would try for many minutes
BASE_BYTES = 2**30  # of a worker besides its data: Python, the libraries and the compiler
WORKING_STATES = 3  # sizes of the networks' state that a program holds at most


class Job(NamedTuple):
    """One task: what is run where, and what it needs."""

    name: str  # unlike every other job's
    run: Callable[..., Any]  # run(link, *arguments), a function of a module
    arguments: tuple[Any, ...] = ()  # `Cluster.share` makes one that all jobs of a node use in common
    plan: Plan | None = None  # of the fit, where the job is one fit whose snapshots are kept
    checkpoints: Checkpoints | None = None  # of the process that asks: where snapshots go to and come from
    start: Snapshot | None = None  # where the fit goes on from
    memory: int = 0  # bytes that the task will take; 0: not known


class Link:
    """A task's connection to the keeper, which is also the `Checkpoints` of its fit."""

    def __init__(
        self, keeper: Any, name: str, start: Snapshot | None, attempt: int, save_seconds: float
    ) -> None:
        self._keeper, self._name, self._start, self._save_seconds = keeper, name, start, save_seconds
        self.attempt = attempt  # 1, or more where an earlier process was lost
        self._saved_at = time.perf_counter()
        self._steps = 0
        self.last = start  # the newest snapshot
        self.last_steps = 0  # so many steps before the end, and from there on, every snapshot is wanted

    def restore(self, plan: Plan, problem: Problem) -> Snapshot | None:
        """Return the snapshot that the keeper has for this task."""
        self._saved_at, self._steps = time.perf_counter(), plan.steps
        return self._start

    def due(self, step: int) -> bool:
        """Return whether the fit ends, enough time has passed since the last save, or a stop was asked for."""
        if step >= self._steps - self.last_steps or self.is_stopping():
            return True
        return time.perf_counter() - self._saved_at >= self._save_seconds

    def save(self, snapshot: Snapshot) -> None:
        """Give the keeper a snapshot; raise Interrupted where a stop was asked for."""
        import ray

        self.last = snapshot
        ray.get(self._keeper.save.remote(self._name, snapshot))
        self._saved_at = time.perf_counter()
        if snapshot.step < self._steps and self.is_stopping():
            raise Interrupted(self._name, snapshot, self._steps)

    def stop_if_asked(self, last: Snapshot | None) -> None:
        """Raise Interrupted where a stop was asked for, after giving the keeper the `last` snapshot."""
        if self.is_stopping():
            if last is not None:
                self.save(last)
            raise Interrupted(self._name, last, self._steps)

    def progress(self, progress: Progress) -> None:
        """Tell the keeper how far the fit is."""
        said = TaskProgress(
            self._name, progress.estimator, progress.step, progress.steps, progress.steps_per_second,
            progress.begun, self.attempt, os.getpid(),
        )  # fmt: skip
        self._keeper.report.remote(said)

    def is_stopping(self) -> bool:
        """Return whether the process that asked was told to stop."""
        import ray

        return bool(ray.get(self._keeper.is_stopping.remote()))


class _Keeper:
    """What all tasks of a run have reached. It runs as an actor; its methods are called by tasks and by the asker."""

    def __init__(self, starts: dict[str, Snapshot]) -> None:
        self._snapshots = dict(starts)
        self._unread: dict[str, Snapshot] = {}
        self._progress: dict[str, TaskProgress] = {}
        self._attempts: dict[str, int] = {}
        self._stopping = False

    def begin(self, name: str) -> tuple[bool, Snapshot | None, int]:
        """Return whether to stop at once, where to go on from, and which attempt this is."""
        self._attempts[name] = self._attempts.get(name, 0) + 1
        return self._stopping, self._snapshots.get(name), self._attempts[name]

    def save(self, name: str, snapshot: Snapshot) -> None:
        """Keep the newest snapshot of a task."""
        self._snapshots[name] = self._unread[name] = snapshot

    def report(self, progress: TaskProgress) -> None:
        """Keep the newest progress of a task."""
        self._progress[progress.name] = progress

    def forget(self, name: str) -> None:
        """Drop what a finished task has reached."""
        for held in (self._snapshots, self._unread, self._progress):
            held.pop(name, None)

    def stop(self) -> None:
        """Let every task save and stop."""
        self._stopping = True

    def is_stopping(self) -> bool:
        """Return whether tasks are to stop."""
        return self._stopping

    def news(self) -> tuple[dict[str, Snapshot], list[TaskProgress], dict[str, int]]:
        """Return the snapshots since the last call, the progress of all tasks, and the attempts of each."""
        unread, self._unread = self._unread, {}
        return unread, list(self._progress.values()), dict(self._attempts)


class _Stopped(NamedTuple):
    """What a task returns that was asked to stop."""

    snapshot: Snapshot | None


def _task(
    keeper: Any, name: str, save_seconds: float, programs: str | None, run: Any, *arguments: Any
) -> Any:
    """Do one job in a worker's process."""
    import ray

    stopping, snapshot, attempt = ray.get(keeper.begin.remote(name))
    if stopping:
        return _Stopped(snapshot)
    _use_compiled_programs(programs)
    try:
        return run(Link(keeper, name, snapshot, attempt, save_seconds), *arguments)
    except Interrupted as stopped:
        return _Stopped(stopped.snapshot)


def _use_compiled_programs(folder: str | None) -> None:
    """Take compiled programs from where the asking process keeps them, if this node has that folder for the user."""
    if folder is None or not Path(folder).is_dir():
        return
    try:
        refuse_shared(Path(folder))
    except InputError:
        return
    jax.config.update("jax_compilation_cache_dir", folder)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that this process is connected to, by `connect`."""

    save_seconds: float = SAVE_SECONDS
    stop_asked: Callable[[], bool] = lambda: False

    def share(self, value: Any) -> Any:
        """Put a value where every node has it once; give what is returned to jobs in its place."""
        import ray

        return ray.put(value)

    def run(
        self, jobs: Sequence[Job], watch: Watch, on_done: Callable[[Job, Any], None] = lambda job, found: None
    ) -> list[Any]:
        """Return what every job returned, in their order, however often a worker was lost on the way.

        Raises `Interrupted` after all tasks have saved where a stop was asked for.

        jobs: what is run, all at once as far as the cluster has room.
        watch: hears how far all of them are, and which were started again.
        on_done: called with a job and what it returned, as soon as it has ended.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not jobs:
            return []
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        kept: Any = ray.remote(_Keeper).options(num_cpus=0, scheduling_strategy=here, max_concurrency=1)
        keeper = kept.remote({job.name: job.start for job in jobs if job.start is not None})
        task = ray.remote(_task)
        programs = getattr(jax.config, "jax_compilation_cache_dir", None)
        tasks: dict[Any, Job] = {}
        for job in jobs:
            options = self._resources(job)
            ref = task.options(name=job.name, max_retries=RETRIES, **options).remote(
                keeper, job.name, self.save_seconds, programs, job.run, *job.arguments
            )
            tasks[ref] = job
        try:
            return _follow(keeper, tasks, jobs, watch, self.stop_asked, on_done)
        except BaseException:
            for ref in tasks:
                ray.cancel(ref, force=True)
            raise
        finally:
            watch.end()
            ray.kill(keeper)

    def _resources(self, job: Job) -> dict[str, Any]:
        """Return what Ray is to give the job's process; refuse a job that no node has the memory for."""
        import ray

        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
        found: dict[str, Any] = {"num_cpus": 1, "num_gpus": gpus}
        if job.memory:
            largest = max(
                (node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]), default=0
            )
            if job.memory > largest:
                raise InputError(
                    f"{job.name} needs about {size(job.memory)} of memory, and the largest node of the cluster gives "
                    f"{size(int(largest))}; add a larger node, or take fewer networks or rows"
                )
            found["memory"] = job.memory
        return found


def _follow(
    keeper: Any,
    tasks: dict[Any, Job],
    jobs: Sequence[Job],
    watch: Watch,
    stop_asked: Callable[[], bool],
    on_done: Callable[[Job, Any], None],
) -> list[Any]:
    """Wait for all tasks; keep their snapshots and show their progress meanwhile."""
    import ray

    by_name = {job.name: job for job in jobs}
    found: dict[str, Any] = {}
    stopped: list[tuple[Job, Snapshot | None]] = []
    seen: dict[str, int] = {}
    is_told, pending = False, dict(tasks)
    while pending:
        ended, _ = ray.wait(list(pending), num_returns=len(pending), timeout=POLL_SECONDS)
        snapshots, progress, attempts = ray.get(keeper.news.remote())
        for name, attempt in attempts.items():
            if attempt > max(1, seen.get(name, 1)):
                watch.warn(
                    f"{name}: its worker was lost; started again from its last snapshot (attempt {attempt})"
                )
            seen[name] = attempt
        for name, snapshot in snapshots.items():
            _keep(by_name[name], snapshot)
        for ref in ended:
            job = pending.pop(ref)
            result = _result(ref, job)
            if isinstance(result, _Stopped):
                stopped.append((job, result.snapshot))
                continue
            found[job.name] = result
            on_done(job, result)
            keeper.forget.remote(job.name)
        watch.tasks([each for each in progress if each.name not in found], len(found), len(jobs))
        if stop_asked() and not is_told:
            is_told = True
            ray.get(keeper.stop.remote())
    for name, snapshot in ray.get(keeper.news.remote())[0].items():
        _keep(by_name[name], snapshot)
    if stopped:
        job, snapshot = max(stopped, key=lambda each: 0 if each[1] is None else each[1].step)
        raise Interrupted(job.name, snapshot, job.plan.steps if job.plan is not None else 0)
    return [found[job.name] for job in jobs]


def _keep(job: Job, snapshot: Snapshot) -> None:
    """Write a snapshot into the run directory; the others must be written too before a stop is obeyed."""
    if job.checkpoints is not None:
        with suppress(Interrupted):
            job.checkpoints.save(snapshot)


def _result(ref: Any, job: Job) -> Any:
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, InputError | Interrupted):
            raise cause from error
        raise
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        raise InputError(
            f"{job.name}: its worker was lost {RETRIES + 1} times ({shown(error)}); see the logs of the cluster, and "
            "go on with --resume"
        ) from error
    except ray.exceptions.OutOfMemoryError as error:
        raise InputError(
            f"{job.name}: the node's memory gave out; add a larger node, or take fewer networks or rows, and go on "
            "with --resume"
        ) from error


@contextmanager
def connect(
    address: str | None,
    *,
    save_seconds: float = SAVE_SECONDS,
    stop_asked: Callable[[], bool] = lambda: False,
) -> Iterator[Cluster | None]:
    """Give the Ray cluster at `address` while the block runs; None for None.

    address: as `ray.init` takes it, or "auto": the cluster that RAY_ADDRESS names or that runs on this machine, else
        a new one of this machine's cores, which ends with the block.
    save_seconds: the least time between two snapshots of a task.
    stop_asked: asked twice a second; True lets all tasks save and stop.
    """
    if address is None:
        yield None
        return
    try:
        import ray
    except ImportError as error:
        raise InputError("--ray needs ray; pip install 'kmifqe[ray]'") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
        chosen = None if address in ("", HERE) else address
        address = chosen or os.environ.get("RAY_ADDRESS") or HERE
        try:
            _refuse_silent(address)
            with warnings.catch_warnings():
                # JAX warns of forks; those with which Ray starts a cluster become other programs at once.
                warnings.filterwarnings("ignore", r"os\.fork\(\)", RuntimeWarning)
                ray.init(
                    address=chosen,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    namespace="kmifqe",
                )
            # Ray prints a paragraph on stdout for every lost worker, whatever it is told above; the watch says it.
            ray._private.worker._worker_logs_enabled = False
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise InputError(
                f"--ray {shown(address)}: no Ray cluster answers there ({shown(error)}); expected the address of a "
                "head node, such as 10.0.0.1:6379 or ray://host:10001, or no address for this machine"
            ) from error
    try:
        yield Cluster(save_seconds, stop_asked)
    finally:
        if is_ours:
            ray._private.worker._worker_logs_enabled = True
            ray.shutdown()


def _refuse_silent(address: str) -> None:
    """Raise OSError where `address` names a host and a port, and nothing takes a connection there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()


def packed(problem: Problem) -> Problem:
    """Return the problem with all arrays on the host, as it travels to other nodes."""
    held = {
        each.name: getattr(problem, each.name) for each in fields(problem) if not each.metadata.get("static")
    }
    arrays: dict[str, Any] = {name: None if x is None else np.asarray(x) for name, x in held.items()}
    return replace(problem, **arrays)


def unpacked(problem: Problem) -> Problem:
    """Return a packed problem with its arrays on this process's device, the wide ones on the host if it is small."""
    held = {
        each.name: getattr(problem, each.name) for each in fields(problem) if not each.metadata.get("static")
    }
    arrays = {name: x for name, x in held.items() if x is not None}
    free = free_device_bytes()
    on_host = free is not None and sum(arrays[name].nbytes for name in WIDE if name in arrays) >= 0.9 * free
    placed: dict[str, Any] = {
        name: HostRows.hold(x) if on_host and name in WIDE else jax.device_put(x)
        for name, x in arrays.items()
    }
    return replace(problem, **placed)


def memory_of(problem: Problem, state: Any) -> int:
    """Return about how many bytes a task takes that fits networks with the shapes `state` to `problem`."""
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return BASE_BYTES + problem.device_bytes + problem.host_bytes + WORKING_STATES * held
