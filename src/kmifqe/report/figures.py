"""Estimates as figures, drawn without a display."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.io.files import whole_file
from kmifqe.trust.checks.training import without_diverged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by every kind of colour vision, and in grey by their lightness.
COLORS = {
    "kmifqe": "#0072B2",
    "kmifqe-best": "#D55E00",
    "kmifqe-identity": "#E69F00",
    "fqe": "#009E73",
    "sr-dice": "#CC79A7",
}
STYLES: dict[str, Any] = {
    "kmifqe": "-",
    "kmifqe-best": (0, (8, 2)),  # long dashes
    "kmifqe-identity": "--",
    "fqe": "-.",
    "sr-dice": ":",
}
MARKERS = {"kmifqe": "o", "kmifqe-best": "P", "kmifqe-identity": "s", "fqe": "^", "sr-dice": "D"}


def trajectories_figure(
    estimates: list[Estimate], references: dict[str, float] | None = None, *, title: str = ""
) -> Figure:
    """Return V̂ against steps for every estimator (mean and range over seeds), beside where each ended."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4.2), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=(2.3, 1), sharey=True)
    for estimate in estimates:
        _draw_trajectory(left, estimate)
    for position, estimate in enumerate(estimates):
        _draw_end(right, position, estimate)
    for label, value in (references or {}).items():
        for axes in (left, right):
            axes.axhline(value, color="black", linewidth=1.0, linestyle=(0, (1, 2)), zorder=0)
        right.annotate(label, (1.02, value), xycoords=("axes fraction", "data"), fontsize=8, va="center")
    left.set_ylim(*_limits(estimates, list((references or {}).values())))
    left.set_xlabel("share of each estimator's steps")
    left.set_ylabel("V̂, normalised value per step")
    left.legend(frameon=False, fontsize=9, loc="best")
    right.set_xticks(
        range(len(estimates)), [e.estimator for e in estimates], rotation=25, ha="right", fontsize=8
    )
    right.set_xlim(-0.6, len(estimates) - 0.4)
    right.set_title("last step, every seed", fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11, parse_math=False)  # a file may be named a$b$.npz
    return figure


def bandwidth_figure(estimates: list[Estimate], rows: int) -> Figure | None:
    """Return bandwidth and effective sample size against steps, or None if no estimator has them."""
    from matplotlib.figure import Figure

    kernel = [estimate for estimate in estimates if "h" in estimate.infos]
    if not kernel:
        return None
    figure = Figure(figsize=(9.5, 3.2), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    for estimate in kernel:
        style = _style(estimate.estimator)
        left.plot(estimate.recorded_steps, estimate.infos["h"].mean(axis=1), **style)
        right.plot(estimate.recorded_steps, estimate.infos["ess"].mean(axis=1) / rows, **style)
    left.set_ylabel("bandwidth h, half action ranges")
    right.set_ylabel("effective share of the rows")
    right.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.set_xlabel("steps")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def save_figures(
    estimates: list[Estimate],
    rows: int,
    out: Path,
    references: dict[str, float] | None = None,
    *,
    title: str,
) -> None:
    """Write trajectories.png, and bandwidth.png where an estimator has a bandwidth, into `out`.

    A seed that diverged is not drawn: it has no place on the axes, and would take the others' means with it.
    """
    estimates = [without_diverged(estimate) for estimate in estimates]
    save_figure(trajectories_figure(estimates, references, title=title), out / "trajectories.png")
    bandwidths = bandwidth_figure(estimates, rows)
    if bandwidths is not None:
        save_figure(bandwidths, out / "bandwidth.png")


def save_figure(figure: Figure, path: Path) -> None:
    """Write `figure` whole or not at all; the suffix chooses the format."""
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=160)


def _style(name: str) -> dict[str, Any]:
    return {"color": COLORS.get(name, "black"), "linestyle": STYLES.get(name, "-"), "label": name}


def _draw_trajectory(axes: Axes, estimate: Estimate) -> None:
    known = np.isfinite(estimate.trajectory).all(axis=1)
    share, values = estimate.recorded_steps[known] / estimate.steps, estimate.trajectory[known]
    axes.plot(share, values.mean(axis=1), **_style(estimate.estimator))  # type: ignore[arg-type]
    axes.fill_between(
        share,
        values.min(axis=1),
        values.max(axis=1),
        color=COLORS.get(estimate.estimator, "black"),
        alpha=0.15,
    )


def _draw_end(axes: Axes, position: int, estimate: Estimate) -> None:
    color, marker = COLORS.get(estimate.estimator, "black"), MARKERS.get(estimate.estimator, "o")
    jitter = np.linspace(-0.12, 0.12, len(estimate.values)) if len(estimate.values) > 1 else np.zeros(1)
    axes.scatter(
        position + jitter, estimate.values, s=16, color=color, marker=marker, alpha=0.6, linewidths=0
    )
    axes.hlines(estimate.value, position - 0.28, position + 0.28, color=color, linewidth=2)


def _limits(estimates: list[Estimate], references: list[float]) -> tuple[float, float]:
    """Return limits that show the last third of every trajectory; an early transient may run off."""
    shown = [*references]
    for estimate in estimates:
        late = estimate.trajectory[2 * len(estimate.trajectory) // 3 :]
        shown += late[np.isfinite(late)].tolist()
    low, high = min(shown, default=-1.0), max(shown, default=1.0)
    margin = 0.25 * (high - low) or 1.0
    return low - margin, high + margin
