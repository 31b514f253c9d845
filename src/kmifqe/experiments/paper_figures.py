"""Experiment records -> the paper's figures and the study's, drawn without a display."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kmifqe.experiments.presets import METHODS
from kmifqe.experiments.records import Errors, ExperimentRecord, LandscapeRecord, TrialsRecord
from kmifqe.report.figures import save_figure, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kmifqe.experiments.problems_base import Half
    from kmifqe.experiments.study_tables import Coverage, Line

AGAINST = "logged_first_states"
DODGE = {"kmifqe-paper": -1.5, "kmifqe-identity": 1.5, "fqe-paper": -3.0, "sr-dice": 3.0}  # points
MAP = "cividis"  # even in lightness, and the same to every kind of colour vision
TARGET = {"marker": "o", "s": 46, "color": "#D55E00", "edgecolors": "black", "linewidths": 0.9, "zorder": 4}
LEVELS = 14
MARGIN = 0.35  # half action ranges around the box: a kernel at a bound reaches out of it
WANTED = (0.87, 0.95)  # of nominal 90 % intervals

Records = Sequence[TrialsRecord]


def save_paper_figures(records: Iterable[ExperimentRecord], out: Path) -> list[Path]:
    """Draw every figure that the records of one preset suffice for into `out`; return the files written."""
    records = list(records)
    written = []
    for experiment, draw in FIGURES.items():
        figure = draw([record for record in records if record.experiment == experiment])
        if figure is not None:
            save_figure(figure, out / f"{experiment}.png")
            written.append(out / f"{experiment}.png")
    return written


def dummies_figure(records: Records) -> Figure | None:
    """Return Figure 1a, bias² and variance against the number of dummies, or None without records."""
    if not records:
        return None
    figure, (left, right) = _panels(2, records, "Pendulum: bias² and variance of V̂")
    for axes, moment in ((left, "bias_squared"), (right, "variance")):
        for method, found in _by_method(records):
            _curve(axes, method, moment, [(record.dummies, record.errors[AGAINST]) for record in found])
        axes.set_xlabel("dummy action dimensions")
        axes.set_xticks(sorted({record.dummies or 0 for record in records}))
        axes.axhline(0.0, color="black", linewidth=0.6)
    left.set_title("bias²", fontsize=10)
    right.set_title("variance of one trial", fontsize=10)
    left.set_ylabel("squared normalised value")
    right.sharey(left)  # which of the two is larger is the point
    _legend(left)
    return figure


def bandwidths_figure(records: Records) -> Figure | None:
    """Return Figure 1b, the error against fixed bandwidths with the learned one marked, or None without records."""
    fixed = [record for record in records if record.row == "fixed"]
    if not fixed:
        return None
    learned = {record.method: record for record in records if record.row == "learned"}
    dummies = f"{fixed[0].dummies} dumm{'y' if fixed[0].dummies == 1 else 'ies'}"
    figure, panels = _panels(3, fixed, f"Pendulum, {dummies}: error against the bandwidth")
    grid = sorted({errors["bandwidth"] or 0.0 for record in fixed for errors in record.by_bandwidth})
    moments = (("rmse", "RMSE"), ("bias", "bias"), ("variance", "variance of one trial"))
    for axes, (moment, title) in zip(panels, moments):
        for method, found in _by_method(fixed):
            _curve(axes, method, moment, [(errors["bandwidth"], errors) for errors in found[0].by_bandwidth])
            if method in learned:
                _mark_learned(axes, learned[method], moment)
        axes.set_xscale("log")
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


def shift_figure(records: Records) -> Figure | None:
    """Return RMSE against the behaviour's width and against the rows of the log, or None without records."""
    if not records:
        return None
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, panels = _panels(2, records, "Pendulum, one dummy: distribution shift and log length", rows=False)
    # How a tick is written, and the title of the other panel, which holds this one fixed.
    formats = {"width": ("{:g}", "width {:g}"), "rows": ("{:,}", "{:,} rows")}
    labels = ("behaviour's width, half action ranges", "rows of the log")
    for axes, panel, other, label in zip(panels, ("width", "rows"), ("rows", "width"), labels):
        shown = [record for record in records if panel in record.panels]
        for method, found in _by_method(shown):
            points = [(getattr(record, panel), record.errors[AGAINST]) for record in found]
            _curve(axes, method, "rmse", points)
        held = min((getattr(record, other) for record in shown), default=None)
        axes.set_title("" if held is None else f"at {formats[other][1].format(held)}", fontsize=10)
        axes.set_xlabel(label)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")  # a label such as 6 × 10⁻¹ has the width of a panel
        axes.yaxis.set_minor_formatter(NullFormatter())
        grid = sorted({getattr(record, panel) for record in shown})
        if panel == "rows":
            axes.set_xscale("log")
        axes.set_xticks(grid, [formats[panel][0].format(x) for x in grid])
        axes.xaxis.set_minor_formatter(NullFormatter())
    panels[0].set_ylabel("RMSE, normalised value per step")
    panels[1].sharey(panels[0])
    _legend(panels[0])
    return figure


def _panels(count: int, records: Records, title: str, *, rows: bool = True) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side, and under its title what the numbers were made from."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.0 + 2.9 * count, 3.4), layout="constrained", facecolor="white")
    panels = list(figure.subplots(1, count))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    settings = records[0].settings
    seeds = settings["seeds_per_log"]
    of_rows = f" of {settings['log']['rows']:,} rows" if rows else ""
    made_from = (
        f"{settings['logs']} logs{of_rows}, {seeds} training{'s' if seeds > 1 else ''} on each, "
        f"± one standard error over logs · preset {records[0].preset}"
    )
    figure.suptitle(f"{title}\n{made_from}", fontsize=9.5)
    return figure, panels


def _by_method(records: Records) -> list[tuple[str, Records]]:
    """Return the records of each method there is, methods in their usual order."""
    groups = [(method, [record for record in records if record.method == method]) for method in METHODS]
    return [(method, found) for method, found in groups if found]


def _curve(axes: Axes, method: str, moment: str, points: Iterable[tuple[float | None, Errors]]) -> None:
    """Draw a moment of a method with error bars; a point where a trial diverged has no place, and is left out."""
    from matplotlib.transforms import ScaledTranslation

    found = [(x, errors[moment], errors[f"{moment}_error"]) for x, errors in points]
    known = sorted((x, y, error or 0.0) for x, y, error in found if x is not None and y is not None)
    if not known:
        return
    x, y, bars = zip(*known)
    # A little apart, in print units: one method's error bars would hide another's at the same place.
    aside = ScaledTranslation(DODGE.get(method, 0.0) / 72.0, 0.0, axes.figure.dpi_scale_trans)
    look = _style(method) | {"markersize": 5, "linewidth": 1.6, "capsize": 2.5, "elinewidth": 1.0}
    label = METHODS[method].label
    axes.errorbar(x, y, yerr=bars, label=label, transform=axes.transData + aside, **look)
    # What is drawn aside does not count for the limits by itself.
    axes.update_datalim([(at, end) for at, mid, error in known for end in (mid - error, mid + error)])
    axes.autoscale_view()


def _mark_learned(axes: Axes, record: TrialsRecord, moment: str) -> None:
    """Draw where the learned bandwidth lies, a line down and a large open marker at its error."""
    y = record.errors[AGAINST][moment]
    hs = np.array([]) if record.h is None else record.h[np.isfinite(record.h)]
    if y is None or not len(hs):
        return
    style = _style(record.method) | {"label": f"{METHODS[record.method].label}, learned h"}
    color, line = style["color"], style.pop("linestyle")
    axes.axvline(hs.mean(), color=color, linestyle=line, linewidth=0.8, alpha=0.7, zorder=0)
    open_marker = {
        "markersize": 11,
        "markerfacecolor": "none",
        "markeredgecolor": color,
        "markeredgewidth": 1.8,
    }
    axes.plot([hs.mean()], [y], linestyle="none", **open_marker, **style)


def _style(method: str) -> dict[str, Any]:
    return style_of(method)._asdict()


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: ("learned" in labels[i], i))  # the curves first
    axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=8)


def landscapes_figure(records: Sequence[LandscapeRecord]) -> Figure | None:
    """Return Figure 2, or None without records: a row per state, a column per method and one for the exact Q."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shown = [record for method in METHODS for record in records if record.method == method]
    shown = [record for record in shown if record.q is not None]
    if not shown:
        return None
    first = shown[0]
    figsize = (1.6 * (2 + len(shown)) + 0.9, 1.6 * len(first.states) + 0.9)
    figure = Figure(figsize=figsize, layout="constrained", facecolor="white")
    widths = [0.75, *[1.0] * (len(shown) + 1)]
    grid = figure.subplots(len(first.states), len(widths), squeeze=False, width_ratios=widths)
    for i, (row, state) in enumerate(zip(grid, first.states)):
        _draw_pendulum(row[0], state)
        surfaces = [record.q[i] for record in shown if record.q is not None]
        # The dummy does nothing: the exact Q is the same along it.
        surfaces.append(np.repeat(first.exact[i][:, None], len(first.axis), axis=1))
        levels = np.linspace(np.min(surfaces), np.max(surfaces) + 1e-9, LEVELS)
        for axes, surface, record in zip(row[1:], surfaces, [*shown, None]):
            drawn = _draw_surface(axes, first.axis, surface, levels)
            axes.scatter([first.target_torque[i]], [0.0], **TARGET)
            if record is not None and record.metric is not None:
                _draw_kernel(axes, record, i)
        bar = figure.colorbar(drawn, ax=list(row[1:]), shrink=0.85, pad=0.01, aspect=12)
        bar.ax.tick_params(labelsize=7)
        bar.locator = MaxNLocator(4)
        bar.update_ticks()
        row[1].set_ylabel("dummy a₂", fontsize=8)
    for axes, name in zip(grid[0][1:], [*(METHODS[record.method].label for record in shown), "exact"]):
        axes.set_title(name, fontsize=10)
    for axes in grid[-1][1:]:
        axes.set_xlabel("torque a₁, N m", fontsize=8)
    figure.suptitle(
        f"Q over torque and dummy, normalised: one training on one log of {first.settings['log']['rows']:,} rows · "
        f"preset {first.preset}\norange: the target's action; black: KMIFQE's kernel at one bandwidth, and its axes",
        fontsize=9.5,
    )
    return figure


def _draw_surface(axes: Axes, axis: np.ndarray, surface: np.ndarray, levels: np.ndarray) -> Any:
    """Draw Q, torque to the right and the dummy upwards."""
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


def _draw_kernel(axes: Axes, record: LandscapeRecord, state: int) -> None:
    """Draw the kernel's principal axes and its contour at one bandwidth, around the target's action.

    A is in half action ranges: the kernel is exp(−½ zᵀAz/h²) with z the distance in those.
    """
    assert record.metric is not None
    assert record.h is not None
    half = 0.5 * (record.axis[-1] - record.axis[0])
    eigenvalues, directions = np.linalg.eigh(record.metric[state])
    reach = half * record.h[0][0] / np.sqrt(eigenvalues)
    centre = np.array([record.target_torque[state], 0.0])
    angles = np.linspace(0.0, 2.0 * np.pi, 100)
    contour = centre[:, None] + (directions * reach) @ np.stack([np.cos(angles), np.sin(angles)])
    for color, width in (("white", 2.6), ("black", 1.2)):  # black on white shows on every colour of the map
        axes.plot(*contour, color=color, linewidth=width, zorder=3)
        for direction, length in zip(directions.T, reach):
            ends = np.stack([centre - length * direction, centre + length * direction], axis=1)
            axes.plot(*ends, color=color, linewidth=width, zorder=3)


def _draw_pendulum(axes: Axes, state: dict[str, Any]) -> None:
    """Draw the rod at its angle from upright, anticlockwise as Gymnasium's, and an arrow for its speed."""
    angle, speed = state["angle"], state["speed"]
    tip = np.array([-np.sin(angle), np.cos(angle)])
    axes.plot([0.0, tip[0]], [0.0, tip[1]], color="black", linewidth=4, solid_capstyle="round")
    axes.plot([0.0], [0.0], marker="o", color="#999999", markersize=6)
    if speed:
        along = np.array([-np.cos(angle), -np.sin(angle)]) * np.sign(speed)
        end = tip + along * (0.25 + 0.12 * abs(speed))
        arrow = {"arrowstyle": "-|>", "color": "#0072B2", "linewidth": 1.8}
        axes.annotate("", (end[0], end[1]), (tip[0], tip[1]), arrowprops=arrow)
    axes.set_xlim(-1.45, 1.45)
    axes.set_ylim(-1.3, 1.3)
    axes.set_aspect("equal")
    axes.axis("off")
    text = f"{state['name']}\nθ = {angle:.2g} rad, θ' = {speed:g} rad/s".replace("-", "−")
    axes.set_title(text, fontsize=7.5)


FIGURES: dict[str, Callable[[Any], Figure | None]] = {
    "fig1a": dummies_figure,
    "fig1b": bandwidths_figure,
    "fig2": landscapes_figure,
    "shift": shift_figure,
}


def coverage_figure(study: Coverage, half: Half) -> Figure:
    """Return coverage and median width of one half of a study's problems, an estimator a colour.

    `study` is what was found, and `half` which half is drawn: by kind of problem, by discount and by overlap.
    """
    from matplotlib.figure import Figure

    titles = {"kind": "kind (problems)", "gamma": "discount", "overlap": "overlap: effective share of rows"}
    tables = study.tables[half]
    widths = [max((len(each[column]) for each in tables.values()), default=1) for column in titles]
    figure = Figure(figsize=(13.0, 6.0), layout="constrained", facecolor="white")
    axes = figure.subplots(2, 3, sharex="col", sharey="row", width_ratios=[max(2, width) for width in widths])
    for column, (kind, title) in enumerate(titles.items()):
        names = dict.fromkeys(group["group"] for each in tables.values() for group in each[kind])
        counts = {group["group"]: group["problems"] for each in tables.values() for group in each[kind]}
        for number, (name, each) in enumerate(tables.items()):
            drawn = [group for group in each[kind] if group["problems"]]
            places = np.array([list(names).index(group["group"]) for group in drawn]) + 0.12 * number
            _draw_coverage(axes[0, column], axes[1, column], name, drawn, places)
        labels = [f"{_short(name)}\n({counts[name]})" for name in names]
        axes[1, column].set_xticks(range(len(names)), labels, fontsize=8)
        axes[1, column].set_xlabel(title)
    for each in axes[0]:
        each.axhline(study.level, color="black", linewidth=1.0, linestyle=(0, (1, 2)), zorder=0)
        each.axhspan(*WANTED, color="0.92", zorder=-1)
        each.set_ylim(0.0, 1.03)
    axes[0, 0].set_ylabel("intervals that hold the truth")
    axes[1, 0].set_ylabel("median width, in spreads\nof single episodes' returns")
    if tables:
        axes[0, 0].legend(frameon=False, fontsize=9, loc="lower left")
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    reason = "reporting" if half == "report" else "choosing"
    title = f"Nominal {study.level:.0%} intervals, half for {reason} (hopeless problems apart)"
    figure.suptitle(title, fontsize=11)
    return figure


def _short(name: str) -> str:
    """Return a group's name without what the axis says, on two lines where it has two parts."""
    bare = name.removeprefix("overlap ").removeprefix("γ ").replace(" actions", "D").replace(" action", "D")
    return bare.replace(", ", "\n").replace(" to ", "–")


def _draw_coverage(above: Axes, below: Axes, name: str, groups: list[Line], places: np.ndarray) -> None:
    """Draw the covered share of each group above, and the median width of its intervals below."""
    style: dict[str, Any] = {"color": style_of(name).color, "marker": style_of(name).marker, "label": name}
    style |= {"linestyle": "none"}  # groups have no order that a line could follow
    share = np.array([group["share"] for group in groups])
    ends = np.array([[group["share_low"], group["share_high"]] for group in groups]).T.reshape(2, -1)
    above.errorbar(places, share, yerr=np.abs(ends - share), capsize=3, **style)
    widths = [np.nan if group["median_width"] is None else group["median_width"] for group in groups]
    below.plot(places, widths, **style)
    below.set_yscale("log")
