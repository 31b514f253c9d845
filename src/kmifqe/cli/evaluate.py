"""`kmifqe evaluate`: from a log and a policy to its value."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kmifqe.behavior import Fit, TanhMixture, fit_behavior, parse_behavior
from kmifqe.behavior.base import Behavior, Logged
from kmifqe.behavior.fit_report import FitReport
from kmifqe.cli.dataset import Data, MaxEpisodeSteps
from kmifqe.cli.progress import ProgressLine
from kmifqe.data import Transitions, load_dataset
from kmifqe.errors import InputError
from kmifqe.estimators import ESTIMATORS, PRESETS, Estimate, Estimator, fit, make_estimator
from kmifqe.estimators.presets import check_settings
from kmifqe.policies import check_policy_fits, load_policy
from kmifqe.policies.base import Policy
from kmifqe.problem import Problem
from kmifqe.report.figures import save_figures
from kmifqe.report.record import result_record, write_record
from kmifqe.report.tables import estimates_table, notes_lines

RESULT = "result.json"
FITTED_DENSITY = "density_floor=1e-3"  # the paper's, where μ is estimated: a fit knows little of thin tails


def evaluate(
    data: Data,
    policy: Annotated[
        str,
        typer.Option(
            help="The policy to judge: .safetensors or .npz actor, SB3 .zip, TorchScript .pt, .onnx, "
            "D4RL .hdf5, or module:function.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Directory for result.json and figures; made if missing.", show_default=False)
    ],
    behavior: Annotated[
        str | None,
        typer.Option(
            help="Who collected the log: gaussian:POLICY:STD (STD in half action ranges, actions logged as "
            "drawn; :UNIFORM_SHARE may follow), logged (densities in DATA), fit (learn it from DATA), a fitted "
            "FILE.safetensors, or module:function. Not needed for fqe and sr-dice.",
            show_default=False,
        ),
    ] = None,
    gamma: Annotated[float, typer.Option(help="Discount, 0 <= gamma < 1.")] = 0.99,
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            "-e",
            help=f"One of {', '.join(ESTIMATORS)}; repeat for several.",
            show_default="kmifqe",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, trained side by side.")] = 3,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps of every estimator.", show_default="the paper's")
    ] = None,
    preset: Annotated[
        str, typer.Option(help=f"The paper's settings for a kind of task: {', '.join(PRESETS)}.")
    ] = "pendulum",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any field of an estimator's config, e.g. --set target_period=250 --set clip=0.001,10 "
            "--set fqe.inputs=standardized; repeat for several.",
            show_default=False,
        ),
    ] = None,
    policy_normalization: Annotated[
        str | None,
        typer.Option(help="Statistics the policy's inputs were normalised with (VecNormalize), or 'none'."),
    ] = None,
    max_episode_steps: MaxEpisodeSteps = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the result of an earlier run.")] = False,
) -> None:
    """Estimate what a deterministic policy is worth from a log that another controller collected.

    Example: kmifqe evaluate log.npz --policy actor.npz --behavior logged --gamma 0.95 --out runs/first

    Prints a table and writes result.json (schema: docs/result.md) and figures. V̂ is normalised per step,
    (1 − gamma) times the expected discounted return; both are printed.
    """
    console = Console(stderr=True)
    names, settings = list(dict.fromkeys(estimator or ["kmifqe"])), list(setting or [])
    check_settings(names, settings)
    if behavior is not None and (behavior == "fit" or behavior.endswith(".safetensors")):
        settings.insert(0, FITTED_DENSITY)
    estimators = [make_estimator(name, preset, settings, steps) for name in names]
    _check_out(out, force)
    load = partial(load_policy, normalization=policy_normalization)
    target = load(policy)
    transitions = load_dataset(data, max_episode_steps=max_episode_steps)
    check_policy_fits(target, transitions.state_dim, transitions.action_dim)
    for note in transitions.notes:
        console.print(f"[cyan]note:[/] {escape(note)}", highlight=False)
    density, report = _density(behavior, names, transitions, target, load, console)
    problem = Problem.build(transitions, target, density, gamma)
    console.print(escape(repr(problem)), highlight=False)
    with ProgressLine(console) as progress:
        estimates = run_all(estimators, problem, seeds=seeds, steps=steps, progress=progress)
    out.mkdir(parents=True, exist_ok=True)
    more: dict[str, Any] = {} if report is None else {"behavior_fit": report.as_record()}
    if report is not None and isinstance(density, TanhMixture):
        density.save(out / "behavior.safetensors")
    write_record(
        result_record(
            estimates,
            problem,
            data=data,
            policy=policy,
            behavior=behavior or "none",
            command=sys.argv[1:],
            **more,
        ),
        out / RESULT,
    )
    save_figures(estimates, problem.counts.in_sample, out, title=f"{policy} judged from {data}")
    Console().print(estimates_table(estimates))
    for line in notes_lines(estimates):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"written: {out / RESULT}", highlight=False)


def run_all(
    estimators: list[Estimator], problem: Problem, *, seeds: int, steps: int | None, progress: ProgressLine
) -> list[Estimate]:
    """Return every estimator's estimate, one after the other."""
    estimates = []
    for estimator in estimators:
        progress.begin(estimator.name)
        estimates.append(fit(estimator, problem, seeds=seeds, steps=steps, on_progress=progress))
    return estimates


def _check_out(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: exists and is not a directory; expected a directory for the results")
    if (out / RESULT).exists() and not force:
        raise InputError(f"{out / RESULT}: exists already; choose another --out, or --force to replace it")
    if not out.exists() and not out.parent.is_dir():
        raise InputError(f"{out}: cannot be made; the directory {out.parent} does not exist")


def _density(
    spec: str | None,
    names: list[str],
    transitions: Transitions,
    target: Policy,
    load: Any,
    console: Console,
) -> tuple[Behavior | Logged | None, FitReport | None]:
    """Return the behaviour density the estimators need, fitted now if asked for, and the fit's report."""
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
    with console.status("fitting the behaviour density …") as status:
        density, report = fit_behavior(
            transitions.states,
            transitions.actions,
            transitions.episode,
            low,
            high,
            progress=lambda p: status.update(
                f"fitting the behaviour density: {p.step:,}/{p.steps:,} steps, held-out {max(p.held_out):.3f} nats"
            ),
        )
    Console().print(_likelihood_table(report))
    for warning in report.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False)
    return density, report


def _likelihood_table(report: FitReport) -> Table:
    table = Table(title="Fitted behaviour: held-out log-likelihood, nats a row", title_justify="left")
    table.add_column("components", justify="right")
    table.add_column("log-likelihood", justify="right")
    for count, values, error in zip(report.components, report.log_likelihood, report.standard_error):
        chosen = " ◂" if count == report.chosen else ""
        table.add_row(str(count), f"{values.mean():.3f} ± {error:.3f}{chosen}")
    return table
