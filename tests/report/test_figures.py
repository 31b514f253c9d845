import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.mdp.problem import RowCounts
from kmifqe.report.figures import bandwidth_figure, save_figure, save_figures, trajectories_figure
from kmifqe.report.result import Question, Result


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
