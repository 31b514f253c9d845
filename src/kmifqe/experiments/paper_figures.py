"""Experiment records -> the paper's figures, drawn without a display."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from kmifqe.experiments.paper_tables import METHOD_NAMES
from kmifqe.report.figures import COLORS, MARKERS, STYLES, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Record = Mapping[str, Any]
MAP = "cividis"  # even in lightness, and the same to every kind of colour vision
TARGET = {"marker": "o", "s": 46, "color": "#D55E00", "edgecolors": "black", "linewidths": 0.9, "zorder": 4}
LEVELS = 14
MARGIN = 0.35  # half action ranges around the box: a kernel at a bound reaches out of it


def landscapes_figure(records: Sequence[_Record]) -> Figure | None:
    """Return Figure 2, or None without records: a row per state, a column per method and one for the exact Q."""
    from matplotlib.figure import Figure

    shown = [record for method in METHOD_NAMES for record in records if record["method"] == method]
    shown = [record for record in shown if record["q"] is not None]
    if not shown:
        return None
    states = shown[0]["states"]
    columns = 2 + len(shown)
    figure = Figure(figsize=(1.6 * columns + 0.9, 1.6 * len(states) + 0.9), layout="constrained")
    figure.set_facecolor("white")
    grid = figure.subplots(
        len(states), columns, squeeze=False, width_ratios=[0.75, *[1.0] * (len(shown) + 1)]
    )
    for i, state in enumerate(states):
        _draw_pendulum(grid[i][0], state)
        surfaces = [np.array(record["q"][i], float) for record in shown]
        # The dummy does nothing: the exact Q is the same along it.
        exact = np.repeat(np.array(shown[0]["exact"][i], float)[:, None], surfaces[0].shape[1], axis=1)
        everything = np.stack([*surfaces, exact])
        levels = np.linspace(everything.min(), everything.max() + 1e-9, LEVELS)
        for axes, surface, record in zip(grid[i][1:], [*surfaces, exact], [*shown, None]):
            drawn = _draw_surface(axes, shown[0], surface, levels)
            axes.scatter([shown[0]["target_torque"][i]], [0.0], **TARGET)
            if record is not None and record.get("metric") is not None:
                _draw_kernel(axes, record, i)
        bar = figure.colorbar(drawn, ax=list(grid[i][1:]), shrink=0.85, pad=0.01, aspect=12)
        bar.ax.tick_params(labelsize=7)
        bar.locator = _few_ticks()
        bar.update_ticks()
    _label(grid, shown)
    figure.suptitle(_title(shown[0]), fontsize=9.5)
    return figure


def _draw_surface(axes: Axes, record: _Record, surface: np.ndarray, levels: np.ndarray) -> Any:
    """Draw Q, torque to the right and the dummy upwards."""
    axis = np.array(record["axis"], float)
    drawn = axes.contourf(axis, axis, surface.T, levels=levels, cmap=MAP)
    axes.set_aspect("equal")
    reach = (1.0 + MARGIN) * axis[-1]
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_xticks([axis[0], 0.0, axis[-1]])
    axes.set_yticks([axis[0], 0.0, axis[-1]])
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
    return drawn


def _draw_kernel(axes: Axes, record: _Record, state: int) -> None:
    """Draw the kernel's principal axes and its contour at one bandwidth, around the target's action.

    A is in half action ranges: the kernel is exp(−½ zᵀAz/h²) with z the distance in those.
    """
    half = 0.5 * (record["axis"][-1] - record["axis"][0])
    eigenvalues, directions = np.linalg.eigh(np.array(record["metric"][state], float))
    reach = half * record["h"][0][0] / np.sqrt(eigenvalues)
    centre = np.array([record["target_torque"][state], 0.0])
    angles = np.linspace(0.0, 2.0 * np.pi, 100)
    contour = centre[:, None] + (directions * reach) @ np.stack([np.cos(angles), np.sin(angles)])
    for color, width in (("white", 2.6), ("black", 1.2)):  # black on white shows on every colour of the map
        axes.plot(*contour, color=color, linewidth=width, zorder=3)
        for direction, length in zip(directions.T, reach):
            ends = np.stack([centre - length * direction, centre + length * direction], axis=1)
            axes.plot(*ends, color=color, linewidth=width, zorder=3)


def _draw_pendulum(axes: Axes, state: _Record) -> None:
    """Draw the rod at its angle from upright, anticlockwise as Gymnasium's, and an arrow for its speed."""
    angle, speed = state["angle"], state["speed"]
    tip = np.array([-np.sin(angle), np.cos(angle)])
    axes.plot([0.0, tip[0]], [0.0, tip[1]], color="black", linewidth=4, solid_capstyle="round")
    axes.plot([0.0], [0.0], marker="o", color="#999999", markersize=6)
    if speed:
        along = np.array([-np.cos(angle), -np.sin(angle)]) * np.sign(speed)
        end = tip + along * (0.25 + 0.12 * abs(speed))
        axes.annotate(
            "",
            (end[0], end[1]),
            (tip[0], tip[1]),
            arrowprops={"arrowstyle": "-|>", "color": "#0072B2", "linewidth": 1.8},
        )
    axes.set_xlim(-1.45, 1.45)
    axes.set_ylim(-1.3, 1.3)
    axes.set_aspect("equal")
    axes.axis("off")
    words = f"{state['name']}\nθ = {angle:.2g} rad, θ' = {speed:g} rad/s".replace("-", "−")
    axes.set_title(words, fontsize=7.5)


def _label(grid: Any, shown: Sequence[_Record]) -> None:
    names = [METHOD_NAMES[record["method"]] for record in shown]
    for axes, name in zip(grid[0][1:], [*names, "exact"]):
        axes.set_title(name, fontsize=10)
    for axes in grid[-1][1:]:
        axes.set_xlabel("torque a₁, N m", fontsize=8)
    for row in grid:
        row[1].set_ylabel("dummy a₂", fontsize=8)


def _title(record: _Record) -> str:
    rows = record["settings"]["log"]["rows"]
    return (
        f"Q over torque and dummy, normalised: one training on one log of {rows:,} rows · preset "
        f"{record['preset']}\norange: the target's action; black: KMIFQE's kernel at one bandwidth, and its axes"
    )


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


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
