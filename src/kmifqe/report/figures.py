"""Estimates as figures, drawn without a display."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kmifqe.errors import printable
from kmifqe.estimators.base import Estimate
from kmifqe.estimators.registry import all_entries
from kmifqe.io.files import whole_file
from kmifqe.trust.checks.training import without_diverged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kmifqe.report.result import Result

# Estimators take these in the order of the registry, so that they are told apart without colours too.
LINES: tuple[Any, ...] = ("-", (0, (8, 2)), "--", "-.", ":", (0, (3, 1, 1, 1)))
MARKERS = ("o", "P", "s", "^", "D", "v")


class Style(NamedTuple):
    """How an estimator is drawn in every figure."""

    color: str
    linestyle: Any
    marker: str


def style_of(estimator: str) -> Style:
    """Return the style of an estimator: the colour of its registry entry, and a line and marker of its own."""
    for i, entry in enumerate(all_entries()):
        if entry.name == estimator:
            return Style(entry.color, LINES[i % len(LINES)], MARKERS[i % len(MARKERS)])
    return Style("black", "-", "o")


def trajectories_figure(
    estimates: list[Estimate], references: dict[str, float] | None = None, *, title: str = ""
) -> Figure:
    """Return V̂ against steps for each of `estimates` (mean and range over seeds), beside where each ended.

    `references` are values known otherwise, drawn as lines; `title` stands above, by default nothing.
    """
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
    """Return bandwidth and effective rows against steps, or None if no estimator has them."""
    from matplotlib.figure import Figure

    kernel = [estimate for estimate in estimates if "h" in estimate.infos]
    if not kernel:
        return None
    figure = Figure(figsize=(9.5, 3.2), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    for estimate in kernel:
        style = _line(estimate.estimator)
        left.plot(estimate.recorded_steps, estimate.infos["h"].mean(axis=1), **style)
        right.plot(estimate.recorded_steps, estimate.infos["ess"].mean(axis=1) / rows, **style)
    left.set_ylabel("bandwidth h, half action ranges")
    right.set_ylabel("effective rows, share of all")
    right.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.set_xlabel("steps")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def save_figures(result: Result, place: Callable[[str], Path]) -> None:
    """Write trajectories.png, and bandwidth.png where an estimator of `result` has a bandwidth.

    `place` returns where a file of this name goes. The figures look the same whatever backend and style the user
    has chosen for figures of their own. A seed that diverged is not drawn: it has no place on the axes, and would
    take the others' means with it.
    """
    estimates = [without_diverged(estimate) for estimate in result.estimates]
    title = printable(f"{result.question.policy} judged from {result.question.data}")
    with fixed_style():
        trajectories = trajectories_figure(estimates, result.references, title=title)
        save_figure(trajectories, place("trajectories.png"))
        bandwidths = bandwidth_figure(estimates, result.question.rows.in_sample)
        if bandwidths is not None:
            save_figure(bandwidths, place("bandwidth.png"))


@contextmanager
def fixed_style() -> Iterator[None]:
    """Draw with matplotlib's own defaults while the block runs, whatever its environment and its style files say."""
    if "matplotlib" not in sys.modules:
        _import_matplotlib()
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def _import_matplotlib() -> None:
    """Import matplotlib without the backend of the environment: one that is not installed lets the import fail.

    A backend that matplotlib knows is chosen afterwards, so that the user's own figures get it.
    """
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if backend is not None:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = backend


def save_figure(figure: Figure, path: Path) -> None:
    """Write `figure` whole or not at all; the suffix chooses the format."""
    with whole_file(path) as partial, warnings.catch_warnings():
        # A name with an emoji: the font draws a box for it, which nobody can mend.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(partial, dpi=160)


def _line(estimator: str) -> dict[str, Any]:
    style = style_of(estimator)
    return {"color": style.color, "linestyle": style.linestyle, "label": estimator}


def _draw_trajectory(axes: Axes, estimate: Estimate) -> None:
    known = np.isfinite(estimate.trajectory).all(axis=1)
    share, values = estimate.recorded_steps[known] / estimate.steps, estimate.trajectory[known]
    style = _line(estimate.estimator)
    axes.plot(share, values.mean(axis=1), **style)  # type: ignore[arg-type]
    axes.fill_between(share, values.min(axis=1), values.max(axis=1), color=style["color"], alpha=0.15)


def _draw_end(axes: Axes, position: int, estimate: Estimate) -> None:
    color, _, marker = style_of(estimate.estimator)
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
