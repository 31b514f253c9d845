"""evaluate(): from a log and a policy to a value that can be believed or not.

`evaluate` loads, builds, fits, examines, judges and stores; fitting and examining are the runner's (`runner.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Required, TypedDict

import msgspec
import numpy as np

from kmifqe.behavior import FitConfig, FitReport, FitRequest, TanhMixture, fit_or_load, parse_behavior
from kmifqe.budget import evaluate_within, first_sample, make_budget
from kmifqe.cluster import Cluster, connect
from kmifqe.errors import InputError, shown
from kmifqe.estimators import Estimator, Progress, make_estimator
from kmifqe.estimators.fit import make_plan, seeds_of
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
from kmifqe.mdp.returns import credited_returns
from kmifqe.report.figures import save_figures
from kmifqe.report.page import REPORT
from kmifqe.report.result import RESULT, Question, Result
from kmifqe.report.watch import Watch, default_watch, device_name
from kmifqe.runner import Store, examined, run_estimators, train_on_cluster
from kmifqe.store import RunDirectory, open_run
from kmifqe.store.checkpoints import SAVE_SECONDS
from kmifqe.store.identity import digests, fingerprint
from kmifqe.store.manifest import kept_options
from kmifqe.trust.checks import Shared
from kmifqe.trust.choice import average
from kmifqe.trust.interval import LEVEL, check_level
from kmifqe.trust.logged import logged_controller
from kmifqe.trust.verdict import check_accepted

SEEDS = 10
DRAWS = 8  # actions of a stochastic target at every state, over which expectations are taken
DRAWN = f"the target draws its actions; expectations are taken over {DRAWS} draws at every state"
Data = Transitions | str | PathLike[str]
PolicyLike = Policy | Callable[..., Any] | str | PathLike[str]


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
    references: Mapping[str, float] | None = None,
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
        gamma: the discount, 0 <= gamma < 1; by default 0.99.
        estimators: names of the registry (`kmifqe.estimators.all_entries()`), or estimators that were made by hand.
            "auto", the default, fits KMIFQE and FQE and averages them.
        preset: the settings that named estimators start from: by default sizes that follow from the log and γ; see
            `kmifqe evaluate --help` for the others.
        settings: changes to them, such as "clip=0.001,10" or "fqe.hidden=128".
        steps: training steps of every estimator; by default the preset's.
        minutes: the time that the preset "default" may take; by default 10 on a CPU and 3 on a GPU. After a first
            estimate the largest fit follows that the time allows (docs/guides/runs.md). Other presets, and a
            number of steps, fix the sizes and take the time they take.
        seeds: how many networks of every estimator are trained side by side, by default 10; or the seeds themselves.
        bootstrap: whether every network weights the log's episodes in its own way, which an interval needs; by
            default it does.
        level: how often the interval should hold the truth, between 0 and 1; by default 0.95.
        accept: names of checks whose question you have answered, such as "unexplained_ends" where episodes of your
            system do end by chance: they ask for care no longer. What forbids the use of a number still does.
        stochastic: whether the policy's own distribution is judged, from which it draws its actions; by default
            its deterministic action is (docs/guides/policies.md).
        policy_normalization: statistics that the policy's inputs were normalised with (VecNormalize), or "none".
        max_episode_steps: cut longer episodes of the log into pieces of this length; by default none is cut.
        out: a run directory for result.json, report.html, figures and snapshots; None keeps nothing.
        resume: go on with the run in `out`; the result has the bits of a run that was never stopped.
        force: replace an earlier run in `out`.
        save_seconds: the least time between two snapshots, by default 30 seconds.
        cache: keep the log as plain arrays in the user's cache folder, and take it from there (`load_dataset`); by
            default it is kept.
        ray: the address of a Ray cluster on which the networks are trained, "auto" for one of this machine; None, the
            default, trains them in this process (docs/guides/clusters.md). The result is the same.
        ray_blocks: into how many tasks the networks of an estimator are divided on a cluster; by default 1. More than
            one may change the last bits, because products of other sizes are rounded in another way.
        references: values that are known otherwise, for instance {"truth": -3.1}; figures show them as lines.
        on_progress: called after every record of a fit, for instance with a logger of `report.loggers`.
        watch: hears sentences and progress; by default they are shown where stderr is a terminal, or in a notebook.
        stop_asked: asked between blocks of steps; True saves and raises `store.Interrupted`.
        command: the command line that asks, for the record.
    """
    given = locals()
    options = kept_options({name: given[name] for name in RESUMED})
    watch = default_watch() if watch is None else watch
    check_level(level)
    check_accepted(accept)
    all_seeds = seeds_of(seeds)
    budget = make_budget(minutes, preset, steps, estimators)
    make = partial(make_estimators, estimators, preset, settings, steps, stochastic=stochastic)
    made = make(behavior, TYPICAL)  # refuses wrong names and settings before anything is read
    check_targets(made, stochastic)
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
        goes_on = resume and run is not None and run.holds_result()
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
        seconds = None if budget is None else budget.for_the_density
        density, fit_report = find_density(
            behavior, made, log, target, policy_normalization, run, watch, seconds
        )
        build = partial(
            Problem.build,
            policy=target,
            behavior=density,
            gamma=gamma,
            trajectories=follow_episodes(made),
            draws=DRAWS if stochastic else 0,
        )
        problem = build(log)
        question = Question.about(
            problem,
            data=log.name if isinstance(data, Transitions) else str(data),
            policy=str(policy) if isinstance(policy, str | PathLike) else getattr(target, "name", "policy"),
            behavior=behavior_name(behavior),
            notes=notes,
            accepted=accept,
        )
        returns = credited_returns(log, gamma)
        some = None if budget is None else first_sample(log)
        sample = None if some is None else build(some)
        sample_returns = None if some is None else credited_returns(some, gamma)
        del log, some
        announce(problem, watch)
        judge = partial(
            _judged,
            averages=[each for each in estimators if isinstance(each, str) and entry_named(each).panel],
            bootstrap=bootstrap,
            level=level,
            run=run,
            on_progress=on_progress,
            watch=watch,
            references=dict(references or {}),
            command=command,
            behavior_fit=fit_report,
            cluster=cluster,
            blocks=ray_blocks,
        )
        judge_log = partial(judge, logged_returns=returns, shared=Shared())
        judge_sample = partial(judge, logged_returns=sample_returns, shared=Shared())
        if budget is None:
            made = make(behavior, size_of(problem))
            return judge_log(problem, made, question, steps=[steps] * len(made), seeds=all_seeds)[0]

        def judge_rung(
            problem: Problem, rung: Rung, made: Sequence[Estimator], part: str, note: str
        ) -> tuple[Result, Problem]:
            asked = msgspec.structs.replace(question, notes=(*question.notes, note)) if note else question
            own = all_seeds[: rung.networks]
            judge = judge_sample if problem is sample else judge_log
            return judge(problem, made, asked, steps=[None] * len(made), seeds=own, part=part)

        sized = partial(make, behavior)
        return evaluate_within(
            budget,
            problem,
            sample,
            len(all_seeds),
            sized,
            judge_rung,
            watch,
            folder=run.path if run is not None and options else None,
            goes_on=goes_on,
            stop_asked=stop_asked,
        )


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
        store = train_on_cluster(cluster, problem, estimators, plans, run, data, part, blocks, watch)
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
        times = f"{run.saves} time{'s' * (run.saves != 1)}"
        watch.say(f"saved {times} on the way, {share:.2%} of the time")
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

    An average among the `asked` stands for the estimators that it averages. The `preset` "default" gives them sizes
    that suit a problem of `size`; `settings` are changes to it, such as "clip=0.001,10", and `steps` its number of
    steps, None for the preset's own. `behavior` is what was asked for as the density: a fitted one has a density
    floor. `stochastic` says whether the policy draws its actions, by default not.
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


def check_targets(estimators: Sequence[Estimator], stochastic: bool) -> None:
    """Refuse one of the `estimators` that cannot judge the kind of target that is asked about.

    `stochastic` says whether the target draws its actions.
    """
    kind, other = ("stochastic", "deterministic") if stochastic else ("deterministic", "stochastic")
    for estimator in estimators:
        entry = find_entry(estimator.name)
        if entry is not None and entry.targets == other:
            fitting = [each.name for each in entries() if each.targets in (kind, "both")]
            flag = (
                "leave --stochastic (stochastic=True) away"
                if stochastic
                else "add --stochastic (stochastic=True)"
            )
            raise InputError(
                f"{estimator.name} judges {other} targets only; {flag}, or use one of {', '.join(fitting)}"
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
    seconds: float | None = None,
) -> tuple[Behavior | Logged | None, FitReport | None]:
    """Return the behaviour density, read, parsed, or fitted now or earlier, and the report of its fit.

    `behavior` is as for `evaluate`, but chosen; without a density among the needs of the `estimators` nothing is read
    or fitted. A fit is of the `log` inside the `target`'s action bounds, and is kept in the folder of `run`, if there
    is one. `normalization` is that of a policy that the density is made of; `watch` hears how far a fit is. A fit may
    be trained for so many `seconds`, by default as long as it takes.
    """
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
            # In a short time one small mixture comes nearer than four of which the best would be kept.
            config=FitConfig() if seconds is None else FitConfig(FitConfig().components[:1], seconds=seconds),
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
    rows = problem.counts
    watch.say(
        f"{rows.used:,} of {rows.logged:,} rows are used, in {rows.episodes:,} episodes; {rows.in_sample:,} have a "
        f"logged next action; {problem.state_dim} state and {problem.action_dim} action dimensions"
        f"{'; mapped from disk' if problem.mapped_bytes else ''}"
    )
    watch.say(f"running on {device_name()}")
    if problem.is_on_host:
        held = size(problem.host_bytes)
        watch.warn(f"{held} of data exceed the device's memory and stay in host memory")


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
    "references",
    "on_progress",
    "watch",
    "stop_asked",
    "command",
)
RESUMED = tuple(name for name in inspect.signature(evaluate).parameters if name not in NOT_RESUMED)
