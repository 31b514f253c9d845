"""evaluate(): from a log and a policy to a value that can be believed or not. The only runner there is.

`evaluate` loads, builds, fits, examines, judges and stores. `run_estimators` is its middle: it alone calls `fit`, for
the command line, the demo, the experiments and the studies alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Required, TypedDict

from kmifqe.behavior import FitReport, FitRequest, TanhMixture, fit_or_load, parse_behavior
from kmifqe.errors import InputError, shown
from kmifqe.estimators import Estimate, Estimator, Progress, fit, make_estimator
from kmifqe.estimators.fit import Checkpoints, Plan, make_plan
from kmifqe.estimators.forecast import placed, with_fallback
from kmifqe.estimators.registry import DEFAULT, check_settings, entries, find_entry
from kmifqe.estimators.sizing import TYPICAL, ProblemSize, size_of
from kmifqe.io.files import disk_sentence
from kmifqe.io.format import size
from kmifqe.io.logs import load_dataset
from kmifqe.io.policies import check_policy_fits, load_policy, load_stochastic_policy
from kmifqe.mdp import Problem, Transitions
from kmifqe.mdp.ask import Behavior, Logged, Policy, action_box
from kmifqe.report.figures import save_figures
from kmifqe.report.page import REPORT
from kmifqe.report.result import RESULT, Question, Result
from kmifqe.report.watch import Watch, default_watch, device_name
from kmifqe.store import Interrupted, RunDirectory, open_run
from kmifqe.store.checkpoints import SAVE_SECONDS
from kmifqe.store.identity import digests, fingerprint
from kmifqe.trust.checks import measure
from kmifqe.trust.interval import LEVEL, check_level
from kmifqe.trust.landscape import LANDSCAPE, keep_landscape

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


def evaluate(
    data: Data,
    policy: PolicyLike,
    *,
    behavior: Behavior | Logged | str | None = None,
    gamma: float = 0.99,
    estimators: Sequence[str | Estimator] = ("kmifqe",),
    preset: str = DEFAULT,
    settings: Sequence[str] = (),
    steps: int | None = None,
    seeds: int | Sequence[int] = SEEDS,
    bootstrap: bool = True,
    level: float = LEVEL,
    stochastic: bool = False,
    policy_normalization: str | None = None,
    max_episode_steps: int | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    save_seconds: float = SAVE_SECONDS,
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
            file, `module:function`, or an object with `log_prob`. None where no estimator needs one.
        gamma: the discount, 0 <= gamma < 1.
        estimators: names of the registry (`kmifqe.estimators.entries()`), or estimators that were made by hand.
        preset: the settings that named estimators start from: by default sizes that follow from the log and γ; see
            `kmifqe evaluate --help` for the others.
        settings: changes to them, such as "clip=0.001,10" or "fqe.hidden=128".
        steps: training steps of every estimator; by default the preset's.
        seeds: how many networks are trained side by side, or the seeds themselves.
        bootstrap: whether every network weights the log's episodes in its own way, which an interval needs.
        level: how often the interval should hold the truth, between 0 and 1.
        stochastic: whether the policy's own distribution is judged, from which it draws its actions; by default
            its deterministic action is (docs/policies.md).
        policy_normalization: statistics that the policy's inputs were normalised with (VecNormalize), or "none".
        max_episode_steps: cut longer episodes of the log into pieces of this length.
        out: a run directory for result.json, report.html, figures and snapshots; None keeps nothing.
        resume: go on with the run in `out`; the result has the bits of a run that was never stopped.
        force: replace an earlier run in `out`.
        save_seconds: the least time between two snapshots.
        on_progress: called after every record of a fit, for instance with a logger of `report.loggers`.
        watch: hears sentences and progress; by default they are shown where stderr is a terminal, or in a notebook.
        stop_asked: asked between blocks of steps; True saves and raises `store.Interrupted`.
        command: the command line that asks, for the record.
    """
    options = _options(locals())
    watch = default_watch() if watch is None else watch
    check_level(level)
    make = partial(_make_estimators, estimators, preset, settings, steps, behavior)
    made = make(TYPICAL)  # refuses wrong names and settings before anything is read
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
        load = load_stochastic_policy if stochastic else load_policy
        target = load(policy, normalization=policy_normalization)
        log = (
            data
            if isinstance(data, Transitions)
            else load_dataset(str(data), max_episode_steps=max_episode_steps)
        )
        check_policy_fits(target, log.state_dim, log.action_dim)
        notes = (*log.notes, *action_box(log, target)[2], *[DRAWN] * stochastic)
        for note in notes:
            watch.note(note)
        density, fit_report = _density(behavior, made, log, target, policy_normalization, run, watch)
        problem = Problem.build(
            log, target, density, gamma, trajectories=follow_episodes(made), draws=DRAWS if stochastic else 0
        )
        made = make(size_of(problem))
        question = Question.about(
            problem,
            data=log.name if isinstance(data, Transitions) else str(data),
            policy=str(policy) if isinstance(policy, str | PathLike) else getattr(target, "name", "policy"),
            behavior=_behavior_name(behavior),
            notes=notes,
        )
        del log
        _announce(problem, watch)
        return evaluate_problem(
            problem,
            made,
            question,
            steps=[steps] * len(made),
            seeds=seeds,
            bootstrap=bootstrap,
            level=level,
            run=run,
            on_progress=on_progress,
            watch=watch,
            command=command,
            behavior_fit=fit_report,
        )


def evaluate_problem(
    problem: Problem,
    estimators: Sequence[Estimator],
    question: Question,
    *,
    steps: Sequence[int | None],
    seeds: int | Sequence[int] = SEEDS,
    bootstrap: bool = True,
    level: float = LEVEL,
    run: RunDirectory | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    watch: Watch | None = None,
    **more: Any,
) -> Result:
    """Return what `estimators` say of a problem that is built already; `evaluate` builds one from files.

    Args:
        problem: the arrays to learn from.
        estimators: what is fitted, the headline first.
        question: what the result says was asked.
        steps: of each estimator; None for its own default.
        seeds: how many networks are trained side by side, or the seeds themselves.
        bootstrap: whether every network weights the log's episodes in its own way.
        level: how often the interval should hold the truth.
        run: the opened run directory for snapshots, result.json, report and figures; None for none.
        on_progress: called after every record of a fit.
        watch: hears sentences and progress; None for silence.
        more: further fields of `Result.judged`, such as `references`.
    """
    watch = Watch() if watch is None else watch
    plans = [
        make_plan(estimator, problem, seeds=seeds, steps=own, bootstrap=bootstrap)
        for estimator, own in zip(estimators, steps, strict=True)
    ]
    data = fingerprint(problem) if run is None else run.begin(plans, problem)
    estimates, problem = run_estimators(
        problem,
        estimators,
        plans,
        store=run,
        watch=watch,
        on_progress=on_progress,
        examine=partial(examined, run),
    )
    if run is not None and run.saves:
        share = run.saving_seconds / max(sum(estimate.seconds for estimate in estimates), 1e-9)
        watch.say(f"saved {run.saves} times on the way, {share:.2%} of the time")
    result = Result.judged(estimates, question, level=level, digests=digests(data), **more)
    if run is not None:
        store_result(result, run, watch)
    return result


def run_estimators(
    problem: Problem,
    estimators: Sequence[Estimator],
    plans: Sequence[Plan],
    *,
    store: Store | RunDirectory | None = None,
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


def examined(
    run: RunDirectory | None, estimator: Estimator, estimate: Estimate, problem: Problem
) -> Estimate:
    """Return `estimate` with what is measured of its final state and of `problem`.

    What `estimator` says of Q around the target's actions is kept in the directory of `run`, if one is given.
    """
    if run is not None:
        keep_landscape(run.file(LANDSCAPE), estimator, estimate, problem)
    return replace(estimate, measurements=measure(estimator, estimate, problem))


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


def _make_estimators(
    asked: Sequence[str | Estimator],
    preset: str,
    settings: Sequence[str],
    steps: int | None,
    behavior: object,
    size: ProblemSize,
) -> list[Estimator]:
    """Return the estimators that were asked for by name or by hand, or refuse a name or setting that is wrong.

    The preset "default" gives them sizes that suit a problem of `size`.
    """
    names = [each if isinstance(each, str) else each.name for each in asked]
    if not names or len(set(names)) < len(names):
        raise InputError(f"estimators are {', '.join(names) or 'none'}; expected at least one, each once")
    check_settings([each for each in asked if isinstance(each, str)], settings)
    settings = [*_density_settings(behavior), *settings]
    return [make_estimator(e, preset, settings, steps, size) if isinstance(e, str) else e for e in asked]


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


def _density(
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
    needing = [e.name for e in estimators if (entry := find_entry(e.name)) and entry.needs_density]
    if not needing:
        return None, None
    if behavior is None:
        raise InputError(
            f"{needing[0]} needs --behavior: logged, fit, gaussian:POLICY:STD, a fitted FILE.safetensors, or "
            "module:function"
        )
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


def _behavior_name(behavior: object) -> str:
    if behavior is None:
        return "none"
    return behavior if isinstance(behavior, str) else getattr(behavior, "name", type(behavior).__name__)


def _announce(problem: Problem, watch: Watch) -> None:
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
    kept |= {name: list(kept[name]) for name in ("estimators", "settings")}
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
    seeds: int | list[int]
    bootstrap: bool
    level: float
    stochastic: bool
    policy_normalization: str | None
    max_episode_steps: int | None
    save_seconds: float


NOT_RESUMED = ("out", "resume", "force", "on_progress", "watch", "stop_asked", "command")
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
