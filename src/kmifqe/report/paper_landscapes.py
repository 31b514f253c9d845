"""Figure 2 from its records: Q over torque and dummy, KMIFQE with its kernel beside FQE and the exact Q."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kmifqe.report.paper_tables import METHOD_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
MAP = "cividis"  # even in lightness, and the same to every kind of colour vision
TARGET = {"marker": "o", "s": 46, "color": "#D55E00", "edgecolors": "black", "linewidths": 0.9, "zorder": 4}
LEVELS = 14
MARGIN = 0.35  # half action ranges around the box: a kernel at a bound reaches out of it


def landscapes_figure(records: Sequence[Record]) -> Figure | None:
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


def _draw_surface(axes: Axes, record: Record, surface: np.ndarray, levels: np.ndarray) -> Any:
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


def _draw_kernel(axes: Axes, record: Record, state: int) -> None:
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


def _draw_pendulum(axes: Axes, state: Record) -> None:
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


def _label(grid: Any, shown: Sequence[Record]) -> None:
    names = [METHOD_NAMES[record["method"]] for record in shown]
    for axes, name in zip(grid[0][1:], [*names, "exact"]):
        axes.set_title(name, fontsize=10)
    for axes in grid[-1][1:]:
        axes.set_xlabel("torque a₁, N m", fontsize=8)
    for row in grid:
        row[1].set_ylabel("dummy a₂", fontsize=8)


def _title(record: Record) -> str:
    rows = record["settings"]["log"]["rows"]
    return (
        f"Q over torque and dummy, normalised: one training on one log of {rows:,} rows · preset "
        f"{record['preset']}\norange: the target's action; black: KMIFQE's kernel at one bandwidth, and its axes"
    )


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)
