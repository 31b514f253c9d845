"""`kmifqe collect`, `truth` and `train`: the paper's pipeline on any Gymnasium task."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import progress as bars
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Option

from kmifqe.cli.config import Config
from kmifqe.errors import InputError, printable
from kmifqe.io.policies.load import load_policy
from kmifqe.io.serialize import to_json

if TYPE_CHECKING:
    from kmifqe.worlds.gym_train import Choice, TrainProgress
    from kmifqe.worlds.gym_truth import Truth

ENV_HELP = "A Gymnasium id with Box observations and actions: Pendulum-v1, Hopper-v4, module:Task-v0."
STATISTICS_HELP = "Statistics the policy's inputs were normalised with (VecNormalize), or 'none'."
NOISE_HELP = "Standard deviation of Gaussian noise in half action ranges; or one per dimension, with commas."
SHARE_HELP = "Share of uniform actions, 0 to 1; or one per dimension, with commas."
WORKERS_HELP = "Processes that step environments; the result does not depend on how many."

Env = Annotated[str, typer.Argument(metavar="ENV", help=ENV_HELP, show_default=False)]
PolicyName = Annotated[str, Option("--policy", help="A policy file, or module:function.", show_default=False)]
Normalization = Annotated[
    str | None,
    Option("--policy-normalization", help=STATISTICS_HELP, show_default=False),
]
Noise = Annotated[str, Option(metavar="STD", help=NOISE_HELP)]
UniformShare = Annotated[str, Option(metavar="SHARE", help=SHARE_HELP)]
Seed = Annotated[int, Option(min=0, help="The same seed gives the same result.")]
Workers = Annotated[int | None, Option(min=1, help=WORKERS_HELP, show_default="one per core")]


def register(app: typer.Typer, panel: str | None = None) -> None:
    """Add the three commands to the root command, whose help lists them under the heading `panel`."""
    app.command("collect", rich_help_panel=panel)(_collect)
    app.command("truth", rich_help_panel=panel)(_truth)
    app.command("train", rich_help_panel=panel)(_train)


def _collect(
    env: Env,
    policy: PolicyName,
    noise: Noise = "0.3",
    transitions: Annotated[int, Option("-n", "--transitions", min=1, help="Steps to log.")] = 1_000_000,
    uniform_share: UniformShare = "0",
    envs: Annotated[
        int | None,
        Option(
            min=1,
            help="Environments side by side.",
            show_default="transitions / (10 × the time limit), at least 1 and at most 64",
        ),
    ] = None,
    workers: Workers = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None, Option(metavar="FILE.hdf5", help="The log to write.", show_default="ENV.hdf5")
    ] = None,
    normalization: Normalization = None,
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
    config_file: Config = None,
) -> None:
    """Log a noisy policy on a task, with the exact density of every action.

    Example: kmifqe collect Hopper-v4 --policy behavior.safetensors --noise 0.3 -n 1000000
    """
    from kmifqe.worlds.gym_collect import collect

    with _progress_line("collecting", transitions, "steps/s") as show:
        log = collect(
            env,
            load_policy(policy, normalization=normalization),
            out or Path(f"{env.replace('/', '-').replace(':', '-')}.hdf5"),
            transitions=transitions,
            noise=_numbers(noise, "--noise"),
            uniform_share=_numbers(uniform_share, "--uniform-share"),
            seed=seed,
            envs=envs,
            workers=_workers(workers),
            overwrite=force,
            progress=show,
        )
    typer.echo(
        f"wrote {log.path}: {log.transitions:,} transitions in {log.episodes:,} episodes "
        f"({log.terminated:,} terminated), mean reward {log.mean_reward:.6g}"
    )


def _truth(
    env: Env,
    policy: PolicyName,
    episodes: Annotated[int, Option(min=1, help="Episodes to play.")] = 1_000,
    gamma: Annotated[float, Option(help="Discount, 0 <= gamma < 1.")] = 0.99,
    noise: Noise = "0",
    uniform_share: UniformShare = "0",
    workers: Workers = None,
    seed: Seed = 0,
    normalization: Normalization = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
    config_file: Config = None,
) -> None:
    """Play a policy and print its value: normalised, discounted and undiscounted.

    The value goes on past the task's time limit until gamma^t is negligible; the return stops there.

    Example: kmifqe truth Hopper-v4 --policy target.safetensors --episodes 1000 --gamma 0.99
    """
    from kmifqe.worlds.gym_truth import measure_truth

    with _progress_line("playing", episodes, "episodes/s") as show:
        truth = measure_truth(
            env,
            load_policy(policy, normalization=normalization),
            episodes=episodes,
            gamma=gamma,
            noise=_numbers(noise, "--noise"),
            uniform_share=_numbers(uniform_share, "--uniform-share"),
            seed=seed,
            workers=_workers(workers),
            progress=show,
        )
    if as_json:
        record = {"env": env, "policy": policy, "noise": noise, "uniform_share": uniform_share, "seed": seed}
        typer.echo(to_json(record | asdict(truth), indent=2), nl=False)
    else:
        Console(emoji=False).print(_truth_table(env, policy, truth))


def _train(
    env: Env,
    steps: Annotated[int, Option(min=1, help="Environment steps, one update each.", show_default=False)],
    out: Annotated[Path, Option(metavar="DIR", help="Folder for the run.", show_default=False)],
    envs: Annotated[int, Option(min=1, help="Environments side by side.")] = 8,
    workers: Workers = None,
    seed: Seed = 0,
    hidden: Annotated[str, Option(help="Widths of the hidden layers, with commas.")] = "256,256",
    learning_rate: Annotated[float, Option(help="Adam's learning rate, for all networks.")] = 3e-4,
    batch: Annotated[int, Option(min=1, help="Transitions per update.")] = 256,
    gamma: Annotated[float, Option(help="Discount of the learner, 0 <= gamma < 1.")] = 0.99,
    warmup: Annotated[
        int | None,
        Option(
            min=1,
            help="Steps of uniform actions at the beginning.",
            show_default="steps / 20, at most 25,000",
        ),
    ] = None,
    eval_every: Annotated[
        int | None, Option(min=1, help="Steps per checkpoint.", show_default="steps / 100")
    ] = None,
    eval_episodes: Annotated[int, Option(min=1, help="Episodes per checkpoint.")] = 10,
    choice_episodes: Annotated[int, Option(min=1, help="Episodes per finalist at the end.")] = 100,
    replay: Annotated[int, Option(min=1, help="Transitions kept to learn from.")] = 1_000_000,
    save_seconds: Annotated[float, Option(min=0, help="Least seconds between two savings.")] = 300,
    resume: Annotated[bool, Option("--resume", help="Go on with the run in DIR, or begin it.")] = False,
    config_file: Config = None,
) -> None:
    """Train TD3, keep checkpoints with their returns, and pick a target and a 70-80 % behaviour mean.

    Example: kmifqe train Hopper-v4 --steps 1000000 --out runs/hopper
    """
    from kmifqe.worlds.gym_train import TrainConfig, train
    from kmifqe.worlds.td3 import Td3Config

    widths = _widths(hidden)
    learner = Td3Config(
        actor_hidden=widths, critic_hidden=widths, learning_rate=learning_rate, batch=batch, gamma=gamma
    )
    config = TrainConfig(
        env_id=env,
        steps=steps,
        seed=seed,
        envs=envs,
        workers=_workers(workers),
        warmup=warmup,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        choice_episodes=choice_episodes,
        replay=replay,
        save_seconds=save_seconds,
        td3=learner,
    )
    with _progress_line("training", steps, "steps/s") as show:

        def show_returns(now: TrainProgress) -> None:
            stage = "choosing" if now.choosing else "training"
            show(now.steps, f"{stage}  return {now.last_return:.1f}, best {now.best_return:.1f}")

        choice = train(config, out, resume=resume, progress=show_returns)
    console = Console(emoji=False)
    console.print(_choice_table(out, choice))
    for note in choice.notes:
        console.print(f"[yellow]warning:[/] {escape(note)}", highlight=False)


def _workers(given: int | None) -> int:
    return given or os.cpu_count() or 1


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(
            f"{option} is {text!r}; expected a number, or numbers with commas, one per action dimension"
        ) from error


def _widths(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--hidden is {text!r}; expected positive widths with commas, such as 256,256")
    return tuple(int(part) for part in parts)


class _Rate(bars.ProgressColumn):
    """How many of what a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: bars.Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} {self._unit}")


@contextmanager
def _progress_line(label: str, total: int, unit: str) -> Iterator[Callable[..., None]]:
    """Give a function of (done, text) that moves a line on stderr, so that stdout stays clean for --json."""
    console = Console(stderr=True, emoji=False)
    text = bars.TextColumn("{task.description}")
    columns = (text, bars.BarColumn(), bars.MofNCompleteColumn(), _Rate(unit), bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as line:
        task = line.add_task(label, total=total)

        def show(done: int, text: str = label) -> None:
            line.update(task, completed=min(done, total), description=escape(text))

        yield show


def _truth_table(env: str, policy: str, truth: Truth) -> Table:
    title = f"{escape(env)}, {escape(policy)}: {truth.episodes:,} episodes"
    table = Table("", "mean", "standard error", title=title, title_justify="left")
    rows = {
        f"V, normalised, gamma {truth.gamma:g}": "value",
        "discounted return, V / (1 - gamma)": "discounted_return",
        "undiscounted return R": "episode_return",
    }
    for label, name in rows.items():
        mean, error = getattr(truth, name), getattr(truth, f"{name}_standard_error")
        table.add_row(label, f"{mean:.6g}", "unknown" if math.isnan(error) else f"{error:.2g}")
    table.add_row("length (steps)", f"{truth.length:.6g}", "")
    table.caption = f"V plays on to step {truth.steps_played:,}; R and length stop at the task's time limit."
    return table


def _choice_table(out: Path, choice: Choice) -> Table:
    table = Table("", "steps", "return", "level", title=escape(printable(str(out))), title_justify="left")
    chosen = {"target": (choice.target, 1.0), "behavior": (choice.behavior, choice.behavior_level)}
    for name, (point, level) in chosen.items():
        if point is not None and level is not None:
            error = "" if point.standard_error is None else f" ± {point.standard_error:.1f}"
            reached = f"{point.episode_return:.1f}{error}"
            table.add_row(f"{name}.safetensors", f"{point.steps:,}", reached, f"{level:.0%}")
    return table
