"""rank(): from a log and many policies to an order among them, and to how far it can be believed.

The log and the density are read once. Every policy gets a few networks; those that may be the best get more. Networks
of one seed are alike for all policies, so that policies are compared pair by pair (`trust.ranking`).
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, Required, TypedDict

import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from kmifqe.api import (
    DRAWN,
    DRAWS,
    SEEDS,
    Data,
    PolicyLike,
    announce,
    behavior_name,
    behavior_or_default,
    check_targets,
    find_density,
    follow_episodes,
    make_estimators,
)
from kmifqe.budget import FOR_A_RANKING, Budget, default_minutes, size_note, size_within, what_fixes_sizes
from kmifqe.cluster import Cluster, Job, connect, memory_of, packed
from kmifqe.errors import InputError, shown
from kmifqe.estimators import Estimate, Estimator
from kmifqe.estimators.fit import make_plan, seeds_of, state_shapes
from kmifqe.estimators.forecast import policies_at_once
from kmifqe.estimators.registry import DEFAULT
from kmifqe.estimators.sizing import TYPICAL, size_of
from kmifqe.io.files import disk_sentence, read_file
from kmifqe.io.format import duration
from kmifqe.io.logs import load_dataset
from kmifqe.io.policies import check_policy_fits, load_policy, load_stochastic_policy
from kmifqe.io.serialize import read_json
from kmifqe.mdp import Problem, Transitions
from kmifqe.mdp.ask import Behavior, Logged, Policy
from kmifqe.mdp.policies import Answers, ask_policy, common_box, judged
from kmifqe.mdp.returns import credited_returns
from kmifqe.report.ranking import (
    MOST_VALUE,
    RANKING,
    RANKING_CSV,
    RANKING_TEX,
    Ranking,
    write_csv,
    write_tex,
)
from kmifqe.report.ranking_judged import judged_ranking
from kmifqe.report.ranking_page import RANKING_FIGURE, RANKING_PAGE, save_ranking_figure, write_ranking_page
from kmifqe.report.result import Question
from kmifqe.report.watch import Watch, default_watch
from kmifqe.runner import Store, examined, fit_in_task, run_policies
from kmifqe.store import RunDirectory, open_run
from kmifqe.store.checkpoints import SAVE_SECONDS
from kmifqe.store.identity import digests, fingerprint, joint_fingerprint
from kmifqe.store.manifest import RANK, kept_options
from kmifqe.trust.active import Choice, choose, paired_covariance
from kmifqe.trust.checks import Shared
from kmifqe.trust.interval import LEVEL, check_level
from kmifqe.trust.logged import logged_controller
from kmifqe.trust.ranking import combined, joint, p_best, value_draws
from kmifqe.trust.verdict import check_accepted, judge_run

ROUGH = 4  # networks that every policy gets: as many as the log's part of an interval is read from
MOST_READ = 2**24  # bytes of a file with a line for every policy or episode
SIZED_FOR = "sized_for_rows"  # in run.json: the rows whose recipe the time allowed
TRAINING = (
    0.8  # share of the time in which networks are trained; the rest is reading, compiling and examining
)
CONTENDER = 0.05  # chance to be the best, by the rough values, from which on a policy gets all networks


def rank(
    data: Data,
    policies: Sequence[PolicyLike] | Mapping[str, PolicyLike],
    *,
    behavior: Behavior | Logged | str | None = None,
    gamma: float = 0.99,
    estimators: Sequence[str | Estimator] = ("auto",),
    preset: str = DEFAULT,
    settings: Sequence[str] = (),
    steps: int | None = None,
    seeds: int | Sequence[int] = SEEDS,
    rough: int = ROUGH,
    minutes: float | None = None,
    level: float = LEVEL,
    accept: Sequence[str] = (),
    stochastic: bool = False,
    policy_normalization: str | None = None,
    max_episode_steps: int | None = None,
    truth: Mapping[str, float] | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    save_seconds: float = SAVE_SECONDS,
    cache: bool = True,
    ray: str | None = None,
    watch: Watch | None = None,
    stop_asked: Callable[[], bool] = lambda: False,
    command: Sequence[str] = (),
    on_estimates: Callable[[Mapping[str, Mapping[str, Estimate]]], None] = lambda estimates: None,
) -> Ranking:
    """Return which of many policies is worth most, judged from one log, and how sure that is.

    Args:
        data: the log, as of `evaluate`.
        policies: what `evaluate` takes as a policy, at least two of them; a mapping gives them names, otherwise files
            are called by their file names.
        behavior: the density of the controller that made the log, as of `evaluate`.
        gamma: the discount, 0 <= gamma < 1.
        estimators: names of the registry, or estimators made by hand; by default those that "auto" averages.
        preset: the settings that named estimators start from, as of `evaluate`.
        settings: changes to them.
        steps: training steps of every estimator; by default the preset's.
        seeds: how many networks the policies get that may be the best, or their seeds.
        rough: how many of them every policy gets first, at least 2; by default 4.
        minutes: the time that the ranking may take, by default 20 on a CPU and 6 on a GPU. The size of the networks
            follows from it where the preset is "default" and no number of steps is given (docs/guides/ranking.md).
            Every policy gets its first networks; how many follow for those that may be the best depends on the time
            that is left. `math.inf` is no limit; with sizes that are fixed there is none by default.
        level: how often an interval should hold the truth, between 0 and 1.
        accept: names of checks whose question you have answered, as of `evaluate`: they ask for care no longer.
        stochastic: whether the policies' own distributions are judged, from which they draw their actions; by default
            their deterministic actions are.
        policy_normalization: statistics that the policies' inputs were normalised with (VecNormalize), or "none".
        max_episode_steps: cut longer episodes of the log into pieces of this length.
        truth: the true normalised value of every policy by its name, where it is known: the ranking is then scored.
        out: a run directory for ranking.json, tables, page and snapshots; None keeps nothing.
        resume: go on with the run in `out`.
        force: replace an earlier run in `out`.
        save_seconds: the least time between two snapshots.
        cache: keep the log as plain arrays in the user's cache folder, and take it from there (`load_dataset`).
        ray: the address of a Ray cluster on which the networks are trained, a task for every policy and estimator;
            "auto" for one of this machine, None, the default, for this process (docs/guides/clusters.md).
        watch: hears sentences and progress; by default they are shown where stderr is a terminal, or in a notebook.
        stop_asked: asked between blocks of steps; True saves and raises `store.Interrupted`.
        command: the command line that asks, for the record.
        on_estimates: called once with all estimates, by policy and estimator, which the ranking is then made from.
    """
    watch = default_watch() if watch is None else watch
    check_level(level)
    check_accepted(accept)
    policies = named = name_policies(policies)
    given = locals()
    options = kept_options({name: given[name] for name in RankOptions.__annotations__})
    make = partial(make_estimators, tuple(estimators), preset, settings, steps, stochastic=stochastic)
    made = make(behavior, TYPICAL)  # refuses wrong names and settings before anything is read
    check_targets(made, stochastic)
    all_seeds = seeds_of(seeds)
    if not min(rough, len(all_seeds)) >= 2:
        raise InputError(
            f"there are {len(all_seeds)} seeds, {rough} of them at first; expected at least 2: without a spread over "
            "networks nothing can be told apart"
        )
    are_fixed = bool(what_fixes_sizes(preset, steps, estimators)) or ray is not None
    if minutes is None:
        minutes = math.inf if are_fixed else FOR_A_RANKING * default_minutes()
    if not minutes > 0:
        raise InputError(f"minutes are {minutes}; expected a time greater than 0")
    check_truth(truth, named)
    with ExitStack() as stack:
        run: RunDirectory | None = None
        if out is not None:
            open_ = open_run(
                Path(out),
                {},
                task=RANK,
                resume=resume,
                force=force,
                save_seconds=save_seconds,
                stop_asked=stop_asked,
                warn=watch.warn,
            )
            run = stack.enter_context(open_)
        cluster = stack.enter_context(connect(ray, save_seconds=save_seconds, stop_asked=stop_asked))
        load = load_stochastic_policy if stochastic else load_policy
        targets = [load(each, normalization=policy_normalization) for each in named.values()]
        log = (
            data
            if isinstance(data, Transitions)
            else load_dataset(str(data), max_episode_steps=max_episode_steps, cache=cache)
        )
        for name, target in zip(named, targets):
            with _naming(name):
                check_policy_fits(target, log.state_dim, log.action_dim)
        for note in (*log.notes, *[DRAWN] * stochastic):
            watch.note(note)
        behavior = behavior_or_default(behavior, made, log, watch)
        seconds = None if minutes == math.inf else Budget(minutes).for_the_density
        density, fit_report = find_density(
            behavior, made, log, targets[0], policy_normalization, run, watch, seconds
        )
        draws = DRAWS if stochastic else 0
        case, notes = _build(log, list(named), targets, density, gamma, follow_episodes(made), draws)
        for note in notes:
            watch.note(note)
        announce(case.problem, watch)
        whole = size_of(case.problem)
        own = None if run is None else run.begun_with.get(SIZED_FOR)
        if isinstance(own, int):  # a run that is resumed on a machine that is slower now must not begin anew
            chosen = whole.with_recipe(own)
        elif are_fixed or minutes == math.inf:
            chosen = whole
        else:
            chosen = size_within(minutes, case.problem, len(named), rough, partial(make, behavior), watch)
        made = make(behavior, chosen)
        sized = size_note(chosen, whole, rough)
        question = Question.about(
            case.problem,
            data=log.name if isinstance(data, Transitions) else str(data),
            policy=f"{len(named)} policies",
            behavior=behavior_name(behavior),
            notes=(*log.notes, *[DRAWN] * stochastic, *notes, *[sized] * bool(sized)),
            accepted=accept,
        )
        del log
        networks = _Networks(case, made, steps, run, watch, cluster)
        if run is not None:
            run.begin_ranking(options | {SIZED_FOR: chosen.recipe_rows})
        estimates = _allocate(networks, all_seeds, rough, minutes, accept, watch)
        on_estimates(dict(zip(case.names, estimates)))
        ranking = judged_ranking(
            case.names,
            estimates,
            logged_controller(case.problem, case.returns, all_seeds),
            question,
            level=level,
            files=[str(each) if isinstance(each, str | PathLike) else "" for each in named.values()],
            truth=truth,
            command=command,
            digests=digests(networks.data[0]),
            behavior_fit=fit_report,
        )
        if run is not None:
            store_ranking(ranking, run, watch)
        return ranking


class RankOptions(TypedDict, total=False):
    """What run.json keeps of a ranking that can be resumed by name: arguments of `rank`, as it documents them."""

    data: Required[str]
    policies: Required[dict[str, str]]
    behavior: str | None
    gamma: float
    estimators: list[str]
    preset: str
    settings: list[str]
    steps: int | None
    seeds: int | list[int]
    rough: int
    minutes: float | None
    level: float
    accept: list[str]
    stochastic: bool
    policy_normalization: str | None
    max_episode_steps: int | None
    truth: dict[str, float] | None
    save_seconds: float


def name_policies(policies: Sequence[PolicyLike] | Mapping[str, PolicyLike]) -> dict[str, PolicyLike]:
    """Return the policies by name: files by their file names, with as much of the path as tells them apart."""
    if isinstance(policies, Mapping):
        named = dict(policies)
    else:
        if isinstance(policies, str):
            raise InputError(f"policies is the text {shown(policies)}; expected a list of policies")
        files = [
            str(each) if isinstance(each, str | PathLike) else getattr(each, "name", "") or f"policy {i + 1}"
            for i, each in enumerate(policies)
        ]
        twice = sorted({file for file in files if files.count(file) > 1})
        if twice:
            raise InputError(f"the policy {shown(twice[0])} was given twice; expected each once")
        named = dict(zip(_short_names(files), policies))
    if len(named) < 2:
        raise InputError(
            f"{len(named)} {'policy was' if len(named) == 1 else 'policies were'} given; expected at least two to "
            "rank (`kmifqe evaluate` judges one)"
        )
    return named


def _short_names(files: Sequence[str]) -> list[str]:
    """Return for each path its shortest end that no other one has: the file name, or with the folders above it."""
    parts = [Path(file).parts or (file,) for file in files]
    ends = [["/".join(each[-depth:]) for depth in range(1, len(each) + 1)] for each in parts]
    owners = Counter(end for each in ends for end in each)
    return [next((end for end in own if owners[end] == 1), file) for own, file in zip(ends, files)]


def check_truth(
    truth: Mapping[str, float] | None, named: Iterable[str], source: Path | str = "truth"
) -> None:
    """Refuse true values that lack one of the policies `named`, or that are no usable numbers; None is no truth.

    `source` is what they come from, for the message: a file, or by default the argument.
    """
    if truth is None:
        return
    names = list(named)
    missing = [name for name in names if name not in truth]
    if missing:
        raise InputError(
            f"{source} lacks the policy {shown(missing[0])}; expected a value for each of "
            f"{', '.join(map(shown, names))}"
        )
    for name in names:
        if not abs(truth[name]) <= MOST_VALUE:
            raise InputError(
                f"{source} says that the policy {shown(name)} is worth {truth[name]}; expected a number of at most "
                f"{MOST_VALUE:g}"
            )


class _naming:
    """Puts the policy's name before an InputError that is raised inside."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError) and self._name not in str(error):
            raise InputError(f"{self._name}: {error}") from error


@dataclass(frozen=True)
class Case:
    """One log and many policies: what is shared, and what each policy says."""

    problem: Problem  # of the first policy, in the box that holds all policies' actions
    names: tuple[str, ...]
    answers: tuple[Answers, ...]
    returns: np.ndarray  # (episodes,): normalised returns of the logged episodes


def _build(
    log: Transitions,
    names: Sequence[str],
    targets: Sequence[Policy],
    density: Behavior | Logged | None,
    gamma: float,
    trajectories: bool,
    draws: int,
) -> tuple[Case, list[str]]:
    """Return the case of the policies, and what the user should know of them."""
    problem = Problem.build(log, targets[0], density, gamma, trajectories=trajectories, draws=draws)
    low, high, differ = common_box(log, targets)
    problem = replace(
        problem, action_low=jnp.asarray(low, jnp.float32), action_high=jnp.asarray(high, jnp.float32)
    )
    answers = []
    for name, target in zip(names, targets):
        with _naming(name):
            answers.append(ask_policy(log, target, density, draws))
    notes = [
        "the policies differ in their action bounds; all are judged in the box that holds every one of them"
    ] * differ
    alike: dict[bytes, list[str]] = {}
    for name, answer in zip(names, answers):
        said = (answer.target_actions, answer.first_actions, answer.target_samples)
        digest = sha256(b"".join(each.tobytes() for each in said if each is not None)).digest()
        alike.setdefault(digest, []).append(name)
    notes += [
        f"{' and '.join(map(shown, same))} act alike at every logged state: nothing here can tell them apart"
        for same in alike.values()
        if len(same) > 1
    ]
    return Case(problem, tuple(names), tuple(answers), credited_returns(log, gamma)), notes


class _Networks:
    """Trains networks of a case's policies, and keeps them in a run directory if there is one."""

    def __init__(
        self,
        case: Case,
        estimators: Sequence[Estimator],
        steps: int | None,
        run: RunDirectory | None,
        watch: Watch,
        cluster: Cluster | None = None,
    ) -> None:
        self._cluster = cluster
        self._packed = None if cluster is None else cluster.share(packed(case.problem))
        self._answers = [] if cluster is None else [cluster.share(each) for each in case.answers]
        self.case, self.estimators, self.watch = case, estimators, watch
        self._steps, self._run = steps, run
        self._shared = Shared()
        first = fingerprint(judged(case.problem, case.answers[0]))
        others = [fingerprint(judged(case.problem, each), first) for each in case.answers[1:]]
        self.data = [first, *others]  # of every policy

    def train(self, policies: Sequence[int], seeds: tuple[int, ...]) -> dict[int, dict[str, Estimate]]:
        """Return the estimates of `policies` by networks of these `seeds`, by policy and estimator."""
        if self._cluster is not None:
            return self._train_on(self._cluster, policies, seeds)
        found: dict[int, dict[str, Estimate]] = {policy: {} for policy in policies}
        label = f"networks-{seeds[0]}-{seeds[-1]}"
        for estimator in self.estimators:
            plan = make_plan(estimator, self.case.problem, seeds=seeds, steps=self._steps, bootstrap=True)
            size = policies_at_once(estimator, self.case.problem, plan, len(policies))
            for start in range(0, len(policies), size):
                turn = list(policies[start : start + size])
                self.watch.say(
                    f"{estimator.name}: {len(seeds)} networks each of "
                    f"{', '.join(self.case.names[policy] for policy in turn)}"
                )
                estimates = run_policies(
                    self.case.problem,
                    [self.case.answers[policy] for policy in turn],
                    estimator,
                    plan,
                    size=size,
                    stores=[self._store(f"{label}.policy-{policy}", [policy]) for policy in turn],
                    together=lambda positions, turn=turn: self._store(  # type: ignore[misc]
                        f"{label}.policies-{turn[positions[0]]}-{turn[positions[-1]]}",
                        [turn[position] for position in positions],
                    ),
                    watch=self.watch,
                    examine=partial(examined, None, self._shared),
                )
                for policy, estimate in zip(turn, estimates, strict=True):
                    found[policy][estimator.name] = estimate
        return found

    def _train_on(
        self, cluster: Cluster, policies: Sequence[int], seeds: tuple[int, ...]
    ) -> dict[int, dict[str, Estimate]]:
        """Return what `train` does, from a cluster: a task is one policy, one estimator and these seeds."""
        found: dict[int, dict[str, Estimate]] = {policy: {} for policy in policies}
        tasks: dict[str, tuple[int, Any]] = {}
        jobs = []
        for estimator in self.estimators:
            plan = make_plan(estimator, self.case.problem, seeds=seeds, steps=self._steps, bootstrap=True)
            memory = memory_of(self.case.problem, state_shapes(estimator, plan, self.case.problem))
            for policy in policies:
                store = self._store(f"networks-{seeds[0]}-{seeds[-1]}.policy-{policy}", [policy])
                stored = store.finished(plan)
                if stored is not None:
                    found[policy][estimator.name] = stored
                    continue
                store.begin_fit(plan)
                kept = store.checkpoints(plan)
                start = None if kept is None else kept.restore(plan, self.case.problem)
                name = f"{self.case.names[policy]}, {estimator.name}, seeds {seeds[0]} to {seeds[-1]}"
                arguments = (estimator, plan, self._packed, self._answers[policy])
                jobs.append(Job(name, fit_in_task, arguments, plan, kept, start, memory))
                tasks[name] = policy, store

        def keep(job: Job, estimate: Estimate) -> None:
            policy, store = tasks[job.name]
            store.finish(job.plan, estimate)
            found[policy][estimate.estimator] = estimate

        cluster.run(jobs, self.watch, keep)
        order = [each.name for each in self.estimators]
        return {policy: {name: own[name] for name in order} for policy, own in found.items()}

    def _store(self, name: str, policies: Sequence[int]) -> Any:
        if self._run is None:
            return Store()
        data = [self.data[policy] for policy in policies]
        return self._run.part(name, data[0] if len(data) == 1 else joint_fingerprint(data))


def _allocate(
    networks: _Networks,
    seeds: tuple[int, ...],
    rough: int,
    minutes: float,
    accept: Sequence[str],
    watch: Watch,
) -> list[dict[str, Estimate]]:
    """Return the estimates of every policy: of a few networks for all, of all networks for those that may be best.

    What was decided follows from stored estimates alone, so that a run that is resumed decides alike.
    """
    everyone = range(len(networks.case.names))
    first = networks.train(everyone, seeds[:rough])
    estimates = [first[policy] for policy in everyone]
    rest = seeds[rough:]
    if not rest:
        return estimates
    contenders = _contenders(estimates, accept)
    spent = sum(each.seconds for policy in estimates for each in policy.values())
    if minutes < math.inf:
        a_network = spent / (len(estimates) * rough)
        affordable = int((TRAINING * 60.0 * minutes - spent) / max(a_network * len(contenders), 1e-9))
        if affordable < len(rest):
            rest = rest[: max(affordable, 0)]
            watch.warn(
                f"the first {rough} networks of every policy were trained in {duration(spent)}: "
                f"{minutes:g} minute{'s' * (minutes != 1)} leave room for {len(rest) or 'no'} more of those that may "
                "be the best; to go on: the same again with more minutes and resume (--resume)"
            )
    if not contenders or not rest:
        return estimates
    watch.say(
        f"{len(rest)} more networks for those that may be the best: "
        f"{', '.join(networks.case.names[policy] for policy in contenders)}"
    )
    more = networks.train(contenders, rest)
    for policy, own in more.items():
        estimates[policy] = {name: joined(estimates[policy][name], own[name]) for name in own}
    return estimates


def _contenders(estimates: Sequence[Mapping[str, Estimate]], accept: Sequence[str]) -> list[int]:
    """Return the policies that may be the best by their rough values; at least two where two can be ranked."""
    values = combined(estimates, [judge_run(list(each.values()), accept) for each in estimates])
    sound = [i for i, each in enumerate(values) if each.is_ranked]
    if len(sound) < 2:
        return sound
    episodes = next(iter(estimates[0].values())).episodes
    chances = p_best(value_draws(joint([values[i] for i in sound], episodes)))
    order = np.argsort(-chances, kind="stable")
    chosen = [sound[i] for place, i in enumerate(order) if place < 2 or chances[i] >= CONTENDER]
    return sorted(chosen)


def joined(first: Estimate, more: Estimate) -> Estimate:
    """Return one estimate of the networks of two fits with the same plan and other seeds.

    What was measured of the first one's networks stands for all: the log's part is read off a few of them anyway.
    """
    return replace(
        first,
        seeds=(*first.seeds, *more.seeds),
        values=np.concatenate([first.values, more.values]),
        trajectory=np.concatenate([first.trajectory, more.trajectory], axis=1),
        infos={name: np.concatenate([first.infos[name], more.infos[name]], axis=1) for name in first.infos},
        seconds=first.seconds + more.seconds,
    )


def store_ranking(ranking: Ranking, run: RunDirectory, watch: Watch) -> None:
    """Write ranking.json into the directory of `run`, and then the tables, the figure and the page.

    The ranking is what the run was for: where a picture of it cannot be made, `watch` hears a warning.
    """
    with disk_sentence(run.path):
        ranking.save(run.file(RANKING).parent)
    makers: dict[str, Callable[[Ranking, Path], object]] = {
        RANKING_CSV: write_csv,
        RANKING_TEX: write_tex,
        RANKING_FIGURE: save_ranking_figure,
        RANKING_PAGE: write_ranking_page,
    }
    for name, make in makers.items():
        try:
            make(ranking, run.file(name))
        except Exception as error:  # fonts, styles, a full disk: none of them may cost the result
            watch.warn(f"{run.path}: {name} could not be made ({shown(error) or type(error).__name__})")


def next_policy(
    ranking: Ranking, returns: str | PathLike[str] | Mapping[str, Sequence[float]], *, rule: str = "ucb"
) -> Choice:
    """Return which policy of a `ranking` to try next online, from the ranking and the online `returns` so far.

    Args:
        ranking: of `rank`, or loaded from its folder by `Ranking.load`.
        returns: a CSV file with the columns policy and discounted_return, a line for every episode played, or the
            same as a mapping of lists. A discounted return is Σ γᵗ r_t of one episode with the ranking's γ; an
            undiscounted one cannot be converted.
        rule: how to choose: "ucb" (default) or "thompson" (`trust.active`).
    """
    names = [each.policy for each in ranking.ranking]
    if not names:
        raise InputError("no policy is ranked: their estimates are not to be used, so there is none to try")
    widths = ndtri(0.5 + 0.5 * ranking.level)  # half an interval in standard deviations

    def variance(low: float | None, high: float | None) -> float:
        return float(((high or 0.0) - (low or 0.0)) / (2.0 * widths)) ** 2

    variances = np.array([variance(each.low, each.high) for each in ranking.ranking])
    between = np.add.outer(variances, variances)
    for each in ranking.differences:
        one, other = names.index(each.better), names.index(each.worse)
        between[one, other] = between[other, one] = variance(each.low, each.high)
    played = returns if isinstance(returns, Mapping) else read_returns(Path(returns))
    scale = 1.0 - ranking.question.gamma
    return choose(
        names,
        np.array([each.value for each in ranking.ranking], float),
        paired_covariance(variances, between),
        {name: [scale * each for each in own] for name, own in played.items()},
        ranking.logged.return_std,
        rule=rule,
    )


def read_returns(path: Path) -> dict[str, list[float]]:
    """Return the discounted returns of online episodes in a CSV at `path`, by policy."""
    expected = (
        "expected a CSV with the columns policy and discounted_return, a line for every episode: the sum of "
        "gamma^t times reward over the episode, with the gamma of the ranking"
    )
    returns: dict[str, list[float]] = {}
    for policy, value in read_column(path, "discounted_return", expected):
        returns.setdefault(policy, []).append(value)
    return returns


def read_truth(path: Path) -> dict[str, float]:
    """Return the true values in a CSV with the columns policy and value, or in a JSON object of policy and value."""
    if read_file(path, MOST_READ).lstrip()[:1] == b"{":
        return read_json(path, dict[str, float])
    expected = "expected a JSON object of policies and values, or a CSV with the columns policy and value"
    truths: dict[str, float] = {}
    for policy, value in read_column(path, "value", expected):
        if policy in truths:
            raise InputError(f"{path}: has two lines for the policy {shown(policy)}; expected one for each")
        truths[policy] = value
    return truths


def read_column(path: Path, column: str, expected: str) -> list[tuple[str, float]]:
    """Return the columns policy and `column` of a CSV at `path`, line by line; refuse what is no usable number.

    `expected` is what the file should have been, for messages.
    """
    try:
        rows = csv.DictReader(read_file(path, MOST_READ).decode("utf-8-sig").splitlines())
        lines = list(enumerate(rows, 2))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is no text ({shown(error)}); {expected}") from error
    if {"policy", column} - set(rows.fieldnames or ()):
        found = ", ".join(map(shown, rows.fieldnames or ())) or "none"
        raise InputError(f"{path}: the columns are {found}; {expected}")
    values = []
    for line, row in lines:
        try:
            value = float(row[column] or "")
        except ValueError:
            value = float("nan")
        if not row["policy"] or not abs(value) <= MOST_VALUE:
            raise InputError(f"{path}: line {line} is {shown(dict(row))}; {expected}")
        values.append((row["policy"], value))
    return values
