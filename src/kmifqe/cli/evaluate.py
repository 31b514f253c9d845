"""`kmifqe evaluate`: its options, and what it prints. `kmifqe.evaluate` does the work."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.cli.config import Config
from kmifqe.cli.dataset import Data, MaxEpisodeSteps, NoCache
from kmifqe.cli.session import Interrupts, check_memory_limit, keep_compiled_programs, print_result, written
from kmifqe.errors import InputError, listed, printable

if TYPE_CHECKING:
    from kmifqe.store import Interrupted

RUNS = Path("runs")
# In a name: all but letters, digits, "_.-" and signs such as emoji (from the arrows on), joined or not.
UNSAFE = re.compile(r"[^\w.\-\u200d\u2190-\ud7ff\ufe0f\U0001f000-\U0001fffd]+")
FAILED = 3  # the exit code that --fail-on asks for; 2 is for mistakes in the input


class FailOn(StrEnum):
    """Verdicts at which a command is to end with an exit code of its own."""

    do_not_use = "do-not-use"
    care = "care"


class Tracker(StrEnum):
    """What shows a run while it goes on."""

    tensorboard = "tensorboard"
    wandb = "wandb"
    mlflow = "mlflow"


FAILS = {FailOn.do_not_use: ("do not use",), FailOn.care: ("use with care", "do not use")}
PRESETS = "default, pendulum, mujoco, d4rl, fast, pendulum-fast, mujoco-fast, d4rl-fast"
SAVE_SECONDS = 30.0
ESTIMATORS = "{estimators}"  # the registry's names, put in when the help is shown: with them comes JAX


Behavior = Annotated[
    str | None,
    typer.Option(
        help="Who collected the log: gaussian:POLICY:STD (STD in half action ranges, actions logged as "
        "drawn; :UNIFORM_SHARE may follow, and :LOW..HIGH for a policy without bounds), logged (densities in DATA), "
        "fit (learn it from DATA), a fitted FILE.safetensors, or module:function. Not needed for fqe and sr-dice.",
        show_default="logged where DATA has densities, else fit",
    ),
]

Minutes = Annotated[
    float | None,
    typer.Option(
        help="Minutes for the evaluation: a first estimate, then the largest fit that the time allows. Another "
        "--preset than default, or --steps, fixes the sizes instead.",
        show_default="10 on a CPU, 3 on a GPU",
    ),
]
Accept = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CHECK",
        help="A check whose question you have answered, for example unexplained_ends where episodes do end by "
        "chance: it asks for care no longer; repeat for several.",
        show_default=False,
    ),
]

Stochastic = Annotated[
    bool,
    typer.Option(
        "--stochastic",
        help="Judge a policy with the noise it draws its actions with (SAC, PPO and the like), not its mean.",
    ),
]

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Train on a Ray cluster: that of ADDRESS (HOST:PORT or ray://HOST:PORT), without one that of "
        "RAY_ADDRESS or of this machine (docs/guides/clusters.md).",
        show_default=False,
    ),
]

Track = Annotated[
    list[Tracker] | None,
    typer.Option(
        "--track",
        help="Show the training and what comes out in TensorBoard (files in OUT/tensorboard), Weights & Biases or "
        "MLflow; repeat for several (docs/guides/tracking.md).",
        show_default=False,
    ),
]


def evaluate(
    data: Data,
    policy: Annotated[
        list[str],
        typer.Option(
            help="The policy to judge: .safetensors or .npz actor, SB3 .zip, TorchScript .pt, .onnx, "
            "D4RL .hdf5, or module:function.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for result.json, report and figures; made if missing.",
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
            min=1,
            help="How many networks of each estimator are trained, side by side; an interval needs about 10.",
        ),
    ] = 10,
    bootstrap: Annotated[
        bool,
        typer.Option(
            help="Let every network weight the log's episodes in its own way, so that the interval counts what "
            "another log would change; without it there is no interval."
        ),
    ] = True,
    level: Annotated[
        float, typer.Option(help="How often the interval should hold the true value, between 0 and 1.")
    ] = 0.95,
    accept: Accept = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            help=f"End with exit code {FAILED} where the verdict is 'do not use' (do-not-use), or where it is not "
            "'trustworthy' (care).",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training steps of every estimator.",
            show_default="as many as --minutes allows; another --preset's own",
        ),
    ] = None,
    minutes: Minutes = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Settings: default (sizes that follow from the log), the paper's for a kind of task (pendulum, "
            "mujoco, d4rl), or the paper's made fast: fast, pendulum-fast, mujoco-fast, d4rl-fast "
            "(docs/evidence/speed.md)."
        ),
    ] = "default",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="A setting of all estimators that have it, such as hidden=32, or of one, such as fqe.hidden=32; "
            "`kmifqe estimators NAME` lists the fields. Repeat for several.",
            show_default=False,
        ),
    ] = None,
    stochastic: Stochastic = False,
    policy_normalization: Annotated[
        str | None,
        typer.Option(help="Statistics the policy's inputs were normalised with (VecNormalize), or 'none'."),
    ] = None,
    max_episode_steps: MaxEpisodeSteps = None,
    no_cache: NoCache = False,
    ray: Ray = None,
    ray_blocks: Annotated[
        int,
        typer.Option(
            min=1,
            help="With --ray: into how many tasks the networks of an estimator are divided; more than one may change "
            "the last bits.",
        ),
    ] = 1,
    track: Track = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier run in the directory, finished or not.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in the directory; begin if there is none."),
    ] = False,
    save_seconds: Annotated[
        float,
        typer.Option(min=0, help="Save at most this often, and never for more than 1 % of the time."),
    ] = SAVE_SECONDS,
    config_file: Config = None,
) -> None:
    """Estimate what a policy is worth from a log that another controller collected.

    Example: kmifqe evaluate log.npz --policy actor.npz

    Prints the value with its interval and verdict, and writes result.json (schema: docs/reference/result.md),
    a report and figures. V̂ is per step, (1 − gamma) times the expected discounted return; both are printed
    (docs/concepts/intervals.md).
    Ctrl-C saves and stops; `kmifqe resume RUN` goes on, and ends with the same bits.
    """
    if len(policy) > 1:
        raise InputError(
            f"--policy was given {len(policy)} times ({listed(policy)}) and `kmifqe evaluate` judges one policy; "
            "`kmifqe rank` takes many, and compares them"
        )
    options = {
        "data": data,
        "policy": policy[0],
        "behavior": behavior,
        "gamma": gamma,
        "estimators": list(dict.fromkeys(estimator or ["auto"])),
        "seeds": seeds,
        "bootstrap": bootstrap,
        "level": level,
        "accept": list(dict.fromkeys(accept or [])),
        "stochastic": stochastic,
        "steps": steps,
        "minutes": minutes,
        "preset": preset,
        "settings": setting or [],
        "policy_normalization": policy_normalization,
        "max_episode_steps": max_episode_steps,
        "save_seconds": save_seconds,
    }
    if out is None:
        if resume:
            raise InputError("--resume needs --out: expected the directory of the run to go on with")
        out = new_directory(policy[0], data)
    more = {"cache": not no_cache, "ray": ray, "ray_blocks": ray_blocks}
    run_evaluation(options, out, resume=resume, force=force, fail_on=fail_on, more=more, track=track)


def new_directory(policy: str, data: str) -> Path:
    """Return a directory under runs/ that does not exist yet, called after the `policy`, or policies, and the log."""
    names = [Path(each.rpartition(":")[2]).stem for each in (policy, data)]
    called = UNSAFE.sub("-", "-from-".join(name for name in names if name)) or "run"
    candidates = (RUNS / (called if i == 1 else f"{called}-{i}") for i in count(1))
    return next(path for path in candidates if not os.path.lexists(path))


def run_evaluation(
    options: dict[str, Any],
    out: Path,
    *,
    resume: bool,
    force: bool,
    fail_on: FailOn | None = None,
    more: dict[str, Any] | None = None,
    track: Sequence[str] | None = None,
) -> None:
    """Evaluate, print what came out, or say how to go on where the run was stopped.

    Args:
        options: what `kmifqe.evaluate` is asked, as run.json keeps it.
        out: the run directory.
        resume: whether to go on with the run in it.
        force: whether to replace an earlier run in it.
        fail_on: the verdict from which on the command ends with an exit code of its own; by default none.
        more: further arguments of `kmifqe.evaluate`.
        track: what shows the run while it goes on.
    """
    check_memory_limit()
    from kmifqe.api import evaluate
    from kmifqe.report.loggers import Tracking
    from kmifqe.report.terminal import TerminalWatch
    from kmifqe.store import Interrupted

    console = Console(stderr=True, emoji=False)
    console.print(f"gamma {options['gamma']:g}, writing to {escape(printable(str(out)))}", highlight=False)
    keep_compiled_programs()
    interrupts = Interrupts(console)
    watch = TerminalWatch(console, interrupts.training)
    tracking = Tracking(track or (), out, options, watch.warn)
    result = None
    try:
        with interrupts:
            result = evaluate(
                **options,
                out=out,
                resume=resume,
                force=force,
                **(more or {}),
                on_progress=tracking,
                watch=watch,
                stop_asked=interrupts.asked,
                command=sys.argv[1:],
            )
    except (Interrupted, KeyboardInterrupt) as stopped:
        if isinstance(stopped, Interrupted):
            _say_what_is_there(stopped, console)
        say_how_to_go_on(out, console)
        raise typer.Exit(interrupts.exit_code) from None
    finally:
        tracking.finish(result)
    print_result(result, Console(emoji=False), console)
    console.print(written(out), highlight=False, soft_wrap=True)
    if fail_on is not None and result.verdict.word in FAILS[fail_on]:
        raise typer.Exit(FAILED)


def _say_what_is_there(stopped: Interrupted, console: Console) -> None:
    """Print the finished estimates, and how far the stopped one is."""
    from kmifqe.report.terminal import estimates_table

    if stopped.finished:
        Console(emoji=False).print(estimates_table(stopped.finished))
    if stopped.snapshot is None:
        console.print(f"{stopped.estimator}: nothing to go on from yet", highlight=False)
    else:
        console.print(
            f"{stopped.estimator}: {stopped.snapshot.step:,} of {stopped.steps:,} steps saved, "
            f"V̂ {stopped.snapshot.trajectory[-1].mean():.3f} so far",
            highlight=False,
        )


def say_how_to_go_on(out: Path, console: Console) -> None:
    """Print how to go on with the run in `out`, or that it left nothing behind."""
    from kmifqe.store.manifest import MANIFEST

    if (out / MANIFEST).exists():
        run = shlex.quote(printable(str(out)))
        sentence = f"go on with: kmifqe resume {run} (or the same command with --out {run} --resume)"
    else:
        sentence = "stopped; there was nothing to save yet: start again with the same command"
    console.print(escape(sentence), highlight=False, soft_wrap=True)
