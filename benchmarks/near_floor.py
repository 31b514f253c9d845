"""KMIFQE's step and refresh against the floor, measured in turns with the machine's own rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import floor
from kmifqe.estimators import KMIFQEConfig, make_kmifqe
from machine import copies, network_dtype, network_products, on_gpu, square_products
from problems import synthetic_problem
from records import Row
from timing import Run, medians

SECTION = "KMIFQE and the floor"
HOPPER, HUMANOID = (11, 3), (376, 17)


@dataclass(frozen=True)
class Times:
    """Seconds of KMIFQE's parts, and the machine's rates meanwhile, per second."""

    step: float
    refresh: float
    square: float  # operations of large square matrix products
    network: float  # the same, of products of the network's own shape
    copy: float  # bytes


def sizes() -> list[floor.Size]:
    """Return the sizes the project is held to: two on a GPU, a small one on a CPU."""
    if on_gpu():
        return [floor.Size(1_000_000, *dims, 2048, 10, per_dimension=True) for dims in (HOPPER, HUMANOID)]
    return [floor.Size(200_000, *HOPPER, 1024, 1)]


def config_of(size: floor.Size) -> KMIFQEConfig:
    return KMIFQEConfig(hidden=size.hidden, batch=size.batch, clip_per_dimension=size.per_dimension)


def begun(size: floor.Size) -> Run:
    """Return a fit of that size at its start, on a synthetic log."""
    config = config_of(size)
    like = make_kmifqe(replace(config, hidden=16))
    problem = synthetic_problem(size.rows, size.states, size.actions)
    return Run.begin(make_kmifqe(config), problem, size.seeds, like)


def measured(size: floor.Size, fit: Run, repeats: int) -> Times:
    """Return times and rates, taken in turns."""
    count, dtype = fit.estimator.refresh.every, network_dtype()
    works = {
        "square": square_products(dtype),
        "network": network_products(size.seeds, size.batch, size.hidden, dtype),
        "copy": copies(),
    }
    calls = {name: work.call for name, work in works.items()}
    seconds = medians({"step": partial(fit.steps, count), **calls, "refresh": fit.refresh}, repeats)
    rates = {name: work.amount / seconds[name] for name, work in works.items()}
    return Times(seconds["step"] / count, seconds["refresh"], **rates)


def rows(quick: bool) -> list[Row]:
    """Return the table's rows on KMIFQE's distance from the floor."""
    result = []
    for size in sizes():
        fit = begun(size)
        times = measured(size, fit, 3 if quick else 7)
        for what, taken, cost in (
            ("step", times.step, floor.step(size)),
            ("refresh", times.refresh, floor.refresh(size)),
        ):
            what = f"{size} {what}"
            result += _beside_floor(what, taken, cost, times)
        period = fit.estimator.config.target_period
        total = medians({"period": partial(fit.period, period)}, 1 if quick else 3)["period"]
        cost = floor.run(size, period, period)
        ratio = cost.seconds(times.square, times.copy) / total
        seeds = f"{size.seeds} seed{'s' * (size.seeds > 1)}"
        what = f"{size} n = {size.rows:,}, batch {size.batch:,}, {seeds}, refreshes included"
        rate = size.seeds * period / total
        result.append(Row(SECTION, what, rate, "seed-steps/s", ratio, "share of the floor"))
        del fit
    return result


def _beside_floor(what: str, taken: float, cost: floor.Cost, times: Times) -> list[Row]:
    best = cost.seconds(times.square, times.copy)
    bound = "arithmetic" if cost.flops / times.square > cost.bytes / times.copy else "traffic"
    own = cost.seconds(times.network, times.copy)
    work = f"{cost.flops / 1e9:.3g} GFLOP, {cost.bytes / 1e6:.3g} MB"
    of = "share of a floor of matmuls of the network's shape"
    return [
        Row(SECTION, what, 1e3 * taken, "ms", best / taken, f"share of the floor ({bound})", work),
        Row(SECTION, f"{what}, as above", 1e3 * taken, "ms", own / taken, of),
    ]
