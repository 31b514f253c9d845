"""`kmifqe estimators`: what there is, what each needs, and when to use it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from kmifqe.cli.config import Config


def estimators(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One estimator, with its settings.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    config_file: Config = None,
) -> None:
    """List the estimators: what each needs, when to use it and when not.

    Example: kmifqe estimators wpdis
    """
    from kmifqe.estimators.base import config_dict  # with the estimators comes JAX, which --help does without
    from kmifqe.estimators.registry import EstimatorEntry, all_entries, entry_named
    from kmifqe.estimators.sizing import TYPICAL, fit_size
    from kmifqe.io.serialize import plain, to_json

    def described(entry: EstimatorEntry) -> dict[str, object]:
        return {
            "name": entry.name,
            "label": entry.label,
            "summary": entry.summary,
            "needs": list(entry.needs),
            "targets": entry.targets,
            "use_when": entry.use_when,
            "avoid_when": entry.avoid_when,
            "page": entry.page,
            "settings": plain(config_dict(entry.config)),
        }

    chosen = all_entries() if name is None else (entry_named(name),)
    if as_json:
        typer.echo(to_json([described(entry) for entry in chosen], indent=2).decode(), nl=False)
        return
    console = Console(emoji=False)
    if name is None:
        for entry in chosen:
            console.print(f"[bold]{escape(entry.name)}[/]: {escape(entry.summary)}", highlight=False)
            needs = ", ".join(entry.needs) or "nothing"
            for label, text in (
                ("needs", needs),
                ("use it when", entry.use_when),
                ("not when", entry.avoid_when),
            ):
                console.print(Padding(f"{label}: {escape(text)}", (0, 0, 0, 2)), highlight=False)
        return
    for field, value in described(chosen[0]).items():
        if not isinstance(value, dict):
            text = ", ".join(value) if isinstance(value, list) else str(value)
            console.print(f"{field.replace('_', ' ')}: {text or 'nothing'}", highlight=False, markup=False)
    entry = chosen[0]
    settings = config_dict(entry.config)
    if not settings:
        console.print("settings: none of its own", highlight=False)
        return
    console.print("settings, each with its default (--set FIELD=VALUE):", highlight=False)
    by_size = {} if entry.sized is None else entry.sized(fit_size(TYPICAL))
    for field, value in settings.items():
        default = "(follows from the size of the log)" if field in by_size else _written(value)
        console.print(f"  {field} = {default}", highlight=False, markup=False)


def _written(value: Any) -> str:
    """Return the value of a setting as `--set` takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_written, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
