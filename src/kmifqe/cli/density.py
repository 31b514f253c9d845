"""The behaviour density that `kmifqe evaluate` needs: read, parsed, or fitted once and kept with the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kmifqe.behavior import Fit, TanhMixture, fit_behavior, parse_behavior
from kmifqe.behavior.fit_report import FitReport
from kmifqe.cli.progress import warn_on
from kmifqe.errors import InputError
from kmifqe.mdp.ask import Behavior, Logged, Policy
from kmifqe.mdp.transitions import Transitions
from kmifqe.store.directory import RunDirectory, fitted_on


def behavior_density(
    spec: str | None,
    names: list[str],
    transitions: Transitions,
    target: Policy,
    load: Callable[[str], Policy],
    run: RunDirectory,
    console: Console,
) -> tuple[Behavior | Logged | None, dict[str, Any] | None]:
    """Return the behaviour density the estimators need, fitted now or earlier, and the fit's report."""
    if not any(name.startswith("kmifqe") for name in names):
        return None, None
    if spec is None:
        raise InputError(
            "kmifqe needs --behavior: logged, fit, gaussian:POLICY:STD, a fitted FILE.safetensors, or module:function"
        )
    low, high = getattr(target, "low", None), getattr(target, "high", None)
    parsed = parse_behavior(spec, low=low, high=high, load=load)
    if not isinstance(parsed, Fit):
        return parsed, None
    t = transitions
    on = fitted_on(states=t.states, actions=t.actions, episode=t.episode, low=low, high=high)
    stored = run.stored_density(on)
    if stored is not None:
        console.print(f"behaviour density: as fitted before, {escape(str(stored[0]))}", highlight=False)
        return TanhMixture.load(stored[0]), stored[1]
    with console.status("fitting the behaviour density …") as status:
        density, report = fit_behavior(
            t.states,
            t.actions,
            t.episode,
            low,
            high,
            progress=lambda p: status.update(
                f"fitting the behaviour density: {p.step:,}/{p.steps:,} steps, held-out {max(p.held_out):.3f} nats"
            ),
        )
    Console().print(_likelihood_table(report))
    for warning in report.warnings:
        warn_on(console, warning)
    # Read back, so that this process and one that resumes see the same density.
    return TanhMixture.load(run.store_density(density.save, on, report.as_record())), report.as_record()


def _likelihood_table(report: FitReport) -> Table:
    table = Table(title="Fitted behaviour: held-out log-likelihood, nats a row", title_justify="left")
    table.add_column("components", justify="right")
    table.add_column("log-likelihood", justify="right")
    for count, values, error in zip(report.components, report.log_likelihood, report.standard_error):
        chosen = " ◂" if count == report.chosen else ""
        table.add_row(str(count), f"{values.mean():.3f} ± {error:.3f}{chosen}")
    return table
