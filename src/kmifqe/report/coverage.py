"""A coverage study's record as a figure and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from kmifqe.report.figures import COLORS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WANTED = (0.85, 0.97)  # of nominal 90 % intervals


def coverage_table(record: dict[str, Any]) -> Table:
    """Return a line per estimator and group of problems."""
    table = Table(title=f"Nominal {record['level']:.0%} intervals", title_justify="left")
    for heading in ("estimator", "problems"):
        table.add_column(heading, no_wrap=True)
    for heading in ("", "covered", "(95 % sure)", "median width", "median |error|"):
        table.add_column(heading, justify="right")
    for name, tables in record["tables"].items():
        for line in (line for lines in tables.values() for line in lines if line["problems"]):
            table.add_row(
                name,
                line["group"],
                str(line["problems"]),
                f"{line['share']:.0%}",
                f"{line['share_low']:.0%} – {line['share_high']:.0%}",
                f"{line['median_width']:.2f}",
                f"{line['median_error']:.2f}",
            )
        table.add_section()
    return table


def coverage_figure(record: dict[str, Any]) -> Figure:
    """Return coverage and median width against overlap and against the log's size, an estimator a colour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 6.0), layout="constrained", facecolor="white")
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    for offset, (name, tables) in enumerate(record["tables"].items()):
        for column, kind in enumerate(("overlap", "rows")):
            lines = [line for line in tables[kind] if line["problems"]]
            _draw_coverage(axes[0, column], name, lines, 0.06 * offset)
            _draw_width(axes[1, column], name, lines, 0.06 * offset)
            labels = [f"{line['group'].removeprefix(kind + ' ')}\n({line['problems']})" for line in lines]
            axes[1, column].set_xticks(range(len(lines)), labels, fontsize=8)
    for each in axes[0]:
        each.axhline(record["level"], color="black", linewidth=1.0, linestyle=(0, (1, 2)), zorder=0)
        each.axhspan(*WANTED, color="0.92", zorder=-1)
        each.set_ylim(0.5, 1.02)
    axes[0, 0].set_ylabel("intervals that hold the truth")
    axes[1, 0].set_ylabel("median width, in spreads\nof single episodes' returns")
    axes[1, 0].set_xlabel("overlap: effective share of the rows (problems)")
    axes[1, 1].set_xlabel("logged rows (problems)")
    axes[0, 0].legend(frameon=False, fontsize=9, loc="lower right")
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"Nominal {record['level']:.0%} intervals on problems of known value (hopeless ones apart)",
        fontsize=11,
    )
    return figure


def _draw_coverage(axes: Axes, name: str, lines: list[dict[str, Any]], offset: float) -> None:
    share = np.array([line["share"] for line in lines])
    ends = np.array([[line["share_low"], line["share_high"]] for line in lines]).T.reshape(2, -1)
    axes.errorbar(
        np.arange(len(lines)) + offset,
        share,
        yerr=np.abs(ends - share),
        color=COLORS.get(name),
        marker=MARKERS.get(name, "o"),
        capsize=3,
        label=name,
    )


def _draw_width(axes: Axes, name: str, lines: list[dict[str, Any]], offset: float) -> None:
    widths = [line["median_width"] if line["median_width"] is not None else np.nan for line in lines]
    axes.plot(
        np.arange(len(lines)) + offset,
        widths,
        color=COLORS.get(name),
        marker=MARKERS.get(name, "o"),
        label=name,
    )
    axes.set_yscale("log")
