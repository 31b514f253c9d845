import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kmifqe.estimators.base import Estimate
from kmifqe.mdp.problem import RowCounts
from kmifqe.report.figures import bandwidth_figure, save_figure, save_figures, trajectories_figure
from kmifqe.report.result import Question, Result
from report.small import small_question, small_result


def estimate(name, trajectory, **infos):
    trajectory = np.asarray(trajectory, float)
    return Estimate(
        estimator=name,
        config={},
        gamma=0.5,
        seeds=tuple(range(trajectory.shape[1])),
        steps=10 * len(trajectory),
        values=trajectory[-1],
        recorded_steps=10 * np.arange(1, len(trajectory) + 1),
        trajectory=trajectory,
        infos={key: np.full(trajectory.shape, value) for key, value in infos.items()},
        seconds=1.0,
        device="cpu",
    )


def test_trajectories_draw_what_is_known_and_show_the_reference(tmp_path):
    late = estimate("sr-dice", [[np.nan, np.nan], [1.0, 2.0], [1.5, 2.0]])
    figure = trajectories_figure([estimate("fqe", [[9.0], [2.0], [1.0]]), late], {"truth": 1.2})
    left, right = figure.axes
    lines = {line.get_label(): line for line in left.get_lines()}
    np.testing.assert_allclose(lines["sr-dice"].get_xdata(), [2 / 3, 1.0])
    np.testing.assert_allclose(lines["sr-dice"].get_ydata(), [1.5, 1.75])
    low, high = left.get_ylim()
    assert low < 1.0 < 2.0 < high < 9.0  # the transient may run off, the end may not
    assert any(text.get_text() == "truth" for text in right.texts)
    save_figure(figure, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


def test_a_run_without_any_value_still_gives_a_figure(tmp_path):
    save_figure(trajectories_figure([estimate("fqe", [[np.nan], [np.nan]])]), tmp_path / "figure.png")


def test_bandwidth_is_drawn_for_kernel_estimators_only():
    assert bandwidth_figure([estimate("fqe", [[1.0]])], rows=10) is None
    figure = bandwidth_figure([estimate("kmifqe", [[1.0], [1.0]], h=0.3, ess=5.0)], rows=10)
    left, right = figure.axes
    assert left.get_lines()[0].get_ydata().tolist() == [0.3, 0.3]
    assert right.get_lines()[0].get_ydata().tolist() == [0.5, 0.5]


def test_a_seed_that_diverged_leaves_the_figures_of_the_others(tmp_path):
    pictures = []
    for name, seeds in (("mixed", [1.0, np.nan, 3.0]), ("others", [1.0, 3.0])):
        (tmp_path / name).mkdir()
        run = estimate("kmifqe", [seeds, seeds, seeds], h=0.3, ess=5.0)
        question = Question("log", "policy", "none", 0.5, RowCounts(10, 10, 10, 0, 0, 0, 1))
        save_figures(Result.judged([run], question), (tmp_path / name).joinpath)
        pictures.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert pictures[0] == pictures[1]
    assert set(pictures[0]) == {"trajectories.png", "bandwidth.png"}


STYLES = {
    "a notebook's backend": ("module://matplotlib_inline.backend_inline", ""),
    "no backend at all": ("nonsense", ""),
    "a backend that opens windows, and LaTeX": (
        "tkagg",
        "text.usetex: True\nbackend: nonsense\nsavefig.format: pdf\n",
    ),
}
DRAW = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from kmifqe.report.figures import save_figures
from report.small import small_result
save_figures(small_result(), Path(sys.argv[2]).joinpath)
import matplotlib
print(matplotlib.rcParams["text.usetex"])
"""


@pytest.mark.parametrize("style", STYLES)
def test_figures_are_drawn_alike_whatever_style_the_user_has_chosen(tmp_path, style):
    backend, rc = STYLES[style]
    (tmp_path / "matplotlibrc").write_text(rc)
    chosen = {"MPLBACKEND": backend, "MATPLOTLIBRC": str(tmp_path / "matplotlibrc"), "PATH": ""}
    command = [sys.executable, "-c", DRAW, Path(__file__).parents[1], tmp_path]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | chosen, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str("usetex" in rc)]  # the user's own style is theirs again
    plain = tmp_path / "plain"
    plain.mkdir()
    save_figures(small_result(), plain.joinpath)
    for name in ("trajectories.png", "bandwidth.png"):
        assert (tmp_path / name).read_bytes() == (plain / name).read_bytes()


def test_a_name_that_is_no_utf8_can_be_drawn(tmp_path):
    result = small_result(question=small_question(data="l\udcffog.npz", policy="a\x1b[31m\ud800"))
    save_figures(result, tmp_path.joinpath)
    assert (tmp_path / "trajectories.png").stat().st_size > 1000
