"""`kmifqe study`: what intervals and verdicts are worth, on problems whose value is known."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kmifqe.cli.config import Config
from kmifqe.cli.evaluate import Ray
from kmifqe.errors import printable

if TYPE_CHECKING:
    from kmifqe.experiments.problems_base import Half
    from kmifqe.experiments.records import Record
    from kmifqe.experiments.study import Study
    from kmifqe.experiments.study_tables import Coverage, Judged, Verdicts

OUT = Path("experiments") / "results"
RECORDS = Path("experiments-work") / "trust"
HALF_TITLES = {"choose": "half for choosing", "report": "half for reporting"}

Preset = Annotated[str, typer.Option(help="smoke (a few small problems) or full (hundreds of problems).")]
Shard = Annotated[
    str | None,
    typer.Option(help="Only the I-th of N parts, as I/N; parts may run at once.", show_default="everything"),
]
Records = Annotated[
    Path,
    typer.Option(
        help="Directory of the problems' records, logs and truths; what is there is not made again."
    ),
]
Only = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Only these problems: lqr, pendulum, mujoco, hopper, walker2d, halfcheetah or swimmer.",
        show_default="everything",
    ),
]
HalfName = Annotated[
    str | None,
    typer.Option(
        "--half",
        metavar="HALF",
        help="Only the half for choosing settings and thresholds (choose) or for reporting (report).",
        show_default="both",
    ),
]
Policies = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Folder of actors that others trained (sac-Hopper-v3.npz, ...); without it their problems are left out.",
        show_default=False,
    ),
]

app = typer.Typer(
    name="study",
    help="How often intervals hold the truth, and what verdicts are worth, on problems of known value.",
    no_args_is_help=True,
)


@app.command("collect")
def collect(
    preset: Preset = "full",
    records: Records = RECORDS,
    only: Only = None,
    half: HalfName = None,
    policies: Policies = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes side by side.", show_default="one per core")
    ] = None,
    config_file: Config = None,
) -> None:
    """Collect the logs and measure the truths that the studies take from simulators, so that no fit waits for them.

    Example: kmifqe study collect --preset full --policies policies --workers 16
    """
    from kmifqe.experiments.study import collect_data

    console = Console(stderr=True, emoji=False)
    study = _study(preset, records, only, half, policies, console)
    made = collect_data(
        study, workers or os.cpu_count() or 1, lambda line: console.print(escape(line), highlight=False)
    )
    console.print(f"{len(made)} files were made in {escape(str(records))}", highlight=False)


@app.command("coverage")
def coverage(
    preset: Preset = "full",
    shard: Shard = None,
    out: Annotated[Path, typer.Option(help="Directory for coverage.json and coverage.png.")] = OUT,
    records: Records = RECORDS,
    only: Only = None,
    half: HalfName = None,
    policies: Policies = None,
    ray: Ray = None,
    config_file: Config = None,
) -> None:
    """Count how often nominal 90 % intervals hold the true value, over problems from easy to hopeless.

    Example: kmifqe study coverage --preset smoke --out /tmp/study --records /tmp/study/records

    The problems' records are shared with `kmifqe study verdicts`. coverage.json and its figure are written once
    all are there; run again, the command only reads the records. Both halves are in the file; the half for reporting
    is printed, unless the other one was asked for.
    """
    from importlib.util import find_spec

    from kmifqe.experiments import study_tables
    from kmifqe.experiments.paper_figures import coverage_figure
    from kmifqe.report.figures import save_figure

    console = Console(stderr=True, emoji=False)
    _refuse_others(out / "coverage.json", out / "coverage.png")
    study = _study(preset, records, only, half, policies, console)
    judged = _judged(study, shard, ray, console)
    if judged is None:
        return
    found = study_tables.coverage(judged, preset, sys.argv[1:])
    _write(found, out / "coverage.json", console)
    shown = study.selection.half or "report"
    Console(emoji=False).print(_coverage_table(found, shown))
    Console(emoji=False).print(_choices_table(found, shown))
    if find_spec("matplotlib") is None:
        console.print("matplotlib is not installed: no figure; run the same command where it is")
    else:
        save_figure(coverage_figure(found, shown), out / "coverage.png")


@app.command("verdicts")
def verdicts(
    preset: Preset = "full",
    shard: Shard = None,
    out: Annotated[Path, typer.Option(help="Directory for verdicts.json.")] = OUT,
    records: Records = RECORDS,
    only: Only = None,
    half: HalfName = None,
    policies: Policies = None,
    ray: Ray = None,
    config_file: Config = None,
) -> None:
    """Judge a family of problems of known value, from easy to hopeless, and count what the verdicts were worth.

    Example: kmifqe study verdicts --preset smoke --out /tmp/study --records /tmp/study/records

    The problems' records are shared with `kmifqe study coverage`. verdicts.json is written once all are there. Both
    halves are in the file; the half for reporting is printed, unless the other one was asked for.
    """
    from kmifqe.experiments import study_tables

    console = Console(stderr=True, emoji=False)
    _refuse_others(out / "verdicts.json")
    study = _study(preset, records, only, half, policies, console)
    judged = _judged(study, shard, ray, console)
    if judged is None:
        return
    found = study_tables.verdicts(judged, preset)
    _write(found, out / "verdicts.json", console)
    shown = study.selection.half or "report"
    Console(emoji=False).print(_confusion_table(found, shown))
    Console(emoji=False).print(_power_table(found, shown))


@app.command("faults")
def faults(
    preset: Annotated[str, typer.Option(help="smoke (a minute) or full (some minutes).")] = "full",
    out: Annotated[Path, typer.Option(help="Directory for faults.json.")] = OUT,
    records: Records = RECORDS,
    ray: Ray = None,
    config_file: Config = None,
) -> None:
    """Plant faults in logs of known value, and count how many wrong answers are trusted with and without new checks.

    Example: kmifqe study faults --preset smoke --out /tmp/study --records /tmp/study/records
    """
    from kmifqe.cli.session import keep_compiled_programs
    from kmifqe.experiments import faults as study

    console = Console(stderr=True, emoji=False)
    chosen = study.preset_named(preset)
    _refuse_others(out / "faults.json")
    keep_compiled_programs()
    with _on(ray, console) as where:
        there = study.run_missing(chosen, records, **where)
    found = study.summary(study.judge(there), preset, sys.argv[1:])
    _write(found, out / "faults.json", console)
    Console(emoji=False).print(_faults_table(found.lines))


@app.command("differences")
def differences(
    preset: Annotated[
        str, typer.Option(help="smoke (one problem), small (two cores, half an hour) or full (hundreds).")
    ] = "small",
    shard: Shard = None,
    out: Annotated[Path, typer.Option(help="Directory for differences.json.")] = OUT,
    records: Annotated[
        Path, typer.Option(help="Directory of the problems' records; what is there is not made again.")
    ] = RECORDS.parent / "differences",
    records_only: Annotated[
        bool, typer.Option("--records-only", help="Run nothing: count what the records say that are there.")
    ] = False,
    ray: Ray = None,
    config_file: Config = None,
) -> None:
    """Count how often paired intervals hold the difference of two policies, and how many pairs they tell apart.

    Example: kmifqe study differences --preset smoke --out /tmp/study --records /tmp/study/records
    """
    from kmifqe.cli.session import keep_compiled_programs
    from kmifqe.experiments.differences import preset_named, run_differences
    from kmifqe.experiments.study import shard_of

    console = Console(stderr=True, emoji=False)
    _refuse_others(out / "differences.json")
    keep_compiled_programs()
    part = None if records_only else shard_of(shard or "1/1")
    with _on(ray, console) as where:
        found = run_differences(preset_named(preset), records, part, **where)
    headings = (
        "pairs",
        "covered",
        "covered unpaired",
        "told apart",
        "apart unpaired",
        "wrongly",
        "width ratio",
    )
    table = _table(f"Differences of two policies, nominal {found.level:.0%}", "problems", headings)
    for line in found.lines:
        table.add_row(
            line["estimator"],
            f"{line['kind']} ({line['problems']})",
            str(line["pairs"]),
            _share(line["covered"]),
            _share(line["covered_unpaired"]),
            str(line["separated"]),
            str(line["separated_unpaired"]),
            str(line["wrongly_separated"]),
            f"{line['median_width_ratio']:.2f}",
        )
    Console(emoji=False).print(table)
    _write(found, out / "differences.json", console)


@contextmanager
def _on(ray: str | None, console: Console) -> Iterator[dict[str, Any]]:
    """Give what runs a study's problems, and what hears of it: a Ray cluster if one was asked for."""
    from kmifqe.cluster import connect
    from kmifqe.report.terminal import TerminalWatch

    watch = TerminalWatch(console)
    with connect(ray) as cluster:
        yield {"say": watch.say, "cluster": cluster, "watch": watch}


def _study(
    preset: str, records: Path, only: str | None, half: str | None, policies: Path | None, console: Console
) -> Study:
    """Return what was asked for, after saying which problems cannot be run here and why."""
    from kmifqe.experiments.study import Selection, Study, preset_named

    found = Study(preset_named(preset), records, policies, Selection.of(only, half))
    left_out = list(found.left_out().values())
    for reason in dict.fromkeys(left_out):
        count = left_out.count(reason)
        console.print(
            f"{count} problem{'s are' if count > 1 else ' is'} left out: "
            f"{'they need' if count > 1 else 'it needs'} {escape(reason)}",
            highlight=False,
            soft_wrap=True,
        )
    return found


def _judged(study: Study, shard: str | None, ray: str | None, console: Console) -> list[Judged] | None:
    """Run what of the shard is missing; return every estimate, judged, or None while some problems are missing."""
    from kmifqe.cli.session import keep_compiled_programs
    from kmifqe.experiments.study import run_missing, shard_of
    from kmifqe.experiments.study_tables import judge

    part = shard_of(shard or "1/1")
    keep_compiled_programs()
    with _on(ray, console) as where:
        there = run_missing(study, part, **where)
    count = len(study.numbers())
    if len(there) < count:
        console.print(f"{count - len(there)} of {count} problems are not run yet: run the other shards")
        return None
    return judge(there)


def _refuse_others(path: Path, *beside: Path) -> None:
    from kmifqe.experiments.records import refuse_others

    refuse_others(path, *beside)


def _write(record: Record, path: Path, console: Console) -> None:
    from kmifqe.experiments.records import write_record

    write_record(record, path)
    console.print(f"written: {escape(printable(str(path)))}", highlight=False)


def _coverage_table(found: Coverage, half: Half) -> Table:
    """Return a line per estimator and group of problems."""
    title = f"Nominal {found.level:.0%} intervals, {HALF_TITLES[half]}"
    table = _table(title, "problems", ("", "covered", "(95 % sure)", "median width", "median |error|"))
    for name, tables in found.tables[half].items():
        for group in (group for groups in tables.values() for group in groups if group["problems"]):
            table.add_row(
                name,
                group["group"],
                str(group["problems"]),
                f"{group['share']:.0%}",
                f"{group['share_low']:.0%} – {group['share_high']:.0%}",
                f"{group['median_width']:.2f}",
                f"{group['median_error']:.2f}",
            )
        table.add_section()
    return table


def _choices_table(found: Coverage, half: Half) -> Table:
    """Return a line per way to choose among the estimators: how far off it is."""
    table = Table(title=f"Errors of each choice, {HALF_TITLES[half]}", title_justify="left")
    table.add_column("choice", no_wrap=True)
    for heading in ("problems", "RMSE", "median |error|", "90 % quantile"):
        table.add_column(heading, justify="right")
    for line in found.choices[half]:
        numbers = (
            "–" if line[name] is None else f"{line[name]:.3f}" for name in ("rmse", "median", "quantile_90")
        )
        table.add_row(line["choice"], str(line["problems"]), *numbers)
    return table


def _confusion_table(found: Verdicts, half: Half) -> Table:
    """Return a line per estimator and verdict: what became of the estimates that it was given to."""
    headings = ("", "in 95 %", "in 90 %", "small |error|", "large |error|", "hopeless", "misled")
    table = _table(f"Verdicts, {HALF_TITLES[half]}", "verdict", headings)
    for name, tables in found.tables[half].items():
        for line in tables["confusion"]:
            counts = (line["small_errors"], line["large_errors"], line["hopeless"], line["misled"])
            shares = (_share(line["inside_share"]), _share(line["inside_90_share"]))
            table.add_row(name, line["verdict"], str(line["estimates"]), *shares, *map(str, counts))
        table.add_section()
    return table


def _power_table(found: Verdicts, half: Half) -> Table:
    """Return a line per estimator and kind of problem: how many small errors are trusted."""
    headings = ("", "small |error|", "trusted", "(95 % sure)", "all trusted", "in 95 %")
    table = _table(f"Small errors that are called trustworthy, {HALF_TITLES[half]}", "problems", headings)
    for name, tables in found.tables[half].items():
        for line in tables["power"]:
            trusted = line["trusted"]
            table.add_row(
                name,
                line["group"],
                str(line["estimates"]),
                str(line["small"]),
                _share(line["power"]),
                f"{line['power_low']:.0%} – {line['power_high']:.0%}",
                str(trusted),
                _share(line["trusted_inside"] / trusted if trusted else None),
            )
        table.add_section()
    return table


def _table(title: str, name: str, headings: tuple[str, ...]) -> Table:
    """Return an empty table: the estimator and what `name` says, then a right-justified column per heading."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("estimator", name):
        table.add_column(heading, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _faults_table(lines: list[dict[str, Any]]) -> Table:
    table = Table(title="Answers to faulty logs, and how many wrong ones are trusted", title_justify="left")
    table.add_column("fault", min_width=20)
    for heading in ("answers", "wrong", "before", "after", "named", "worst"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        counts = ("estimates", "wrong", "trusted_before", "trusted", "named")
        worst = "–" if line["worst_error"] is None else f"{line['worst_error']:.0%}"
        table.add_row(line["fault"], *(str(line[count]) for count in counts), worst)
    return table
