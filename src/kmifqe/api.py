"""evaluate(): from a log and a policy to a value that can be believed or not. The only runner there is.

`evaluate` loads, builds, fits, examines, judges and stores. `run_estimators` is its middle: it alone calls `fit`, for
the command line, the demo, the experiments and the studies alike.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Required, TypedDict

import jax
import msgspec
import numpy as np

from kmifqe.behavior import FitReport, FitRequest, TanhMixture, fit_or_load, parse_behavior
from kmifqe.budget import evaluate_within, make_budget
from kmifqe.cluster import Cluster, Job, Link, connect, memory_of, packed, unpacked
from kmifqe.errors import InputError, shown
from kmifqe.estimators import Estimate, Estimator, Progress, fit, make_estimator
from kmifqe.estimators.fit import (
    Checkpoints,
    Plan,
    Snapshot,
    fit_policies,
    joined_snapshots,
    make_plan,
    state_shapes,
)
from kmifqe.estimators.forecast import placed, with_fallback
from kmifqe.estimators.registry import (
    DEFAULT,
    check_settings,
    entries,
    entry_named,
    find_entry,
    fitted_names,
)
from kmifqe.estimators.sizing import TYPICAL, ProblemSize, Rung, size_of
from kmifqe.io.files import disk_sentence
from kmifqe.io.format import size
from kmifqe.io.logs import load_dataset
from kmifqe.io.policies import check_policy_fits, load_policy, load_stochastic_policy
from kmifqe.mdp import Problem, Transitions
from kmifqe.mdp.ask import Behavior, Logged, Policy, action_box
from kmifqe.mdp.policies import Answers, judged, judged_together
from kmifqe.mdp.returns import credited_returns
from kmifqe.report.figures import save_figures
from kmifqe.report.page import REPORT
from kmifqe.report.result import RESULT, Question, Result
from kmifqe.report.watch import Watch, default_watch, device_name
from kmifqe.store import Interrupted, RunDirectory, open_run
from kmifqe.store.checkpoints import SAVE_SECONDS
from kmifqe.store.fits import KeptFits
from kmifqe.store.identity import digests, fingerprint
from kmifqe.trust.checks import Shared, measure
from kmifqe.trust.choice import average
from kmifqe.trust.interval import LEVEL, check_level
from kmifqe.trust.landscape import LANDSCAPE, keep_landscape
from kmifqe.trust.logged import logged_controller
from kmifqe.trust.verdict import check_accepted

SEEDS = 10
DRAWS = 8  # actions of a stochastic target at every state, over which expectations are taken
DRAWN = f"the target draws its actions; expectations are taken over {DRAWS} draws at every state"
TIMED_STEPS = 20_000  # a shorter run is over before its time is forecast
Data = Transitions | str | PathLike[str]
PolicyLike = Policy | Callable[..., Any] | str | PathLike[str]
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


def evaluate(
    data: Data,
    policy: PolicyLike,
    *,
    behavior: Behavior | Logged | str | None = None,
    gamma: float = 0.99,
    estimators: Sequence[str | Estimator] = ("auto",),
    preset: str = DEFAULT,
    settings: Sequence[str] = (),
    steps: int | None = None,
    minutes: float | None = None,
    seeds: int | Sequence[int] = SEEDS,
    bootstrap: bool = True,
    level: float = LEVEL,
    accept: Sequence[str] = (),
    stochastic: bool = False,
    policy_normalization: str | None = None,
    max_episode_steps: int | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    save_seconds: float = SAVE_SECONDS,
    cache: bool = True,
    ray: str | None = None,
    ray_blocks: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    watch: Watch | None = None,
    stop_asked: Callable[[], bool] = lambda: False,
    command: Sequence[str] = (),
) -> Result:
    """Return what a policy is worth, judged from a log, with an interval and a verdict.

    Args:
        data: the log: `Transitions`, or what `load_dataset` reads (a file, a directory, a Minari id).
        policy: the policy to judge: a file, `module:function`, a function of states, or an object with `predict`.
        behavior: the density of the controller that made the log: "logged", "fit", "gaussian:POLICY:STD", a fitted
            file, `module:function`, or an object with `log_prob`. None, the default: the densities in the log
            where it has them, else a fit, if an estimator needs a density.
        gamma: the discount, 0 <= gamma < 1.
        estimators: names of the registry (`kmifqe.estimators.all_entries()`), or estimators that were made by hand.
            "auto", the default, fits KMIFQE and FQE and averages them.
        preset: the settings that named estimators start from: by default sizes that follow from the log and γ; see
            `kmifqe evaluate --help` for the others.
        settings: changes to them, such as "clip=0.001,10" or "fqe.hidden=128".
        steps: training steps of every estimator; by default the preset's.
        minutes: the time that the preset "default" may take; by default 10 on a CPU and 3 on a GPU. After a first
            estimate the largest fit follows that the time allows (docs/evidence/speed.md). Other presets, and a
            number of steps, fix the sizes and take the time they take.
        seeds: how many networks are trained side by side, or the seeds themselves.
        bootstrap: whether every network weights the log's episodes in its own way, which an interval needs.
        level: how often the interval should hold the truth, between 0 and 1.
        accept: names of checks whose question you have answered, such as "unexplained_ends" where episodes of your
            system do end by chance: they ask for care no longer. What forbids the use of a number still does.
        stochastic: whether the policy's own distribution is judged, from which it draws its actions; by default
            its deterministic action is (docs/guides/policies.md).
        policy_normalization: statistics that the policy's inputs were normalised with (VecNormalize), or "none".
        max_episode_steps: cut longer episodes of the log into pieces of this length.
        out: a run directory for result.json, report.html, figures and snapshots; None keeps nothing.
        resume: go on with the run in `out`; the result has the bits of a run that was never stopped.
        force: replace an earlier run in `out`.
        save_seconds: the least time between two snapshots.
        cache: keep the log as plain arrays in the user's cache folder, and take it from there (`load_dataset`).
        ray: the address of a Ray cluster on which the networks are trained, "auto" for one of this machine; None, the
            default, trains them in this process (docs/guides/clusters.md). The result is the same.
        ray_blocks: into how many tasks the networks of an estimator are divided on a cluster; by default 1. More than
            one may change the last bits, because products of other sizes are rounded in another way.
        on_progress: called after every record of a fit, for instance with a logger of `report.loggers`.
        watch: hears sentences and progress; by default they are shown where stderr is a terminal, or in a notebook.
        stop_asked: asked between blocks of steps; True saves and raises `store.Interrupted`.
        command: the command line that asks, for the record.
    """
    options = _options(locals())
    watch = default_watch() if watch is None else watch
    check_level(level)
    check_accepted(accept)
    budget = make_budget(minutes, preset, steps, estimators)
    make = partial(make_estimators, estimators, preset, settings, steps, stochastic=stochastic)
    made = make(behavior, TYPICAL)  # refuses wrong names and settings before anything is read
    _check_targets(made, stochastic)
    with ExitStack() as stack:
        run: RunDirectory | None = None
        if out is not None:
            open_ = open_run(
                Path(out),
                options,
                resume=resume,
                force=force,
                save_seconds=save_seconds,
                stop_asked=stop_asked,
                warn=watch.warn,
            )
            run = stack.enter_context(open_)
        cluster = stack.enter_context(connect(ray, save_seconds=save_seconds, stop_asked=stop_asked))
        load = load_stochastic_policy if stochastic else load_policy
        target = load(policy, normalization=policy_normalization)
        log = (
            data
            if isinstance(data, Transitions)
            else load_dataset(str(data), max_episode_steps=max_episode_steps, cache=cache)
        )
        check_policy_fits(target, log.state_dim, log.action_dim)
        notes = (*log.notes, *action_box(log, target)[2], *[DRAWN] * stochastic)
        for note in notes:
            watch.note(note)
        behavior = behavior_or_default(behavior, made, log, watch)
        density, fit_report = find_density(behavior, made, log, target, policy_normalization, run, watch)
        problem = Problem.build(
            log, target, density, gamma, trajectories=follow_episodes(made), draws=DRAWS if stochastic else 0
        )
        question = Question.about(
            problem,
            data=log.name if isinstance(data, Transitions) else str(data),
            policy=str(policy) if isinstance(policy, str | PathLike) else getattr(target, "name", "policy"),
            behavior=behavior_name(behavior),
            notes=notes,
            accepted=accept,
        )
        returns = credited_returns(log, gamma)
        del log
        announce(problem, watch)
        judge = partial(
            _judged,
            averages=[each for each in estimators if isinstance(each, str) and entry_named(each).panel],
            bootstrap=bootstrap,
            level=level,
            run=run,
            on_progress=on_progress,
            watch=watch,
            logged_returns=returns,
            command=command,
            behavior_fit=fit_report,
            shared=Shared(),
            cluster=cluster,
            blocks=ray_blocks,
        )
        if budget is None:
            made = make(behavior, size_of(problem))
            return judge(problem, made, question, steps=[steps] * len(made), seeds=seeds)[0]
        all_seeds = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)

        def judge_rung(
            problem: Problem, rung: Rung, made: Sequence[Estimator], part: str, note: str
        ) -> tuple[Result, Problem]:
            asked = msgspec.structs.replace(question, notes=(*question.notes, note)) if note else question
            own = all_seeds[: rung.networks]
            return judge(problem, made, asked, steps=[None] * len(made), seeds=own, part=part)

        sized = partial(make, behavior)
        return evaluate_within(budget, problem, len(all_seeds), sized, judge_rung, watch)


def evaluate_problem(
    problem: Problem,
    estimators: Sequence[Estimator],
    question: Question,
    *,
    averages: Sequence[str] = (),
    steps: Sequence[int | None],
    seeds: int | Sequence[int] = SEEDS,
    bootstrap: bool = True,
    level: float = LEVEL,
    run: RunDirectory | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    watch: Watch | None = None,
    logged_returns: np.ndarray | None = None,
    **more: Any,
) -> Result:
    """Return what `estimators` say of a problem that is built already; `evaluate` builds one from files.

    Args:
        problem: the arrays to learn from.
        estimators: what is fitted, the headline first.
        question: what the result says was asked.
        averages: names of averages over some of `estimators`, such as "auto"; they come before what was fitted.
        steps: of each estimator; None for its own default.
        seeds: how many networks are trained side by side, or the seeds themselves.
        bootstrap: whether every network weights the log's episodes in its own way.
        level: how often the interval should hold the truth.
        run: the opened run directory for snapshots, result.json, report and figures; None for none.
        on_progress: called after every record of a fit.
        watch: hears sentences and progress; None for silence.
        logged_returns: normalised returns of the logged episodes (`mdp.returns.credited_returns`), with which the
            headline is compared; None for no comparison.
        more: further fields of `Result.judged`, such as `references`.
    """
    return _judged(
        problem,
        estimators,
        question,
        averages=averages,
        steps=steps,
        seeds=seeds,
        bootstrap=bootstrap,
        level=level,
        run=run,
        on_progress=on_progress,
        watch=Watch() if watch is None else watch,
        logged_returns=logged_returns,
        **more,
    )[0]


def _judged(
    problem: Problem,
    estimators: Sequence[Estimator],
    question: Question,
    *,
    averages: Sequence[str],
    steps: Sequence[int | None],
    seeds: int | Sequence[int],
    bootstrap: bool,
    level: float,
    run: RunDirectory | None,
    on_progress: Callable[[Progress], None] | None,
    watch: Watch,
    logged_returns: np.ndarray | None,
    part: str = "",
    shared: Shared | None = None,
    cluster: Cluster | None = None,
    blocks: int = 1,
    **more: Any,
) -> tuple[Result, Problem]:
    """Return what `evaluate_problem` does, and the problem to go on with; `part` tells fits apart."""
    plans = [
        make_plan(estimator, problem, seeds=seeds, steps=own, bootstrap=bootstrap)
        for estimator, own in zip(estimators, steps, strict=True)
    ]
    data = fingerprint(problem) if run is None else run.begin(plans, problem, part)
    shared = Shared() if shared is None else shared
    store: Store | RunDirectory | None = run
    if cluster is not None:
        store = _train_on_cluster(cluster, problem, estimators, plans, run, data, part, blocks, watch)
    estimates, problem = run_estimators(
        problem,
        estimators,
        plans,
        store=store,
        watch=watch,
        on_progress=on_progress,
        examine=partial(examined, run, shared),
        forecast=cluster is None,
    )
    if run is not None and run.saves:
        share = run.saving_seconds / max(sum(estimate.seconds for estimate in estimates), 1e-9)
        watch.say(f"saved {run.saves} times on the way, {share:.2%} of the time")
    averaged = [
        average(
            name, [each for each in estimates if each.estimator in entry_named(name).panel], question.accepted
        )
        for name in averages
    ]
    logged = None
    if logged_returns is not None:
        logged = logged_controller(problem, logged_returns, estimates[0].seeds)
    result = Result.judged(
        [*averaged, *estimates], question, logged=logged, level=level, digests=digests(data), **more
    )
    if run is not None:
        store_result(result, run, watch)
    return result, problem


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


def _train_on_cluster(
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

    The networks of an estimator are divided into `blocks` tasks. The other arguments are those of `_judged`.
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
    """Return the estimate of one policy, fitted and examined in a cluster's worker.

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


def _shifted(
    together: Callable[[Sequence[int]], Store | KeptFits], start: int, positions: Sequence[int]
) -> Store | KeptFits:
    return together([start + position for position in positions])


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


def store_result(result: Result, run: RunDirectory, watch: Watch) -> None:
    """Write result.json of `result` into the directory of `run`, and then the figures and the report.

    The number is what the run was for: where a picture of it cannot be made, `watch` hears a warning.
    """
    with disk_sentence(run.path):
        result.save(run.file(RESULT).parent)
    makers: dict[str, Callable[[], object]] = {
        "the figures": lambda: save_figures(result, run.file),
        "the report": lambda: result.report(run.file(REPORT), folder=run.path),
    }
    for name, make in makers.items():
        try:
            make()
        except Exception as error:  # fonts, styles, a full disk: none of them may cost the result
            watch.warn(f"{run.path}: {name} could not be made ({shown(error) or type(error).__name__})")


def make_estimators(
    asked: Sequence[str | Estimator],
    preset: str,
    settings: Sequence[str],
    steps: int | None,
    behavior: object,
    size: ProblemSize,
    *,
    stochastic: bool = False,
) -> list[Estimator]:
    """Return what is fitted for estimators asked for by name or by hand; refuse a name or setting that is wrong.

    An average stands for the estimators that it averages. The preset "default" gives them sizes that suit a problem
    of `size`.
    """
    names = [each if isinstance(each, str) else each.name for each in asked]
    if not names or len(set(names)) < len(names):
        raise InputError(f"estimators are {', '.join(names) or 'none'}; expected at least one, each once")
    named = partial(fitted_names, stochastic=stochastic)
    fitted = named([each for each in asked if isinstance(each, str)])
    check_settings(fitted, settings)
    settings = [*_density_settings(behavior), *settings]
    by_hand = [each for each in asked if not isinstance(each, str)]
    if any(each.name in fitted for each in by_hand):
        raise InputError(f"estimators are {', '.join(names)}; expected each once, also inside an average")
    made = {name: make_estimator(name, preset, settings, steps, size) for name in fitted}
    order = dict.fromkeys(name for each in names for name in named([each]))
    return [made.get(name) or next(e for e in by_hand if e.name == name) for name in order]


def _check_targets(estimators: Sequence[Estimator], stochastic: bool) -> None:
    """Refuse an estimator that cannot judge the kind of target that is asked about."""
    kind, other = ("stochastic", "deterministic") if stochastic else ("deterministic", "stochastic")
    for estimator in estimators:
        entry = find_entry(estimator.name)
        if entry is not None and entry.targets == other:
            fitting = [each.name for each in entries() if each.targets in (kind, "both")]
            flag = (
                "without --stochastic (stochastic=True)"
                if stochastic
                else "with --stochastic (stochastic=True)"
            )
            raise InputError(
                f"{estimator.name} judges {other} targets only; use it {flag}, or one of {', '.join(fitting)}"
            )


def follow_episodes(estimators: Sequence[Estimator]) -> bool:
    """Return whether one of the `estimators` follows episodes, which a problem must then be laid out for."""
    known = (find_entry(estimator.name) for estimator in estimators)
    return any(entry.needs_trajectories for entry in known if entry is not None)


def _density_settings(behavior: object) -> list[str]:
    """Return the settings that go with a behaviour: the paper's floor where μ is fitted and unsure in its tails."""
    named = isinstance(behavior, str) and (behavior == "fit" or behavior.endswith(".safetensors"))
    return ["density_floor=1e-3"] if named or isinstance(behavior, TanhMixture) else []


def find_density(
    behavior: Behavior | Logged | str | None,
    estimators: Sequence[Estimator],
    log: Transitions,
    target: Policy,
    normalization: str | None,
    run: RunDirectory | None,
    watch: Watch,
) -> tuple[Behavior | Logged | None, FitReport | None]:
    """Return the behaviour density, read, parsed, or fitted now or earlier, and the report of its fit."""
    if behavior is not None and not isinstance(behavior, str):
        return behavior, None
    if not _needs_density(estimators):
        return None, None
    assert isinstance(behavior, str)  # `behavior_or_default` has chosen one
    low, high = getattr(target, "low", None), getattr(target, "high", None)
    load = partial(load_policy, normalization=normalization)
    parsed = parse_behavior(behavior, low=low, high=high, load=load)
    if not isinstance(parsed, FitRequest):
        return parsed, None
    if run is not None:
        run.drop_earlier_run()
    claim = (lambda: None) if run is None else run.claim_density
    with watch.status("fitting the behaviour density …"):
        fitted = fit_or_load(
            None if run is None else run.path,
            log,
            low=low,
            high=high,
            claim=claim,
            progress=lambda p: watch.update(
                f"fitting the behaviour density: {p.step:,}/{p.steps:,} steps, held-out {max(p.held_out):.3f} nats"
            ),
        )
    watch.density(fitted.report, is_stored=fitted.is_kept)
    return fitted.density, fitted.report


def _needs_density(estimators: Sequence[Estimator]) -> bool:
    return any((entry := find_entry(each.name)) and entry.needs_density for each in estimators)


def behavior_or_default(
    behavior: Behavior | Logged | str | None, estimators: Sequence[Estimator], log: Transitions, watch: Watch
) -> Behavior | Logged | str | None:
    """Return the `behavior` that was asked for, or, where one is needed, what the log allows.

    `estimators` are those that are fitted to the `log`; `watch` hears what was chosen.
    """
    if behavior is not None or not _needs_density(estimators):
        return behavior
    if log.log_mu is not None:
        watch.say("behaviour density: as logged with the actions")
        return "logged"
    watch.say("behaviour density: none in the log, so one is fitted (--behavior says otherwise)")
    return "fit"


def behavior_name(behavior: object) -> str:
    """Return what a person calls the density `behavior`."""
    if behavior is None:
        return "none"
    return behavior if isinstance(behavior, str) else getattr(behavior, "name", type(behavior).__name__)


def announce(problem: Problem, watch: Watch) -> None:
    """Say to `watch` how large `problem` is, and where it will run."""
    watch.say(repr(problem))
    watch.say(f"running on {device_name()}")
    if problem.is_on_host:
        held = size(problem.host_bytes)
        watch.warn(f"{held} of data exceed the device's memory and stay in host memory")


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Return what run.json keeps: the arguments, or nothing where JSON cannot hold one of them.

    That is an object, or a file name that is no UTF-8.
    """
    kept = {name: given[name] for name in RESUMED}
    kept |= {name: str(kept[name]) for name in ("data", "policy") if isinstance(kept[name], PathLike)}
    kept |= {name: list(kept[name]) for name in ("estimators", "settings", "accept")}
    if not isinstance(kept["seeds"], int):
        kept["seeds"] = [int(seed) for seed in kept["seeds"]]
    named = (kept["data"], kept["policy"], kept["behavior"] or "", *kept["estimators"])
    return kept if all(isinstance(each, str) for each in named) and _is_utf8(kept) else {}


def _is_utf8(kept: dict[str, Any]) -> bool:
    texts = (each for value in kept.values() for each in (value if isinstance(value, list) else [value]))
    return all(each.encode(errors="replace").decode() == each for each in texts if isinstance(each, str))


class Options(TypedDict, total=False):
    """What run.json keeps of a run that can be resumed by name: arguments of `evaluate`, as it documents them."""

    data: Required[str]
    policy: Required[str]
    behavior: str | None
    gamma: float
    estimators: list[str]
    preset: str
    settings: list[str]
    steps: int | None
    minutes: float | None
    seeds: int | list[int]
    bootstrap: bool
    level: float
    accept: list[str]
    stochastic: bool
    policy_normalization: str | None
    max_episode_steps: int | None
    save_seconds: float


NOT_RESUMED = (
    "out",
    "resume",
    "force",
    "cache",
    "ray",
    "ray_blocks",
    "on_progress",
    "watch",
    "stop_asked",
    "command",
)
RESUMED = tuple(name for name in inspect.signature(evaluate).parameters if name not in NOT_RESUMED)


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
