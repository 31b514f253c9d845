"""Results to one HTML file that needs nothing else: no network, no font, no library.

The templates, the style and the scripts lie in `page_assets`. What a record says reaches the page as escaped text, or
as JSON that a script reads; none of it can become markup or code.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kmifqe.errors import InputError, sentence_for
from kmifqe.estimators.registry import find_entry
from kmifqe.io.files import write_file
from kmifqe.io.format import duration, number, percent
from kmifqe.io.serialize import to_json
from kmifqe.report.payload import NETWORK_BYTES, landscape_numbers, run_numbers, value_row
from kmifqe.report.ranking import Difference
from kmifqe.report.ranking_judged import paired_differences
from kmifqe.report.result import Result
from kmifqe.trust.checks.base import Check
from kmifqe.trust.interval import LEVEL, ConfidenceInterval
from kmifqe.trust.landscape import LANDSCAPE, read_landscape

REPORT = "report.html"
SCRIPTS = ("dom.js", "axes.js", "charts.js", "network.js", "contours.js", "explorer.js", "page.js")
GENERATOR = "kmifqe report"  # stands at the head of every page, so that a page of ours is known again
HEAD = 500  # bytes of a page, more than precede its generator
COLOR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True)
class _Run:
    """One result and what the templates need beside it."""

    id: str  # of its element, and the beginning of the ids inside
    name: str  # what tells it apart from the other runs of the page
    result: Result
    folder: Path | None
    landscape_problem: str  # why its landscape is left out, "" where nothing is wrong with it
    numbers: dict[str, Any]


def write_page(results: Sequence[Result], path: Path, *, folders: Sequence[Path | None] = ()) -> Path:
    """Write the report of one result, or several side by side, to `path`, whole or not at all; return `path`.

    Args:
        results: what is shown; several are compared in the order of their values.
        path: the HTML file.
        folders: the run directory of each result, for its name and its Q-landscape; None for a result that was not
            loaded from one. By default none has a directory.
    """
    write_file(path, render_page(results, folders).encode(errors="replace"))
    return path


def is_page(path: Path) -> bool:
    """Return whether the file `path` is a page that `write_page` wrote."""
    if path.is_symlink() or not path.is_file():
        return False
    with open(path, "rb") as file:
        return f'<meta name="generator" content="{GENERATOR}">'.encode() in file.read(HEAD)


def render_page(results: Sequence[Result], folders: Sequence[Path | None] = ()) -> str:
    """Return the page as text; the arguments are those of `write_page`."""
    if not results:
        raise InputError("a page was asked for without a result; expected at least one")
    try:
        return _render(results, folders)
    except RecursionError as error:
        of = ", ".join(str(folder) for folder in folders if folder is not None) or "a result"
        raise InputError(f"{of}: a setting or extra is nested too deeply to be shown") from error


def _render(results: Sequence[Result], folders: Sequence[Path | None]) -> str:
    runs = _runs(results, folders or [None] * len(results))
    names = dict.fromkeys(estimate.estimator for result in results for estimate in result.estimates)
    ranking = sorted(runs, key=_place)
    heading = "Policy evaluation" if len(runs) == 1 else f"{len(runs)} policies compared"
    return fill_template(
        "page.html.j2",
        names,
        heading=heading,
        title=heading if len(runs) > 1 else f"{results[0].question.policy}: what is it worth?",
        runs=runs,
        ranking=ranking,
        paired=_paired(ranking),
        comparison_numbers=[
            value_row(run.result.estimate, run.result.interval) | {"label": run.name, "values": ()}
            for run in ranking
        ],
    )


def _place(run: _Run) -> tuple[bool, float]:
    """Return what runs are ordered by: values that may be used first, the best at the top."""
    value = run.result.value
    return run.result.verdict.word == "do not use", math.inf if math.isnan(value) else -value


def _paired(runs: Sequence[_Run]) -> list[Difference]:
    """Return paired differences of runs that judged policies on one log with one estimator and the same seeds."""
    alike: dict[str, list[_Run]] = {}
    for run in runs:
        estimate, digests = run.result.estimate, run.result.provenance.digests
        usable = run.result.verdict.word != "do not use" and len(estimate.known) > 1
        if usable and "log" in digests:
            same = (digests["log"], estimate.gamma, estimate.estimator, estimate.config, estimate.seeds)
            alike.setdefault(repr((*same, estimate.bootstrap)), []).append(run)
    found: list[Difference] = []
    for group in alike.values():
        if len(group) > 1:
            names = [run.name for run in group]
            levels = [run.result.interval.level for run in group if run.result.interval is not None]
            estimates = [run.result.estimate for run in group]
            found += paired_differences(names, estimates, min(levels, default=LEVEL))
    return found


def fill_template(template: str, estimators: Iterable[str], *, more_style: str = "", **values: Any) -> str:
    """Return a page of `template` with the style, the scripts and the rule that nothing else is loaded or run.

    `estimators` get their colours. `more_style` is added to the style, by default nothing; no text of a record may be
    part of it. `values` are what the template asks for.
    """
    names = list(estimators)
    style = f"{_asset('page.css')}{_color_rules(names)}{more_style}"
    script = "\n".join(["'use strict';", "(() => {", *map(_asset, SCRIPTS), "})();"])
    return (
        _environment()
        .get_template(template)
        .render(
            version=version("kmifqe"),
            generator=GENERATOR,
            content_policy=_content_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            looks={name: {"label": _label(name), "color": f"c-{i}"} for i, name in enumerate(names)},
            **values,
        )
    )


def run_names(results: Sequence[Result], folders: Sequence[Path | None]) -> list[str]:
    """Return what each run is called: its policy, with its folder where several runs judge policies of one name."""
    policies = [result.question.policy for result in results]
    if len(set(policies)) == len(policies):
        return policies
    return [
        f"{i + 1 if folder is None else folder.resolve().name}: {policy}"
        for i, (policy, folder) in enumerate(zip(policies, folders, strict=True))
    ]


def _runs(results: Sequence[Result], folders: Sequence[Path | None]) -> list[_Run]:
    runs = []
    names = run_names(results, folders)
    for i, (name, result, folder) in enumerate(zip(names, results, folders, strict=True)):
        landscape, problem = _landscape(folder, result, NETWORK_BYTES // len(results))
        runs.append(_Run(f"run{i}", name, result, folder, problem, run_numbers(result, landscape)))
    return runs


def _landscape(folder: Path | None, result: Result, network_bytes: int) -> tuple[dict[str, Any] | None, str]:
    """Return the numbers of the landscape in `folder`, else why there are none: a bad file costs only itself."""
    if folder is None or not os.path.lexists(path := folder / LANDSCAPE):
        return None, ""
    try:
        if not path.is_file():  # a pipe or a device might never end
            raise InputError(f"{path}: is no file; expected a Q-landscape")
        with sentence_for(path, "a Q-landscape", (ArithmeticError, LookupError, TypeError, ValueError)):
            landscape = read_landscape(path)
            for surface in landscape.surfaces:
                for seed, value in zip(surface.seeds, surface.values):
                    known = _final_value(result, surface.estimator, int(seed))
                    if not abs(known - float(value)) <= 1e-6 * max(1.0, abs(known)):
                        raise InputError(
                            f"{path}: it is of another run ({surface.estimator} ended elsewhere)"
                        )
            return landscape_numbers(landscape, network_bytes), ""
    except InputError as error:
        return None, str(error)


def _final_value(result: Result, estimator: str, seed: int) -> float:
    """Return V̂ of one seed, NaN where the result has no such estimator or seed."""
    found = [
        e.values[e.seeds.index(seed)]
        for e in result.estimates
        if e.estimator == estimator and seed in e.seeds
    ]
    return float(found[0]) if found else math.nan


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kmifqe.report", "page_assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "between_with_level": _between_with_level,
        "discounted_sentence": _discounted_sentence,
        "duration": duration,
        "headline": _headline,
        "indented_json": lambda value: to_json(value, indent=1).decode(),
        "label": _label,
        "origin_sentence": _origin_sentence,
        "raised_checks": _raised_checks,
        "script_json": _script_json,
        "percent": percent,
        "setting": _setting,
        "setting_names": lambda result: dict.fromkeys(name for e in result.estimates for name in e.config),
        "shell_line": lambda command: f"kmifqe {shlex.join(command)}",
        "short": lambda x: "–" if x is None else f"{x:.4g}".replace("-", "−"),
        "show": _show,
        "spread": lambda e: "–" if math.isnan(e.spread) else f"± {_show(e.spread, e.value)}",
        "thousands": "{:,}".format,
        "truth_sentence": _truth_sentence,
        "typeset": _typeset,
    }
    return environment


def _asset(name: str) -> str:
    return files("kmifqe.report").joinpath("page_assets", name).read_text(encoding="utf-8")


def _content_policy(style: str, script: str) -> str:
    """Return the rule by which a browser runs this page's script and style and nothing else, and loads nothing."""

    def fingerprint(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    rules = f"default-src 'none'; style-src {fingerprint(style)}; script-src {fingerprint(script)}"
    return f"{rules}; base-uri 'none'; form-action 'none'"


def _color_rules(names: Iterable[str]) -> str:
    """Return the colour of each estimator by its number; no name of a record becomes part of the style."""
    rules = ""
    for i, name in enumerate(names):
        entry = find_entry(name)
        colors = () if entry is None else (entry.color, entry.dark_color)
        known = len(colors) == 2 and all(COLOR.fullmatch(color) for color in colors)
        color = f"light-dark({', '.join(colors)})" if known else "var(--quiet)"
        rules += f":root {{ --c-{i}: {color}; }} .c-{i} {{ color: var(--c-{i}); }}\n"
    return rules


def _label(estimator: str) -> str:
    entry = find_entry(estimator)
    return estimator if entry is None else entry.label


def _script_json(value: Any) -> Markup:
    """Return JSON in which nothing can end the script element that holds it, or be read as markup."""
    escaped = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
    return Markup(to_json(value).decode().translate(escaped))


def _show(x: float, size: float | None = None, *, sign: bool = False, decimals: int = 3) -> str:
    """Return `number` of the same arguments with a true minus sign; a dash where there is no finite number."""
    return number(x, size, sign=sign, decimals=decimals).replace("-", "−") if math.isfinite(x) else "–"


def _typeset(sentence: str) -> str:
    """Return a sentence with true minus signs before its numbers."""
    return re.sub(r"(?<![\w-])-(?=[\d.])", "−", sentence)


def _between(interval: ConfidenceInterval, decimals: int = 3) -> str:
    size = max(abs(interval.low), abs(interval.high))
    low, high = (_show(end, size, decimals=decimals) for end in (interval.low, interval.high))
    return f"{low} to {high}"


def _between_with_level(interval: ConfidenceInterval | None) -> str:
    return "–" if interval is None else f"{_between(interval)} ({100.0 * interval.level:.3g} %)"


def _headline(result: Result) -> str:
    """Return what the policy is worth, in one sentence."""
    if not math.isfinite(result.value):
        return f"There is no value: no seed of {_label(result.estimate.estimator)} ended with a finite one."
    interval = result.interval
    level = f" ({100.0 * interval.level:.3g} % interval {_between(interval)})" if interval else ""
    return f"The policy is worth {_show(result.value)} per step{level}."


def _discounted_sentence(result: Result) -> str:
    if not math.isfinite(result.value):
        return ""
    interval = result.interval and result.interval.discounted(result.estimate.gamma)
    ends = f" ({_between(interval, 2)})" if interval else ""
    value = _show(result.discounted_return, decimals=2)
    return f"As a discounted return: {value}{ends}, with γ = {result.estimate.gamma:g}."


def _truth_sentence(result: Result) -> str:
    """Return how far the value is from a truth that is known, and whether the interval contains it."""
    truth = result.references.get("truth", math.nan)
    if not math.isfinite(truth):
        return ""
    sentence = f"The true value is known here: {_show(truth)}"
    if math.isfinite(result.value):
        sentence += f", so the error is {_show(result.value - truth, sign=True)}"
        if result.interval is not None:
            verb = "contains" if result.interval.contains(truth) else "misses"
            sentence += f"; the interval {verb} it"
    return f"{sentence}."


def _origin_sentence(result: Result) -> str:
    """Return by which estimator and from which data the value was computed."""
    estimate, rows = result.estimate, result.question.rows
    members = " and ".join(f"{_label(name)} ({weight:.0%})" for name, weight in estimate.members.items())
    by = f"{_label(estimate.estimator)}, {members} averaged," if members else _label(estimate.estimator)
    source = f"{rows.logged:,} logged steps in {_count(rows.episodes, 'episode')}"
    seeds = _count(len(estimate.seeds), "seed")
    return f"Judged by {by} from {source}, {seeds} of {estimate.steps:,} steps each."


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _raised_checks(result: Result) -> list[Check]:
    """Return the checks that ask for attention: the worst first, then those of the headline and of the log."""
    about = ("", result.estimate.estimator)
    raised = [check for check in result.checks if check.level != "ok"]
    return sorted(raised, key=lambda check: (check.level != "bad", check.estimator not in about))


def _setting(value: object) -> str:
    """Return a setting as text: a list without brackets, and what is nested deeper as JSON."""
    if isinstance(value, list | tuple):
        nested = (list, tuple, dict)
        return ", ".join(
            to_json(each).decode() if isinstance(each, nested) else _setting(each) for each in value
        )
    if isinstance(value, float):
        return f"{value:g}".replace("-", "−")
    return "none" if value is None else to_json(value).decode() if isinstance(value, dict) else str(value)
