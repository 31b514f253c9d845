import numpy as np
import pytest

from kmifqe.experiments.paper_figures import (
    bandwidths_figure,
    dummies_figure,
    landscapes_figure,
    save_paper_figures,
    shift_figure,
)
from kmifqe.experiments.records import Place
from kmifqe.report.figures import style_of

MOMENTS = ("rmse", "bias", "bias_squared", "variance")
AXIS = np.array([-2.0, 0.0, 2.0])


def told(value, error=0.01, bandwidth=None):
    moments = {name: value for name in MOMENTS} | {f"{name}_error": error for name in MOMENTS}
    rest = {"diverged": 0, "training_variance": None, "standard_error": error}
    return moments | rest | {"bandwidth": bandwidth}


def record(experiment, row, method, **fields):
    settings = {"logs": 3, "seeds_per_log": 2, "log": {"rows": 1_000}}
    trials = {"values": np.zeros((3, 2)), "truths": [0.0] * 3, "episodes": 1, "fit_seconds": []}
    place = Place("smoke", experiment, row, method)
    return place.record(settings, 1.0, **trials | fields)


def errors(value, **known):
    return {"errors": {"logged_first_states": told(value, **known)}}


def curves(axes):
    return {
        bars.get_label(): np.array(bars.lines[0].get_xydata())
        for bars in axes.containers
        if bars.get_label() in ("KMIFQE-paper", "w/o metric", "FQE-paper")
    }


def fig1a(*methods):
    return [
        record("fig1a", f"dummies-{n}", method, dummies=n, **errors(0.1 * n))
        for method in methods
        for n in (4, 1)
    ]


def fig1b():
    sweep = [told(0.1, bandwidth=0.1), told(None, None, 0.2), told(0.4, bandwidth=0.4)]  # one diverged at 0.2
    return [
        record("fig1b", "fixed", "kmifqe-paper", dummies=2, by_bandwidth=sweep, h=None),
        record(
            "fig1b",
            "learned",
            "kmifqe-paper",
            dummies=2,
            h=np.array([[0.2, 0.4], [0.3, 0.3]]),
            **errors(0.05),
        ),
    ]


def shift():
    pairs = [(0.1, 1_000, ["width"]), (0.3, 1_000, ["width", "rows"]), (0.3, 100, ["rows"])]
    return [
        record("shift", f"width-{w}-rows-{n}", "fqe-paper", width=w, rows=n, panels=panels, **errors(w))
        for w, n, panels in pairs
    ]


def test_dummies_are_drawn_in_order_each_method_in_its_colour():
    figure = dummies_figure(fig1a("kmifqe-paper", "kmifqe-identity"))
    left, right = figure.axes
    np.testing.assert_allclose(curves(left)["KMIFQE-paper"], [[1, 0.1], [4, 0.4]])
    assert set(curves(right)) == {"KMIFQE-paper", "w/o metric"}
    assert left.get_ylim() == right.get_ylim()
    colors = {bars.get_label(): bars.lines[0].get_color() for bars in left.containers}
    assert colors == {
        "KMIFQE-paper": style_of("kmifqe-paper").color,
        "w/o metric": style_of("kmifqe-identity").color,
    }
    assert "3 logs of 1,000 rows, 2 trainings on each" in figure.get_suptitle()


def test_a_bandwidth_where_a_trial_diverged_is_left_out_and_the_learned_one_is_marked():
    axes = bandwidths_figure(fig1b()).axes[0]
    np.testing.assert_allclose(curves(axes)["KMIFQE-paper"], [[0.1, 0.1], [0.4, 0.4]])
    marks = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    np.testing.assert_allclose(marks["KMIFQE-paper, learned h"], [[0.3, 0.05]])


def test_the_middle_of_the_cross_is_in_both_panels_of_the_shift():
    left, right = shift_figure(shift()).axes
    np.testing.assert_allclose(curves(left)["FQE-paper"], [[0.1, 0.1], [0.3, 0.3]])
    np.testing.assert_allclose(curves(right)["FQE-paper"], [[100, 0.3], [1_000, 0.3]])
    assert left.get_title() == "at 1,000 rows"


@pytest.mark.parametrize("draw", [dummies_figure, bandwidths_figure, shift_figure])
def test_no_records_no_figure(draw):
    assert draw([]) is None


def test_each_experiment_with_records_gives_a_file(tmp_path):
    written = save_paper_figures([*fig1a("kmifqe-paper"), *shift()], tmp_path)
    assert written == [tmp_path / "fig1a.png", tmp_path / "shift.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def landscape(method, q, **more):
    return record(
        "fig2",
        "one-dummy",
        method,
        axis=AXIS,
        states=[{"name": "upright", "angle": 0.0, "speed": 1.0}],
        target_torque=np.array([0.5]),
        exact=np.array([[0.0, 1.0, 2.0]]),
        q=q,
        **more,
    )


def test_the_kernel_reaches_one_bandwidth_along_each_axis():
    q = np.arange(9.0).reshape(1, 3, 3)
    metric = np.array([[[4.0, 0.0], [0.0, 0.25]]])
    figure = landscapes_figure(
        [landscape("fqe-paper", q), landscape("kmifqe-paper", q, metric=metric, h=np.array([[0.2]]))]
    )
    by_title = {axes.get_title(): axes for axes in figure.axes}
    contour = by_title["KMIFQE-paper"].get_lines()[0].get_xydata()
    # h = 0.2 half ranges are 0.4 of torque: halved along the torque (A = 4), doubled along the dummy (A = 1/4).
    np.testing.assert_allclose(contour.max(axis=0), [0.5 + 0.2, 0.8], atol=2e-3)
    np.testing.assert_allclose(contour.min(axis=0), [0.5 - 0.2, -0.8], atol=2e-3)
    assert not by_title["FQE-paper"].get_lines()
    assert "exact" in by_title


def test_a_method_without_a_surface_is_left_out():
    assert landscapes_figure([landscape("fqe-paper", None)]) is None
    assert landscapes_figure([]) is None
