"""Run experiments row by row, the next row's data collected in another process meanwhile."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import cast

import jax

from kmifqe.errors import InputError
from kmifqe.experiments.context import Context, silent
from kmifqe.experiments.presets import METHODS
from kmifqe.io.files import disk_sentence

# On a CPU the programs of one fit take a thousand or two memory maps, and Linux gives a process 65,530 unless told
# otherwise: the 72 fits of the small table are too many, and the compiler ends the process when it gets no more.
MAPS = Path("/proc/self/maps")
LIMIT = Path("/proc/sys/vm/max_map_count")
SHARE = 1 / 3  # a row of six methods takes about a tenth of the limit


def drop_programs_if_many() -> None:
    """Forget all compiled programs if their memory maps are a third of what the system allows."""
    if not (MAPS.is_file() and LIMIT.is_file()):
        return  # another system, without this limit
    with MAPS.open("rb") as maps:
        used = sum(1 for _ in maps)
    if used > SHARE * int(LIMIT.read_text(encoding="ascii")):
        jax.clear_caches()


BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # NumPy's own library; read once, when a process loads it
EXPERIMENTS = ("policies", "data", "table1", "loglik", "fig1a", "fig1b", "fig2", "shift")


def experiments_of(name: str, context: Context) -> tuple[str, ...]:
    """Return the experiments that a name stands for: itself, or everything of the preset for "all"."""
    if name == "all":
        return EXPERIMENTS if context.preset.trains_policies else EXPERIMENTS[1:]
    if name not in EXPERIMENTS:
        raise InputError(f"experiment {name!r} is unknown; expected one of {', '.join(EXPERIMENTS)}, all")
    return (name,)


def run_experiments(name: str, context: Context, only: str | None = None, *, prefetch: bool = True) -> None:
    """Run every row (or only one) of an experiment, or of all of them."""
    chosen = [(each, _rows(each, context)) for each in experiments_of(name, context)]
    if context.method is not None:
        chosen = _with_method(context.method, chosen)
    if only is not None:
        known = tuple(dict.fromkeys(row for _, rows in chosen for row in rows))
        if only not in known:
            raise InputError(
                f"{name} has no row {only!r} in preset {context.preset.name}; it has {', '.join(known)}"
            )
        chosen = [(each, (only,)) for each, rows in chosen if only in rows]
    for folder in (context.results, context.work):
        with disk_sentence(folder):  # before hours of work, not after them
            folder.mkdir(parents=True, exist_ok=True)
    for each, rows in chosen:
        _run_rows(_module(each), rows, context, prefetch=prefetch)


def _with_method(method: str, chosen: list[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the experiments that have the method; refuse one that none has."""
    methods = {each: _methods(each) for each, _ in chosen}
    known = tuple(dict.fromkeys(name for names in methods.values() for name in names))
    if method not in known:
        raise InputError(f"method {method!r} is unknown; expected one of {', '.join(known)}")
    return [(each, rows) for each, rows in chosen if method in methods[each]]


def _methods(name: str) -> tuple[str, ...]:
    """Return the methods of an experiment: its own one, or the estimators."""
    own = getattr(_module(name), "METHOD", None)
    return METHODS if own is None else (own,)


def _run_rows(module: ModuleType, rows: tuple[str, ...], context: Context, *, prefetch: bool) -> None:
    if not (prefetch and len(rows) > 1 and hasattr(module, "prepare")):
        for row in rows:
            module.run(row, context)
            drop_programs_if_many()
        return
    # Words would come from two processes at once, and a function of this one cannot be sent to the other.
    quiet = replace(context, say=silent, on_progress=None)
    with _helper() as helper:
        ahead: Future[None] | None = None
        for row, following in zip(rows, (*rows[1:], None)):
            if ahead is not None:
                ahead.result()
            ahead = None if following is None else helper.submit(_prepare, module.__name__, following, quiet)
            module.run(row, context)
            drop_programs_if_many()


def _prepare(module: str, row: str, context: Context) -> None:
    import_module(module).prepare(row, context)


@contextmanager
def _helper() -> Iterator[ProcessPoolExecutor]:
    """Give one other process; what it has not begun is dropped when this one fails."""
    # It asks a small policy about a few dozen states at a time, beside processes that step environments on every
    # core: threads of its own for matrix products would only wait for one another.
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"
    # Not forked: jax in this process has threads, whose locks a forked child would inherit held.
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_stay_off_the_device)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        os.environ.pop(BLAS_THREADS)
        if before is not None:
            os.environ[BLAS_THREADS] = before


def _stay_off_the_device() -> None:
    jax.config.update("jax_platforms", "cpu")


def _rows(name: str, context: Context) -> tuple[str, ...]:
    module = _module(name)
    rows = cast("tuple[str, ...]", module.rows(context.preset))
    if context.d4rl_dir is not None and hasattr(module, "file_rows"):
        rows += module.file_rows(context.d4rl_dir)
    return rows


def _module(name: str) -> ModuleType:
    return import_module(f"kmifqe.experiments.{name}")
