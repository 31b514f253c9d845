"""From plans to estimates: the runner, which alone calls `fit`, here and on a cluster.

The command line, the demo, the experiments, rankings and studies all come here, so that what a fit can do (resume,
fall back to host memory, say how far it is, train on other machines) is written once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from kmifqe.cluster import Cluster, Job, Link, memory_of, packed, unpacked
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, Estimator, Progress, fit
from kmifqe.estimators.fit import Checkpoints, Plan, Snapshot, fit_policies, joined_snapshots, state_shapes
from kmifqe.estimators.forecast import placed, with_fallback
from kmifqe.io.format import size
from kmifqe.mdp import Problem
from kmifqe.mdp.policies import Answers, judged, judged_together
from kmifqe.report.watch import Watch
from kmifqe.store import Interrupted, RunDirectory
from kmifqe.store.fits import KeptFits
from kmifqe.trust.checks import Shared, measure
from kmifqe.trust.landscape import LANDSCAPE, keep_landscape

TIMED_STEPS = 20_000  # a shorter run is over before its time is forecast
Examine = Callable[[Estimator, Estimate, Problem], Estimate]


class Store:
    """Keeps what fits have reached; this one keeps nothing. A `RunDirectory` keeps everything."""

    def begin_fit(self, plan: Plan) -> None:
        """Make ready for the fit of `plan`, or raise where it is not to be begun."""

    def finished(self, plan: Plan) -> Estimate | None:
        """Return the estimate that is stored for `plan`, if there is one."""
        return None

    def checkpoints(self, plan: Plan) -> Checkpoints | None:
        """Return where the fit of `plan` keeps its snapshots, None for nowhere."""
        return None

    def finish(self, plan: Plan, estimate: Estimate) -> None:
        """Store the `estimate` of `plan`."""

    def clear(self, plan: Plan) -> None:
        """Drop the snapshots of `plan`: what they led to is stored."""


def run_estimators(
    problem: Problem,
    estimators: Sequence[Estimator],
    plans: Sequence[Plan],
    *,
    store: Store | RunDirectory | KeptFits | None = None,
    watch: Watch | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    examine: Examine | None = None,
    forecast: bool = True,
    keep_state: bool = False,
) -> tuple[list[Estimate], Problem]:
    """Return the estimate of every estimator, one after the other, and the problem to go on with.

    Where the device's memory gives out the data move to host memory, and the problem given is of no more use.

    Args:
        problem: the arrays to learn from.
        estimators: what is fitted.
        plans: seeds, steps and the rest of each fit, from `make_plan`.
        store: keeps snapshots and finished estimates; a finished one is not computed again.
        watch: hears sentences and progress; None for silence.
        on_progress: called after every record of a fit.
        examine: returns the estimate with what is to be known of its final state, before that is dropped.
        forecast: whether memory and time are forecast before each fit.
        keep_state: whether the estimates keep their final states, which are as large as the log.
    """
    watch = Watch() if watch is None else watch
    store = Store() if store is None else store
    estimates: list[Estimate] = []
    try:
        for estimator, plan in zip(estimators, plans, strict=True):
            stored = store.finished(plan)
            if stored is not None:
                estimates.append(stored)
                continue
            store.begin_fit(plan)  # before half a minute of compilation
            watch.begin(estimator.name)
            if forecast:
                problem = _placed(estimator, plan, problem, watch)
                watch.begin(estimator.name)  # the time that is left begins here: the forecast has compiled
            run = partial(
                fit,
                estimator,
                plan=plan,
                checkpoints=store.checkpoints(plan),
                on_progress=_both(watch.progress, on_progress),
            )
            estimate, problem = with_fallback(run, problem, watch.warn)
            if examine is not None:
                estimate = examine(estimator, estimate, problem)
            store.finish(plan, estimate)
            estimates.append(estimate if keep_state else estimate.without_state())
    except Interrupted as stopped:
        stopped.finished = tuple(estimates)
        raise
    finally:
        watch.end()
    return estimates, problem


def run_policies(
    problem: Problem,
    answers: Sequence[Answers],
    estimator: Estimator,
    plan: Plan,
    *,
    size: int,
    stores: Sequence[Store | KeptFits],
    together: Callable[[Sequence[int]], Store | KeptFits],
    watch: Watch | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    examine: Examine | None = None,
) -> list[Estimate]:
    """Return the estimate of one estimator for every one of several policies, trained side by side where they fit.

    Where the device's memory gives out, the policies are taken in two turns of half as many; a single one is
    trained as `run_estimators` does it.

    Args:
        problem: the log; what it says of a policy is replaced.
        answers: what each policy says at the log's states.
        estimator: what is fitted.
        plan: seeds, steps and the rest, from `make_plan`: the same for every policy.
        size: how many policies a program is for: where there are fewer the last one fills it, so that all turns of
            a ranking share one program.
        stores: of each policy, where its finished estimate is kept; none is computed again where all are there.
        together: returns where policies with these positions keep the snapshots of their joint fit.
        watch: hears sentences and progress; None for silence.
        on_progress: called after every record of a fit.
        examine: returns an estimate with what is to be known of its final state; its time counts as the estimate's.
    """
    watch = Watch() if watch is None else watch
    found = [store.finished(plan) for store in stores]
    if all(each is not None for each in found):
        return [each for each in found if each is not None]
    examine = _timed(examine) if examine is not None else None
    if size == 1:
        (estimate,), _ = run_estimators(
            judged(problem, answers[0]),
            [estimator],
            [plan],
            store=stores[0],
            watch=watch,
            on_progress=on_progress,
            examine=examine,
            forecast=False,
        )
        return [estimate]
    joint = together(range(len(answers)))
    joint.begin_fit(plan)
    watch.begin(f"{estimator.name}, {len(answers)} policies")
    try:
        fitted = fit_policies(
            estimator,
            judged_together(problem, [*answers, *[answers[-1]] * (size - len(answers))]),
            plan,
            checkpoints=joint.checkpoints(plan),
            on_progress=_both(watch.progress, on_progress),
        )
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        half = (len(answers) + 1) // 2
        watch.warn(f"memory gave out with {len(answers)} policies at once: going on with {half} at a time")
        options: dict[str, Any] = {"watch": watch, "on_progress": on_progress, "examine": examine}
        estimates = []
        for start in (0, half):
            part = slice(start, None if start else half)
            own = partial(_shifted, together, start)
            estimates += run_policies(
                problem,
                answers[part],
                estimator,
                plan,
                size=half,
                stores=stores[part],
                together=own,
                **options,
            )
        return estimates
    finally:
        watch.end()
    estimates = []
    for estimate, answer, store in zip(fitted[: len(answers)], answers, stores, strict=True):
        known = estimate if examine is None else examine(estimator, estimate, judged(problem, answer))
        store.finish(plan, known)
        estimates.append(known.without_state())
    joint.clear(plan)
    return estimates


def _shifted(
    together: Callable[[Sequence[int]], Store | KeptFits], start: int, positions: Sequence[int]
) -> Store | KeptFits:
    return together([start + position for position in positions])


def _placed(estimator: Estimator, plan: Plan, problem: Problem, watch: Watch) -> Problem:
    """Return the problem with its data where the fit has room, after saying what it will take."""
    problem, forecast, warning = placed(estimator, problem, plan, timed=plan.steps >= TIMED_STEPS)
    watch.say(f"{forecast}; another {size(forecast.free)} is free")
    if warning:
        watch.warn(warning)
    return problem


def _both(
    first: Callable[[Progress], None], second: Callable[[Progress], None] | None
) -> Callable[[Progress], None]:
    def call(progress: Progress) -> None:
        first(progress)
        if second is not None:
            second(progress)

    return call


def _timed(examine: Examine) -> Examine:
    """Return `examine` with the time that it takes added to the estimate's."""

    def run(estimator: Estimator, estimate: Estimate, problem: Problem) -> Estimate:
        started = time.perf_counter()
        known = examine(estimator, estimate, problem)
        return replace(known, seconds=known.seconds + time.perf_counter() - started)

    return run


def examined(
    run: RunDirectory | None, shared: Shared, estimator: Estimator, estimate: Estimate, problem: Problem
) -> Estimate:
    """Return `estimate` with what is measured of its final state and of `problem`.

    `shared` keeps what fits to the same log or target have in common. What `estimator` says of Q around the target's
    actions is kept in the directory of `run`, if one is given.
    """
    if run is not None:
        keep_landscape(run.file(LANDSCAPE), estimator, estimate, problem)
    return replace(estimate, measurements=measure(estimator, estimate, problem, shared))


# --- On a cluster: a task takes the steps of a fit, and the process that asks goes on from its last snapshot


class _Linked(Store):
    """Lets a task's fit keep its snapshots with the cluster's keeper."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def checkpoints(self, plan: Plan) -> Checkpoints:
        return self._link


class _Reached(Store):
    """Gives fits the snapshots that tasks have reached, where no run directory holds them."""

    def __init__(self) -> None:
        self.snapshots: dict[str, Snapshot] = {}

    def checkpoints(self, plan: Plan) -> Checkpoints:
        return _From(self.snapshots.get(plan.estimator))


class _From:
    """The `Checkpoints` of a fit that goes on from a snapshot and keeps no other."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot

    def restore(self, plan: Plan, problem: Problem) -> Snapshot | None:
        return self._snapshot

    def due(self, step: int) -> bool:
        return False

    def save(self, snapshot: Snapshot) -> None:
        raise AssertionError("never due")

    def stop_if_asked(self, last: Snapshot | None) -> None:
        """Go on: what is left of these steps was waited for."""


def train_on_cluster(
    cluster: Cluster,
    problem: Problem,
    estimators: Sequence[Estimator],
    plans: Sequence[Plan],
    run: RunDirectory | None,
    data: dict[str, Any],
    part: str,
    blocks: int,
    watch: Watch,
) -> Store | RunDirectory:
    """Take the steps of all fits that are not finished on a cluster; return where their last snapshots are.

    `cluster` takes the steps of each of the `estimators` on `problem`, by its own one of the `plans`. The networks of
    an estimator are divided into `blocks` tasks. Snapshots are kept in `run` where there is one, with what `data`
    says of the log; `part` begins the names of the tasks' own parts of the run. `watch` hears how far the tasks are.
    """
    if blocks < 1:
        raise InputError(f"ray_blocks is {blocks}; expected at least 1")
    store: Store | RunDirectory = _Reached() if run is None else run
    shared = cluster.share(packed(problem))
    jobs: dict[int, list[Job]] = {}
    for i, (estimator, plan) in enumerate(zip(estimators, plans, strict=True)):
        if estimator.at_once or store.finished(plan) is not None:
            continue
        kept = store.checkpoints(plan)
        snapshot = None if kept is None else kept.restore(plan, problem)
        if snapshot is not None and snapshot.step == plan.steps:
            continue
        pieces = [tuple(map(int, each)) for each in np.array_split(plan.seeds, min(blocks, len(plan.seeds)))]
        for seeds in pieces:
            own = plan._replace(seeds=seeds)
            name = (
                estimator.name if len(pieces) == 1 else f"{estimator.name}, seeds {seeds[0]} to {seeds[-1]}"
            )
            if run is not None and len(pieces) > 1:
                label = f"{part}.networks-{seeds[0]}-{seeds[-1]}".lstrip(".")
                kept = run.part(label, data).checkpoints(own)
                snapshot = kept.restore(own, problem)
            memory = memory_of(problem, state_shapes(estimator, own, problem))
            job = Job(
                name,
                _advance_in_task,
                (estimator, own, shared),
                own,
                None if run is None else kept,
                snapshot,
                memory,
            )
            jobs.setdefault(i, []).append(job)
    reached = iter(cluster.run([job for tasks in jobs.values() for job in tasks], watch))
    for i, tasks in jobs.items():
        snapshots = [next(reached) for _ in tasks]
        if any(each is None for each in snapshots) or len({each.step for each in snapshots}) > 1:
            continue  # a fit without a snapshot near its end is done here
        whole = joined_snapshots(snapshots)
        if isinstance(store, _Reached):
            store.snapshots[plans[i].estimator] = whole
        elif len(tasks) > 1:
            store.checkpoints(plans[i]).save(whole)  # type: ignore[union-attr]
            for job in tasks:
                job.checkpoints.clear()  # type: ignore[union-attr]
    return store


def _advance_in_task(link: Link, estimator: Estimator, plan: Plan, problem: Problem) -> Snapshot | None:
    """Take the steps of a plan in a cluster's worker; return the last snapshot."""
    restart = 0 if estimator.refresh is None else estimator.refresh.restart_every
    link.last_steps = max(restart, plan.record_every) - 1
    run_estimators(
        unpacked(problem),
        [estimator],
        [plan],
        store=_Linked(link),
        on_progress=link.progress,
        forecast=False,
    )
    return link.last


def fit_in_task(link: Link, estimator: Estimator, plan: Plan, problem: Problem, answers: Answers) -> Estimate:
    """Return what `estimator` says of one policy, fitted by `plan` and examined in a cluster's worker.

    `link` keeps the snapshots of the fit; `problem` is a packed one, in which `answers` replace the policy's.
    """
    (estimate,), _ = run_estimators(
        judged(unpacked(problem), answers),
        [estimator],
        [plan],
        store=_Linked(link),
        on_progress=link.progress,
        examine=_timed(partial(examined, None, Shared())),
        forecast=False,
    )
    return estimate
