"""Several runs side by side: which policy is worth more, and is the difference larger than the doubt?"""

from __future__ import annotations

from collections.abc import Sequence

from kmifqe.report.html import words
from kmifqe.report.html.markup import Html, json_script, tag
from kmifqe.report.html.sections import figure, section, swatch
from kmifqe.report.html.source import Run
from kmifqe.report.html.words import show


def comparison_section(runs: Sequence[Run]) -> Html:
    """Return every run's main estimate in one figure and one table, best value first."""
    order = sorted(range(len(runs)), key=lambda i: _worth(runs[i]), reverse=True)
    names = run_names(runs)
    heads = ("Policy", "V̂", "Interval", "Verdict", "By", "Log")
    rows = [tag("tr", *_cells(runs[i], names[i], heads)) for i in order]
    table = tag(
        "table", tag("thead", tag("tr", *[tag("th", h, scope="col") for h in heads])), tag("tbody", *rows)
    )
    tabs = [
        tag("button", names[i], type="button", role="tab", aria_controls=f"run{i}", data_tab=i)
        for i in range(len(runs))
    ]
    return tag(
        "div",
        section(
            "comparison",
            "Side by side",
            figure(
                "comparison",
                "Value and interval of every policy",
                "Dot: the policy's value. Thick bar: its interval. Where two bars overlap, the logs do not tell "
                "the policies apart.",
                size=f"rows-{min(len(runs), 8)}",
            ),
            tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Table of policies"),
            _warning(runs),
        ),
        tag("div", *tabs, role="tablist", aria_label="Reports of the single runs", class_="tabs"),
        json_script("comparison-numbers", [_row(runs[i], names[i]) for i in order]),
    )


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return what tells the runs apart: their policies, or where two are the same the run directories too."""
    policies = [run.policy for run in runs]
    if len(set(policies)) == len(runs):
        return policies
    return [f"{run.path.name or run.path}: {run.policy}" for run in runs]


def _worth(run: Run) -> float:
    return float("-inf") if run.main.value is None else run.main.value


def _cells(run: Run, name: str, heads: tuple[str, ...]) -> list[Html]:
    told = run.main
    level = words.VERDICTS.get(run.verdict or "", "care")
    verdict = tag("span", run.verdict, class_=f"badge {level}") if run.verdict else "–"
    interval = "–" if told.interval is None else f"{words.interval_of(told)} ({words.level_of(told)})"
    cells = (tag("strong", show(told.value)), interval, verdict, swatch(told.estimator), run.text("data"))
    first = tag("th", name, scope="row")
    return [first, *[tag("td", cell, data_head=head) for head, cell in zip(heads[1:], cells)]]


def _row(run: Run, name: str) -> dict[str, object]:
    told = run.main
    interval = None if told.interval is None else [told.interval.low, told.interval.high, told.interval.level]
    values = [] if told.value is None else [told.value]
    return {
        "name": told.estimator,
        "label": name,
        "value": told.value,
        "values": values,
        "interval": interval,
    }


def _warning(runs: Sequence[Run]) -> Html | None:
    """Return a word of caution where the runs were not asked the same question."""
    differ = [name for name in ("gamma", "data") if len({run.text(name) for run in runs}) > 1]
    if not differ:
        return None
    what = {"gamma": "discounts", "data": "logs"}
    said = " and ".join(what[name] for name in differ)
    return tag(
        "p", f"The runs used different {said}: their values answer different questions.", class_="callout"
    )
