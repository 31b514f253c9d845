"""`kmifqe dataset`: look at a log before trusting it, and change its format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from kmifqe.cli.config import Config
from kmifqe.errors import InputError, printable
from kmifqe.io.format import number
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.save import refuse_target, save_dataset
from kmifqe.io.serialize import plain, to_json
from kmifqe.mdp.transitions import Transitions

if TYPE_CHECKING:
    from kmifqe.io.logs.summary import DatasetSummary, Spread
    from kmifqe.trust.logged import LoggedValue

# What is said of the log's own densities.
DENSITIES = {
    "none": "none",
    "total": "one number per row",
    "per dimension": "one number per action dimension",
}

app = typer.Typer(help="Look at a log before trusting it, and change its format.", no_args_is_help=True)

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="D4RL .hdf5, .npz, .parquet, .arrow, a directory or a quoted pattern of such files, a "
        "LeRobot or Minari directory, minari:ID, or hf://datasets/OWNER/NAME.",
        show_default=False,
    ),
]
MaxEpisodeSteps = Annotated[
    int | None,
    typer.Option(
        "--max-episode-steps",
        min=0,
        help="The time limit that cut episodes, for logs without timeouts (0: terminals marks every end).",
        show_default=False,
    ),
]


NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Read DATA anew, and keep nothing of it for the next time (see kmifqe cache)."
    ),
]


@app.command("inspect")
def _inspect(
    data: Data,
    max_episode_steps: MaxEpisodeSteps = None,
    no_cache: NoCache = False,
    gamma: Annotated[
        float, typer.Option(help="Discount of the logged controller's value, 0 <= gamma < 1.")
    ] = 0.99,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    config_file: Config = None,
) -> None:
    """Print what a log holds: episodes, ends, action bounds, NaN, unusable rows, densities, and its worth.

    Example: kmifqe dataset inspect hopper_medium-v2.hdf5
    """
    from kmifqe.io.logs.summary import inspect  # with it comes scipy, which --help does without
    from kmifqe.trust.interval import LEVEL

    if not 0.0 <= gamma < 1.0:
        raise InputError(f"gamma is {gamma}; expected 0 <= gamma < 1")
    log = load_dataset(data, max_episode_steps=max_episode_steps, check_finite=False, cache=not no_cache)
    summary = inspect(log)
    worth = _worth(log, gamma)
    if as_json:
        logged = None if worth is None else {"gamma": gamma, "level": LEVEL, **plain(worth)}
        typer.echo(to_json(plain(summary) | {"logged_controller": logged}, indent=2).decode(), nl=False)
        return
    console = Console(emoji=False)
    console.print(_overview(summary, _said(worth, gamma)))
    console.print(_actions(summary))
    _print_each(console, "[cyan]note:[/]", summary.notes)
    _print_each(console, "[yellow]warning:[/]", summary.warnings)


@app.command("convert")
def _convert(
    source: Annotated[str, typer.Argument(metavar="A", help="What to read: any DATA.", show_default=False)],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="B",
            help="What to write: .hdf5 (D4RL layout), .npz, .parquet, .arrow, or NAME-v0 (Minari).",
            show_default=False,
        ),
    ],
    max_episode_steps: MaxEpisodeSteps = None,
    no_cache: NoCache = False,
    force: Annotated[bool, typer.Option("--force", help="Replace B if it exists.")] = False,
    config_file: Config = None,
) -> None:
    """Write log A in the format that B's name asks for.

    Example: kmifqe dataset convert hopper_medium-v2.hdf5 hopper.parquet
    """
    refuse_target(target, overwrite=force)  # before minutes of reading
    transitions = load_dataset(source, max_episode_steps=max_episode_steps, cache=not no_cache)
    save_dataset(transitions, target, overwrite=force)
    console = Console(emoji=False)
    _print_each(console, "[cyan]note:[/]", transitions.notes)
    counts = f"{len(transitions):,} transitions in {transitions.n_episodes:,} episodes"
    console.print(f"wrote {escape(printable(str(target)))}: {counts}", highlight=False, soft_wrap=True)


def _print_each(console: Console, label: str, sentences: tuple[str, ...]) -> None:
    for sentence in sentences:
        console.print(f"{label} {escape(sentence)}", highlight=False, soft_wrap=True)


def _worth(log: Transitions, gamma: float) -> LoggedValue | None:
    """Return what the logged controller earned per step, discounted by `gamma`; None where that is unknown."""
    from kmifqe.mdp.returns import credited_returns
    from kmifqe.trust.interval import LEVEL
    from kmifqe.trust.logged import logged_value

    returns = credited_returns(log, gamma)
    return logged_value(returns, LEVEL) if np.isfinite(returns).all() else None


def _said(found: LoggedValue | None, gamma: float) -> str:
    """Return a logged controller's value and its interval in words."""
    from kmifqe.trust.interval import LEVEL

    if found is None:
        return "unknown: some rewards are not finite"
    size = max(abs(found.low), abs(found.high))
    between = f"{number(found.low, size)} … {number(found.high, size)}"
    known = f"{number(found.value, size)} per step, (1 − γ) Σ γᵗ r with γ = {gamma:g}"
    return f"{known} ({100 * LEVEL:g} % interval {between})"


def _overview(summary: DatasetSummary, worth: str) -> Table:
    name, bold = escape(summary.name), Column(style="bold")
    table = Table(bold, "", title=name, show_header=False, title_justify="left")
    lengths = f"min {summary.length_min:,}, median {summary.length_median:,g}, max {summary.length_max:,}"
    constants = (("states", summary.constant_states), ("actions", summary.constant_actions))
    rows = {
        "transitions": f"{summary.transitions:,} (states {summary.state_dim}, actions {summary.action_dim})",
        "episodes": f"{summary.episodes:,}, length {lengths}",
        "ends": f"{summary.terminated:,} terminated, {summary.truncated:,} truncated",
        "rewards": _spread(summary.rewards),
        "returns": _spread(summary.returns),
        "logged controller": worth,
        "actions on a bound": f"{summary.rows_on_bound:,} rows ({summary.rows_on_bound / summary.transitions:.2%})",
        "NaN": _counts(summary.nan),
        "infinity": _counts(summary.infinite),
        "constant columns": "; ".join(
            f"{what} {', '.join(map(str, held))}" for what, held in constants if held
        )
        or "none",
        "unused by KMIFQE": _counts(summary.unusable),
        "no next state": f"{summary.no_next_state:,} rows",
        "logged densities": DENSITIES[summary.logged_densities],
    }
    for label, text in rows.items():
        table.add_row(label, text)
    return table


def _actions(summary: DatasetSummary, most: int = 32) -> Table:
    table = Table("action", "low", "high", "exactly low", "exactly high")
    for i, bounds in enumerate(summary.actions[:most]):
        ends = (f"{bounds.low:.6g}", f"{bounds.high:.6g}", f"{bounds.at_low:,}", f"{bounds.at_high:,}")
        table.add_row(str(i), *ends)
    if len(summary.actions) > most:
        table.caption = f"and {len(summary.actions) - most} more (--json shows all)"
    return table


def _spread(spread: Spread) -> str:
    return f"min {spread.low:.6g}, mean {spread.mean:.6g}, max {spread.high:.6g}, std {spread.std:.6g}"


def _counts(counts: dict[str, int]) -> str:
    return "\n".join(f"{count:,} {what}" for what, count in counts.items() if count) or "none"
