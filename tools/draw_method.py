"""Draw the two pictures of docs/concepts/method.md: python tools/draw_method.py"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

OUT = Path(__file__).parents[1] / "docs" / "figures"
plt.rcParams.update(
    {"svg.hashsalt": "kmifqe", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
)


def _saved(figure: plt.Figure, name: str) -> None:
    figure.savefig(OUT / name, dpi=130, bbox_inches="tight", metadata={"Software": None})


def main() -> None:
    """Write both pictures."""
    rng = np.random.default_rng(0)
    a = np.linspace(-1, 1, 400)
    logged, target, h = 0.35 * rng.standard_normal(40) - 0.25, 0.35, 0.14
    figure, axis = plt.subplots(figsize=(6.4, 2.8))
    axis.plot(
        a, np.exp(-0.5 * ((a + 0.25) / 0.35) ** 2), color="#888888", label="density of the logged actions, μ"
    )
    axis.plot(
        a, np.exp(-0.5 * ((a - target) / h) ** 2), color="#0072b2", label="kernel around the target's action"
    )
    weights = np.exp(-0.5 * ((logged - target) / h) ** 2 + 0.5 * ((logged + 0.25) / 0.35) ** 2)
    axis.scatter(logged, np.full(40, -0.08), s=8 + 60 * weights / weights.max(), color="#d55e00", alpha=0.7)
    axis.axvline(target, color="#0072b2", linestyle=":")
    axis.set(xlim=(-1, 1), ylim=(-0.2, 1.15), yticks=[], xlabel="action")
    axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8)
    _saved(figure, "method_weights.png")

    x, y = np.meshgrid(np.linspace(-1, 1, 200), np.linspace(-1, 1, 200))
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.0), sharey=True)
    turn = np.linspace(0, 2 * np.pi, 200)
    for axis, (wide, high), title in zip(
        axes, ((0.3, 0.3), (0.75, 0.12)), ("one width for all", "a learned metric")
    ):
        axis.contourf(x, y, -((y - 0.1) ** 2), 14, cmap="cividis")
        axis.plot(wide * np.cos(turn), 0.1 + high * np.sin(turn), color="white", linewidth=2)
        axis.plot(0, 0.1, "o", color="white")
        axis.set(title=title, xlabel="action 1: changes nothing", aspect="equal", xticks=[], yticks=[])
    axes[0].set_ylabel("action 2: matters")
    _saved(figure, "method_metric.png")


if __name__ == "__main__":
    main()
