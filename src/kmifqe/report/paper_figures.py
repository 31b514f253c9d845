"""Experiment records -> the paper's figures, drawn without a display.

Backgrounds are white, as in `figures`, so that a figure reads the same in print and on a dark page; a method has
one colour, line and marker throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kmifqe.report.figures import COLORS, MARKERS, STYLES, save_figure
from kmifqe.report.paper_landscapes import landscapes_figure
from kmifqe.report.paper_tables import METHOD_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
AGAINST = "logged_first_states"
DODGE = {"kmifqe": -1.5, "kmifqe-identity": 1.5, "fqe": -3.0, "sr-dice": 3.0}  # points


def save_paper_figures(records: Iterable[Record], out: Path) -> list[Path]:
    """Draw every figure that the records of one preset suffice for into `out`; return the files written."""
    records = list(records)
    written = []
    for experiment, draw in FIGURES.items():
        figure = draw([record for record in records if record["experiment"] == experiment])
        if figure is not None:
            save_figure(figure, out / f"{experiment}.png")
            written.append(out / f"{experiment}.png")
    return written


def dummies_figure(records: Sequence[Record]) -> Figure | None:
    """Return Figure 1a, bias² and variance against the number of dummies, or None without records."""
    if not records:
        return None
    figure, (left, right) = _panels(2, records, "Pendulum: bias² and variance of V̂")
    for axes, moment, title in (
        (left, "bias_squared", "bias²"),
        (right, "variance", "variance of one trial"),
    ):
        for method, found in _by_method(records):
            points = [(record["dummies"], _told(record, moment)) for record in found]
            _curve(axes, method, points)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("dummy action dimensions")
        axes.set_xticks(sorted({record["dummies"] for record in records}))
        axes.axhline(0.0, color="black", linewidth=0.6)
    left.set_ylabel("squared normalised value")
    right.sharey(left)  # which of the two rules is the point
    _legend(left)
    return figure


def bandwidths_figure(records: Sequence[Record]) -> Figure | None:
    """Return Figure 1b, the error against fixed bandwidths with the learned one marked, or None without records."""
    fixed = [record for record in records if record["row"] == "fixed"]
    if not fixed:
        return None
    learned = {record["method"]: record for record in records if record["row"] == "learned"}
    figure, panels = _panels(3, fixed, f"Pendulum, {_dummies(fixed[0])}: error against the bandwidth")
    moments = (("rmse", "RMSE"), ("bias", "bias"), ("variance", "variance of one trial"))
    for axes, (moment, title) in zip(panels, moments):
        for method, found in _by_method(fixed):
            points = [(told["bandwidth"], _pair(told, moment)) for told in found[0]["by_bandwidth"]]
            _curve(axes, method, points)
            if method in learned:
                _mark_learned(axes, method, learned[method], moment)
        axes.set_xscale("log")
        grid = sorted({told["bandwidth"] for record in fixed for told in record["by_bandwidth"]})
        axes.set_xticks(grid, [f"{h:g}" for h in grid])
        axes.minorticks_off()
        axes.set_xlabel("bandwidth h, half action ranges")
        axes.set_title(title, fontsize=10)
        if moment != "rmse":
            axes.axhline(0.0, color="black", linewidth=0.6)
    panels[0].set_ylabel("normalised value per step")
    panels[2].set_ylabel("squared normalised value")
    panels[0].set_ylim(bottom=0.0)
    _legend(panels[0])
    return figure


def shift_figure(records: Sequence[Record]) -> Figure | None:
    """Return RMSE against the behaviour's width and against the rows of the log, or None without records."""
    if not records:
        return None
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, panels = _panels(2, records, "Pendulum, one dummy: distribution shift and log length", rows=False)
    for axes, panel, label in zip(
        panels,
        ("width", "rows"),
        ("behaviour's width, half action ranges", "rows of the log"),
    ):
        shown = [record for record in records if panel in record["panels"]]
        for method, found in _by_method(shown):
            _curve(axes, method, [(record[panel], _told(record, "rmse")) for record in found])
        other = "rows" if panel == "width" else "width"
        held = sorted({record[other] for record in shown})
        words = f"{held[0]:,} rows" if other == "rows" else f"width {held[0]:g}"
        axes.set_title(f"at {words}" if held else "", fontsize=10)
        axes.set_xlabel(label)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")  # a label such as 6 × 10⁻¹ takes the width of a panel
        axes.yaxis.set_minor_formatter(NullFormatter())
        grid = sorted({record[panel] for record in shown})
        if panel == "rows":
            axes.set_xscale("log")
        axes.set_xticks(grid, [f"{x:,}" if panel == "rows" else f"{x:g}" for x in grid])
        axes.xaxis.set_minor_formatter(NullFormatter())
    panels[0].set_ylabel("RMSE, normalised value per step")
    panels[1].sharey(panels[0])
    _legend(panels[0])
    return figure


FIGURES: dict[str, Callable[[Sequence[Record]], Figure | None]] = {
    "fig1a": dummies_figure,
    "fig1b": bandwidths_figure,
    "fig2": landscapes_figure,
    "shift": shift_figure,
}


def _panels(
    count: int, records: Sequence[Record], title: str, *, rows: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side, and under its title what the numbers were made from."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.0 + 2.9 * count, 3.4), layout="constrained", facecolor="white")
    panels = list(figure.subplots(1, count))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.suptitle(f"{title}\n{_sizes(records[0], rows)}", fontsize=9.5)
    return figure, panels


def _sizes(record: Record, rows: bool) -> str:
    """Return the sizes behind a record, in words."""
    settings = record["settings"]
    logs, seeds = settings["logs"], settings["seeds_per_log"]
    of_logs = f" of {settings['log']['rows']:,} rows" if rows else ""
    return (
        f"{logs} logs{of_logs}, {seeds} training{'s' if seeds > 1 else ''} on each, ± one standard error over logs"
        f" · preset {record['preset']}"
    )


def _dummies(record: Record) -> str:
    count = record["dummies"]
    return f"{count} dumm{'y' if count == 1 else 'ies'}"


def _by_method(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Return the records of each method there is, methods in their usual order."""
    groups = [
        (method, [record for record in records if record["method"] == method]) for method in METHOD_NAMES
    ]
    return [(method, found) for method, found in groups if found]


def _told(record: Record, moment: str) -> tuple[float | None, float | None]:
    return _pair(record["errors"][AGAINST], moment)


def _pair(told: Record, moment: str) -> tuple[float | None, float | None]:
    """Return a moment of the errors and its standard error, each where it is known."""
    return told[moment], told[f"{moment}_error"]


def _curve(
    axes: Axes, method: str, points: Iterable[tuple[float, tuple[float | None, float | None]]]
) -> None:
    """Draw a method's points with error bars; a point where a trial diverged has no place, and is left out."""
    from matplotlib.transforms import ScaledTranslation

    known = sorted((x, y, error or 0.0) for x, (y, error) in points if y is not None)
    if not known:
        return
    x, y, errors = zip(*known)
    # A little apart, in print units: one method's error bars would hide another's at the same place.
    aside = ScaledTranslation(DODGE.get(method, 0.0) / 72.0, 0.0, axes.figure.dpi_scale_trans)
    axes.errorbar(
        x,
        y,
        yerr=errors,
        color=COLORS.get(method, "black"),
        linestyle=STYLES.get(method, "-"),
        marker=MARKERS.get(method, "o"),
        markersize=5,
        linewidth=1.6,
        capsize=2.5,
        elinewidth=1.0,
        label=METHOD_NAMES[method],
        transform=axes.transData + aside,
    )
    # What is drawn aside does not count for the limits by itself.
    axes.update_datalim([(at, end) for at, mid, error in known for end in (mid - error, mid + error)])
    axes.autoscale_view()


def _mark_learned(axes: Axes, method: str, record: Record, moment: str) -> None:
    """Draw where the learned bandwidth lies, a line down and a large open marker at its error."""
    y, _ = _told(record, moment)
    hs = [h for of_log in record["h"] for h in of_log if h is not None]
    if y is None or not hs:
        return
    h, color = sum(hs) / len(hs), COLORS.get(method, "black")
    axes.axvline(h, color=color, linestyle=STYLES.get(method, "-"), linewidth=0.8, alpha=0.7, zorder=0)
    axes.plot(
        [h],
        [y],
        linestyle="none",
        marker=MARKERS.get(method, "o"),
        markersize=11,
        markerfacecolor="none",
        markeredgecolor=color,
        markeredgewidth=1.8,
        label=f"{METHOD_NAMES[method]}, learned h",
    )


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: ("learned" in labels[i], i))  # the curves first
    axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=8)
