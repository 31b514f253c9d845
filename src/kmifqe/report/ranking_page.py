"""A ranking as one HTML page that needs nothing else, and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kmifqe.errors import printable
from kmifqe.io.files import write_file
from kmifqe.report.figures import fixed_style, save_figure
from kmifqe.report.page import fill_template
from kmifqe.report.ranking import RankedPolicy, Ranking

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKING_PAGE = "ranking.html"
RANKING_FIGURE = "ranking.png"
STYLED_ROWS = 8  # of a chart, for which the page's own style has a height
ROW_PIXELS = 48
NAME = 28  # letters of a policy's name in the figure
COLORS = {"trustworthy": "#1a7f37", "use with care": "#9a6700", "do not use": "#cf222e"}


def write_ranking_page(ranking: Ranking, path: Path) -> Path:
    """Write the page of `ranking` to `path`, whole or not at all; return `path`."""
    write_file(path, render_ranking(ranking).encode(errors="replace"))
    return path


def render_ranking(ranking: Ranking) -> str:
    """Return the page of `ranking` as text."""
    rows = len(ranking.ranking)
    # The only text of a record that enters the style is a number of rows.
    taller = f".plot.rows-{rows} {{ height: {82 + ROW_PIXELS * rows}px; }}\n" if rows > STYLED_ROWS else ""
    heading = f"{len(ranking.policies)} policies ranked"
    return fill_template(
        "ranking.html.j2",
        ranking.estimators,
        more_style=f"{taller}.why-cell {{ white-space: normal; min-width: 16rem; text-align: left; }}\n",
        heading=heading,
        title=heading,
        ranking=ranking,
        numbers=[_chart_row(each, ranking.level) for each in ranking.ranking],
        references=[{"label": "logged controller", "value": ranking.logged.value}],
    )


def _chart_row(policy: RankedPolicy, level: float) -> dict[str, Any]:
    headline = max(policy.estimates, key=lambda name: policy.estimates[name].weight)
    interval = None if policy.low is None else (policy.low, policy.high, level)
    return {
        "name": headline,
        "label": policy.policy,
        "value": policy.value,
        "values": (),
        "interval": interval,
    }


def save_ranking_figure(ranking: Ranking, path: Path) -> None:
    """Write the figure of `ranking` to `path`; it looks the same whatever style the user has chosen."""
    with fixed_style():
        save_figure(ranking_figure(ranking), path)


def ranking_figure(ranking: Ranking) -> Figure:
    """Return the values of the ranked policies with intervals, beside their differences from the best one."""
    from matplotlib.figure import Figure

    shown = ranking.ranking
    figure = Figure(figsize=(9.5, 1.6 + 0.32 * max(len(shown), 1)), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, each in enumerate(shown):
        color = COLORS[each.verdict]
        if each.low is not None and each.high is not None:
            left.plot([each.low, each.high], [place, place], color=color, linewidth=2.5, alpha=0.5)
        left.plot([each.value], [place], "o", color=color, markersize=5)
        if each.truth is not None:
            left.plot([each.truth], [place], "|", color="black", markersize=10)
    left.axvline(ranking.logged.value, color="black", linewidth=1.0, linestyle=(0, (1, 2)))
    left.annotate(
        "logged", (ranking.logged.value, 1.0), xycoords=("data", "axes fraction"), fontsize=8, ha="center"
    )
    left.set_xlabel("V̂, normalised value per step")
    names = [printable(each.policy) for each in shown]
    names = [name if len(name) <= NAME else f"…{name[1 - NAME :]}" for name in names]
    left.set_yticks(range(len(shown)), names, fontsize=8, parse_math=False)
    left.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    for place, each in enumerate(shown[1:], 1):
        found = ranking.between(shown[0].policy, each.policy)
        if found is None:
            continue
        ends = [-found.simultaneous_high, -found.simultaneous_low]
        color = "#57606a" if found.separated else "#b6bcc4"
        right.plot(ends, [place, place], color=color, linewidth=1.2)
        right.plot([-found.high, -found.low], [place, place], color=color, linewidth=3.5, alpha=0.7)
        right.plot([-found.value], [place], "o", color=color, markersize=4)
    right.axvline(0.0, color="black", linewidth=1.0)
    right.set_xlabel("difference from the first, paired")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
