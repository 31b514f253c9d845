"""`kmifqe rank`: its options, and what it prints. `kmifqe.rank` does the work."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.cli.config import Config
from kmifqe.cli.dataset import Data, MaxEpisodeSteps, NoCache
from kmifqe.cli.evaluate import (
    ESTIMATORS,
    SAVE_SECONDS,
    Accept,
    Behavior,
    Ray,
    Stochastic,
    new_directory,
    say_how_to_go_on,
)
from kmifqe.cli.session import Interrupts, check_memory_limit, keep_compiled_programs
from kmifqe.errors import InputError, listed, printable, shown

EPISODES = 200  # rolled out for a policy's true value, by default


def rank(
    ctx: typer.Context,
    data: Data,
    policy: Annotated[
        list[str],
        typer.Option(
            help="A policy, as of `kmifqe evaluate`, or a pattern such as 'checkpoints/*.zip' in quotes; repeat "
            "for several.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for ranking.json, tables and the page; made if missing.",
            show_default="a new one under runs/",
        ),
    ] = None,
    behavior: Behavior = None,
    gamma: Annotated[float, typer.Option(help="Discount, 0 <= gamma < 1.")] = 0.99,
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            "-e",
            help=f"One of {ESTIMATORS}; repeat for several.",
            show_default="auto",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=2,
            help="How many networks of each estimator the policies get that may be the best; the others get four.",
        ),
    ] = 10,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="The time that the whole ranking may take: it decides how large networks are, and how many more the "
            "policies get that may be the best. No limit where --preset or --steps fix the sizes.",
            show_default="20 on a CPU, 6 on a GPU",
        ),
    ] = None,
    level: Annotated[
        float, typer.Option(help="How often each interval should hold the true value, between 0 and 1.")
    ] = 0.95,
    accept: Accept = None,
    stochastic: Stochastic = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Training steps of every estimator.", show_default="the preset's"),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="A named set of settings, as of `kmifqe evaluate`.")
    ] = "default",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="A setting of the estimators, as of `kmifqe evaluate`; repeat for several.",
            show_default=False,
        ),
    ] = None,
    policy_normalization: Annotated[
        str | None,
        typer.Option(help="Statistics the policies' inputs were normalised with (VecNormalize), or 'none'."),
    ] = None,
    max_episode_steps: MaxEpisodeSteps = None,
    no_cache: NoCache = False,
    ray: Ray = None,
    truth: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="True values to score the ranking with: a CSV with the columns policy and value, or a JSON object. "
            "Values are normalised, (1 − gamma) times the discounted return.",
            show_default=False,
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="A Gymnasium id in which every policy is rolled out for its true value.",
            show_default=False,
        ),
    ] = None,
    next_: Annotated[
        Path | None,
        typer.Option(
            "--next",
            metavar="FILE",
            help="Say which policy to try next online, given the episodes played so far: a CSV with the columns "
            "policy and discounted_return, a line for every episode; the header alone before the first.",
            show_default=False,
        ),
    ] = None,
    env_episodes: Annotated[
        int, typer.Option(min=2, help="Episodes that --env rolls out for each policy.")
    ] = EPISODES,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier run in the directory, finished or not.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the directory; begin if there is none.")
    ] = False,
    save_seconds: Annotated[
        float, typer.Option(min=0, help="Save at most this often, and never for more than 1 % of the time.")
    ] = SAVE_SECONDS,
    config_file: Config = None,
) -> None:
    """Rank many policies by their value, judged from one log that another controller collected.

    Example: kmifqe rank log.npz --policy 'checkpoints/*.zip' --out runs/choice

    Prints the ranking and what to do next, and writes ranking.json, ranking.csv, ranking.tex, ranking.png and
    ranking.html (docs/guides/ranking.md). Policies are compared pair by pair, which tells more than their
    intervals do.
    Ctrl-C saves and stops; `kmifqe resume RUN` goes on, and ends with the same bits.
    """
    if ctx.args:
        raise InputError(
            f"{listed(ctx.args, 3)}: given without --policy; expected a --policy before each file, or a pattern in "
            "quotes, which the shell leaves alone: --policy 'checkpoints/*.zip'"
        )
    if truth is not None and env is not None:
        raise InputError("--truth and --env both say what the policies are worth; give one of them")
    if resume and out is None:
        raise InputError("--resume goes on with the run in a directory; give it as --out")
    policies = expand(policy)
    check_memory_limit()
    from kmifqe.ranking.case import name_policies
    from kmifqe.ranking.known import check_truth, read_returns, read_truth

    named = name_policies(policies)
    truths = None if truth is None else read_truth(truth)
    check_truth(truths, named, truth or "")
    returns = None if next_ is None else read_returns(next_)  # refused before anything is trained
    for played in returns or ():
        if played not in named:
            raise InputError(
                f"{next_}: names the policy {shown(played)}; expected one of {', '.join(map(shown, named))}"
            )
    out = new_directory(f"{len(named)}-policies", data) if out is None else out
    if env is not None:
        truths = _rolled_out(env, named, gamma, env_episodes, stochastic, policy_normalization)
    options = {
        "data": data,
        "policies": named,
        "behavior": behavior,
        "gamma": gamma,
        "estimators": list(dict.fromkeys(estimator or ["auto"])),
        "preset": preset,
        "settings": setting or [],
        "steps": steps,
        "seeds": seeds,
        "minutes": minutes,
        "level": level,
        "accept": accept or [],
        "stochastic": stochastic,
        "policy_normalization": policy_normalization,
        "max_episode_steps": max_episode_steps,
        "truth": truths,
        "save_seconds": save_seconds,
    }
    more = {"cache": not no_cache, "ray": ray}
    run_ranking(options, out, resume=resume, force=force, more=more, returns=returns)


def run_ranking(
    options: dict[str, Any],
    out: Path,
    *,
    resume: bool,
    force: bool,
    more: dict[str, Any],
    returns: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Rank, print what came out, or say how to go on where the run was stopped.

    Args:
        options: what `kmifqe.rank` is asked, as run.json keeps it.
        out: the run directory.
        resume: whether to go on with the run in it.
        force: whether to replace an earlier run in it.
        more: further arguments of `kmifqe.rank`.
        returns: of the episodes that were played of each policy, where it is to be said which to try next.
    """
    from kmifqe.ranking import next_policy, rank
    from kmifqe.report.ranking_terminal import explained, ranking_table, reasons, scores_table
    from kmifqe.report.terminal import TerminalWatch
    from kmifqe.store import Interrupted

    console = Console(stderr=True, emoji=False)  # a policy may be called :x:
    console.print(f"gamma {options['gamma']:g}, writing to {escape(printable(str(out)))}", highlight=False)
    keep_compiled_programs()
    interrupts = Interrupts(console)
    watch = TerminalWatch(console, interrupts.training)
    try:
        with interrupts:
            ranking = rank(
                **options,
                out=out,
                resume=resume,
                force=force,
                **more,
                watch=watch,
                stop_asked=interrupts.asked,
                command=sys.argv[1:],
            )
    except (Interrupted, KeyboardInterrupt):
        say_how_to_go_on(out, console)
        raise typer.Exit(interrupts.exit_code) from None
    output = Console(emoji=False)
    output.print(ranking_table(ranking))
    if ranking.scores:
        output.print(scores_table(ranking))
    for sentence in (*explained(ranking), *ranking.advice.sentences):
        output.print(escape(printable(sentence)), highlight=False, soft_wrap=True)
    for line in reasons(ranking):
        console.print(f"  · {escape(printable(line))}", highlight=False, soft_wrap=True)
    written = ", ".join(str(path) for path in sorted(out.glob("ranking.*")))
    console.print(f"written: {escape(printable(written))}", highlight=False, soft_wrap=True)
    if returns is not None:
        output.print(escape(printable(next_policy(ranking, returns).sentence)), soft_wrap=True)


def expand(patterns: Sequence[str]) -> list[str]:
    """Return the files of `patterns`, each pattern's in order; refuse one without a file, and a file named twice.

    What names a file as it is, or is no pattern (module:function), is left as it is.
    """
    found: list[str] = []
    for pattern in patterns:
        if Path(pattern).exists() or not glob.has_magic(pattern):
            found.append(pattern)
            continue
        files = sorted(glob.glob(pattern, recursive=True))
        if not files:
            raise InputError(f"--policy {shown(pattern)}: no file has such a name; expected at least one")
        found += files
    seen: dict[str, str] = {}
    for each in found:
        place = str(Path(each).resolve()) if Path(each).exists() else each
        if place in seen:
            also = "" if seen[place] == each else f" (also as {shown(seen[place])})"
            raise InputError(f"--policy {shown(each)}: given twice{also}; expected every policy once")
        seen[place] = each
    return found


def _rolled_out(
    env: str,
    named: dict[str, Any],
    gamma: float,
    episodes: int,
    stochastic: bool,
    normalization: str | None,
) -> dict[str, float]:
    """Return the normalised value of every policy by rollouts in a Gymnasium task."""
    from kmifqe.io.policies import load_policy, load_stochastic_policy
    from kmifqe.report.terminal import TerminalWatch
    from kmifqe.worlds.gym_truth import measure_truth

    watch = TerminalWatch(Console(stderr=True, emoji=False))
    load = load_stochastic_policy if stochastic else load_policy
    workers = os.cpu_count() or 1
    truths = {}
    for name, policy in named.items():
        target = load(policy, normalization=normalization)
        with watch.status(f"rolling out {name} in {env} …"):
            truths[name] = measure_truth(
                env, target, episodes=episodes, gamma=gamma, stochastic=stochastic, workers=workers
            ).value
    return truths
