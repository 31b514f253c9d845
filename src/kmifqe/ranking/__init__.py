"""rank(): from a log and many policies to an order among them, and to how far it can be believed.

The log and the density are read once. Every policy gets a few networks; those that may be the best get more. Networks
of one seed are alike for all policies, so that policies are compared pair by pair (`trust.ranking`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Required, TypedDict

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
from kmifqe.cluster import connect
from kmifqe.errors import InputError, shown
from kmifqe.estimators import Estimate, Estimator
from kmifqe.estimators.fit import seeds_of
from kmifqe.estimators.registry import DEFAULT
from kmifqe.estimators.sizing import TYPICAL, size_of
from kmifqe.io.files import disk_sentence
from kmifqe.io.logs import load_dataset
from kmifqe.io.policies import check_policy_fits, load_policy, load_stochastic_policy
from kmifqe.mdp import Transitions
from kmifqe.mdp.ask import Behavior, Logged
from kmifqe.ranking.case import build_case, name_policies, naming
from kmifqe.ranking.known import check_truth, next_policy
from kmifqe.ranking.networks import Networks, allocate
from kmifqe.report.ranking import RANKING, RANKING_CSV, RANKING_TEX, Ranking, write_csv, write_tex
from kmifqe.report.ranking_judged import judged_ranking
from kmifqe.report.ranking_page import RANKING_FIGURE, RANKING_PAGE, save_ranking_figure, write_ranking_page
from kmifqe.report.result import Question
from kmifqe.report.watch import Watch, default_watch
from kmifqe.store import RunDirectory, open_run
from kmifqe.store.checkpoints import SAVE_SECONDS
from kmifqe.store.identity import digests
from kmifqe.store.manifest import RANK, kept_options
from kmifqe.trust.interval import LEVEL, check_level
from kmifqe.trust.logged import logged_controller
from kmifqe.trust.verdict import check_accepted

__all__ = ["RankOptions", "next_policy", "rank", "store_ranking"]

ROUGH = 4  # networks that every policy gets: as many as the log's part of an interval is read from
SIZED_FOR = "sized_for_rows"  # in run.json: the rows whose recipe the time allowed


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
            with naming(name):
                check_policy_fits(target, log.state_dim, log.action_dim)
        for note in (*log.notes, *[DRAWN] * stochastic):
            watch.note(note)
        behavior = behavior_or_default(behavior, made, log, watch)
        seconds = None if minutes == math.inf else Budget(minutes).for_the_density
        density, fit_report = find_density(
            behavior, made, log, targets[0], policy_normalization, run, watch, seconds
        )
        draws = DRAWS if stochastic else 0
        case, notes = build_case(log, list(named), targets, density, gamma, follow_episodes(made), draws)
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
        networks = Networks(case, made, steps, run, watch, cluster)
        if run is not None:
            run.begin_ranking(options | {SIZED_FOR: chosen.recipe_rows})
        estimates = allocate(networks, all_seeds, rough, minutes, accept, watch)
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
