"""How KMIFQE's times grow with seeds, rows of the log and width of the action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import floor
from machine import on_gpu
from near_floor import HOPPER, begun, measured
from records import Row
from timing import medians

SEEDS = (1, 10, 50)
LOGS = (100_000, 1_000_000, 10_000_000)
ACTIONS = (3, 6, 8, 17)


def _base() -> floor.Size:
    """Return the size that one number of is changed."""
    if on_gpu():
        return floor.Size(1_000_000, *HOPPER, 2048, 10, per_dimension=True)
    return floor.Size(200_000, *HOPPER, 1024, 1)


def _step_seconds(sizes: Sequence[floor.Size], steps: Sequence[int], repeats: int) -> list[float]:
    """Return a step's time at each size, taken in turns."""
    fits = [begun(size) for size in sizes]
    calls = {str(i): partial(fit.steps, count) for i, (fit, count) in enumerate(zip(fits, steps))}
    return [seconds / count for seconds, count in zip(medians(calls, repeats).values(), steps)]


def seed_rows(quick: bool) -> list[Row]:
    """Return the rate of 1, 10 and 50 seeds."""
    sizes = [replace(_base(), seeds=seeds) for seeds in SEEDS]
    counts = [50, 50, 50] if on_gpu() else [50, 5, 1]  # about as much work each
    taken = _step_seconds(sizes, counts, 3 if quick else 7)
    rates = [size.seeds / seconds for size, seconds in zip(sizes, taken)]
    return [
        Row("seeds", f"{size.seeds} at once", rate, "seed-steps/s", rate / rates[0], "rate of 1 seed")
        for size, rate in zip(sizes, rates)
    ]


def log_rows(quick: bool) -> list[Row]:
    """Return a step's time at 10⁵, 10⁶ and 10⁷ rows."""
    sizes = [replace(_base(), rows=rows) for rows in LOGS[: 2 if quick else None]]
    taken = _step_seconds(sizes, [50 if on_gpu() else 10] * len(sizes), 3 if quick else 9)
    of = f"step at n = {LOGS[0]:,}"
    return [
        Row("rows of the log", f"step at n = {size.rows:,}", 1e3 * seconds, "ms", seconds / taken[0], of)
        for size, seconds in zip(sizes, taken)
    ]


def action_rows(quick: bool) -> list[Row]:
    """Return step and refresh at actions of 3, 6, 8 and 17 dimensions."""
    section, result = "width of the action", []
    base = replace(_base(), per_dimension=True) if on_gpu() else replace(_base(), rows=20_000)
    for d in ACTIONS:
        size = replace(base, actions=d)
        times = measured(size, begun(size), 3 if quick else 5)
        for what, taken, cost in (
            ("step", times.step, floor.step(size)),
            ("refresh", times.refresh, floor.refresh(size)),
        ):
            share = cost.seconds(times.square, times.copy) / taken
            label = f"d = {d}, {what}, n = {size.rows:,}"
            result.append(Row(section, label, 1e3 * taken, "ms", share, "share of the floor"))
    return result
