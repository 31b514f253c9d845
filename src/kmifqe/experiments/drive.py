"""The experiments by name, run row by row; another process collects the next row's data meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax

from kmifqe.cluster import Cluster, Job, Link
from kmifqe.errors import InputError
from kmifqe.estimators.fit import Progress
from kmifqe.experiments import data, figures, policies, ranking, table1
from kmifqe.experiments.context import Context, Experiment
from kmifqe.experiments.records import Record, write_record
from kmifqe.io.files import disk_sentence
from kmifqe.report.watch import Watch

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        policies.POLICIES,
        data.DATA,
        table1.TABLE1,
        table1.LOGLIK,
        figures.FIG1A,
        figures.FIG1B,
        figures.FIG2,
        figures.SHIFT,
        ranking.RANKING,
    )
}
# On a CPU the programs of one fit need a thousand or two memory maps, and Linux gives a process 65,530 by default:
# the 72 fits of the small table are too many, and the compiler ends the process when it gets no more.
MAPS = Path("/proc/self/maps")
LIMIT = Path("/proc/sys/vm/max_map_count")
SHARE = 1 / 3  # a row of six methods needs about a tenth of the limit
BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # NumPy's own library; read once, when a process loads it


def experiments_of(name: str, context: Context) -> tuple[str, ...]:
    """Return the experiments that a name stands for: itself, or everything of the preset for "all"."""
    if name == "all":
        return tuple(each for each in EXPERIMENTS if each != "policies" or context.preset.trains_policies)
    if name not in EXPERIMENTS:
        raise InputError(f"experiment {name!r} is unknown; expected one of {', '.join(EXPERIMENTS)}, all")
    return (name,)


def run_experiments(
    name: str,
    context: Context,
    only: str | None = None,
    *,
    prefetch: bool = True,
    collect_only: bool = False,
    cluster: Cluster | None = None,
) -> None:
    """Run every row of an experiment, or of all of them.

    Args:
        name: the experiment, or "all".
        context: the options of this call.
        only: the one row to run; default: every row.
        prefetch: whether another process collects the next row's data meanwhile; default True.
        collect_only: whether the rows' data are collected, by `context.workers` processes, and nothing is learned
            from them; default False.
        cluster: a Ray cluster whose nodes all see the folders of the context: a task for every row. None, the
            default: this process runs one row after the other.
    """
    chosen = {each: _rows(EXPERIMENTS[each], context) for each in experiments_of(name, context)}
    if context.method is not None:
        known = tuple(dict.fromkeys(method for each in chosen for method in EXPERIMENTS[each].methods))
        if context.method not in known:
            raise InputError(f"method {context.method!r} is unknown; expected one of {', '.join(known)}")
        chosen = {each: rows for each, rows in chosen.items() if context.method in EXPERIMENTS[each].methods}
    if only is not None:
        known = tuple(dict.fromkeys(row for rows in chosen.values() for row in rows))
        if only not in known:
            raise InputError(
                f"{name} has no row {only!r} in preset {context.preset.name}; it has {', '.join(known)}"
            )
        chosen = {each: (only,) for each, rows in chosen.items() if only in rows}
    for folder in (context.results, context.work):
        with disk_sentence(folder):  # before hours of work, not after them
            folder.mkdir(parents=True, exist_ok=True)
    for each, rows in chosen.items():
        if cluster is not None:
            _run_on(cluster, each, rows, context, collect_only=collect_only)
        elif collect_only:
            _collect(EXPERIMENTS[each], rows, context)
        else:
            _run_rows(EXPERIMENTS[each], rows, context, prefetch=prefetch)


class _TaskWatch(Watch):
    """Sends the progress of a task's fits to the cluster's keeper, and keeps its lines for the process that asked."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.lines: list[str] = []

    def say(self, sentence: str) -> None:
        self.lines.append(sentence)

    def warn(self, sentence: str) -> None:
        self.lines.append(f"warning: {sentence}")

    def progress(self, progress: Progress) -> None:
        self._link.progress(progress)


def _run_on(
    cluster: Cluster, name: str, rows: tuple[str, ...], context: Context, *, collect_only: bool
) -> None:
    """Run rows as tasks of a cluster, all at once as far as it has room."""
    sent = replace(
        context, watch=Watch(), workers=1, results=context.results.resolve(), work=context.work.resolve()
    )
    jobs = [Job(f"{name}, {row}", _row_in_task, (name, row, sent, collect_only)) for row in rows]

    def tell(job: Job, lines: list[str]) -> None:
        for line in lines:
            context.say(line)

    cluster.run(jobs, context.watch, tell)


def _row_in_task(link: Link, name: str, row: str, context: Context, collect_only: bool) -> list[str]:
    """Run one row in a cluster's worker; return the lines it said. A row that begins again goes on where it was."""
    watch = _TaskWatch(link)
    again = context.resume or link.attempt > 1
    own = replace(context, watch=watch, resume=again, stop_asked=link.is_stopping)
    experiment = EXPERIMENTS[name]
    if not collect_only:
        experiment.run(row, own)
    elif experiment.prepare is not None:
        experiment.prepare(row, own)
    return watch.lines


def make_records(
    jobs: Mapping[Path, tuple[str, Callable[[], Record]]],
    say: Callable[[str], None],
    cluster: Cluster | None = None,
    watch: Watch | None = None,
) -> None:
    """Write the record that every job makes to its path, and say a line for each.

    jobs: by the path of the record, what is said of it and what makes it.
    say: is given a line for every record.
    cluster: a Ray cluster that makes them all at once; None, the default: this process, one after the other.
    watch: hears how far the cluster is; None for silence.
    """
    if cluster is not None:
        paths = {str(path): path for path in jobs}

        def keep(job: Job, made: tuple[Record, float]) -> None:
            path = paths[job.name]
            write_record(made[0], path)
            say(f"{jobs[path][0]}, {made[1]:.0f} s")

        tasks = [Job(str(path), _record_in_task, (make,)) for path, (_, make) in jobs.items()]
        cluster.run(tasks, Watch() if watch is None else watch, keep)
        return
    for path, (said, make) in jobs.items():
        started = time.perf_counter()
        write_record(make(), path)
        say(f"{said}, {time.perf_counter() - started:.0f} s")
        drop_programs_if_many()


def _record_in_task(link: Link, make: Callable[[], Record]) -> tuple[Record, float]:
    started = time.perf_counter()
    return make(), time.perf_counter() - started


def _collect(experiment: Experiment, rows: tuple[str, ...], context: Context) -> None:
    """Do what the rows need of the processor alone, in pieces that `context.workers` processes share."""
    alone = replace(context, watch=Watch(), workers=1)
    jobs: dict[str, Callable[[], object]] = {}
    for row in rows:
        if experiment.jobs is not None:
            jobs |= experiment.jobs(row, alone)
        elif experiment.prepare is not None:
            jobs[row] = partial(experiment.prepare, row, alone)
    with helpers(max(1, min(context.workers, len(jobs)))) as pool:
        for name, done in {name: pool.submit(job) for name, job in jobs.items()}.items():
            done.result()
            context.say(f"{experiment.name}: {name} is there")


def drop_programs_if_many() -> None:
    """Forget all compiled programs if their memory maps are a third of what the system allows."""
    if not (MAPS.is_file() and LIMIT.is_file()):
        return  # another system, without this limit
    with MAPS.open("rb") as maps:
        used = sum(1 for _ in maps)
    if used > SHARE * int(LIMIT.read_text(encoding="ascii")):
        jax.clear_caches()


def _rows(experiment: Experiment, context: Context) -> tuple[str, ...]:
    rows = experiment.rows(context.preset)
    if context.d4rl_dir is not None and experiment.file_rows is not None:
        rows += experiment.file_rows(context.d4rl_dir)
    return rows


def _run_rows(experiment: Experiment, rows: tuple[str, ...], context: Context, *, prefetch: bool) -> None:
    if not (prefetch and len(rows) > 1 and experiment.prepare is not None):
        for row in rows:
            experiment.run(row, context)
            drop_programs_if_many()
        return
    # Lines would come from two processes at once, and a function of this one cannot be sent to the other.
    quiet = replace(context, watch=Watch())
    with helpers() as helper:
        preparing: Future[None] | None = None
        for row, next_row in zip(rows, (*rows[1:], None)):
            if preparing is not None:
                preparing.result()
            preparing = None if next_row is None else helper.submit(experiment.prepare, next_row, quiet)
            experiment.run(row, context)
            drop_programs_if_many()


@contextmanager
def helpers(count: int = 1) -> Iterator[ProcessPoolExecutor]:
    """Give `count` other processes (default 1) that leave the device alone.

    What they have not begun is dropped when this process fails.
    """
    # They ask a small policy about a few dozen states at a time, beside processes that step environments on every
    # core: threads of their own for matrix products would only wait for one another.
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"
    # Not forked: jax in this process has threads, whose locks a forked child would inherit held.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_stay_off_the_device)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        os.environ.pop(BLAS_THREADS)
        if before is not None:
            os.environ[BLAS_THREADS] = before


def _stay_off_the_device() -> None:
    jax.config.update("jax_platforms", "cpu")
