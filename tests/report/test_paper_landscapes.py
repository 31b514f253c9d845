import numpy as np

from kmifqe.experiments.paper_figures import landscapes_figure

AXIS = [-2.0, 0.0, 2.0]


def record(method, q, **more):
    return {
        "experiment": "fig2",
        "method": method,
        "preset": "smoke",
        "settings": {"log": {"rows": 500}},
        "axis": AXIS,
        "states": [{"name": "upright", "angle": 0.0, "speed": 1.0}],
        "target_torque": [0.5],
        "exact": [[0.0, 1.0, 2.0]],
        "q": q,
        **more,
    }


def test_the_kernel_reaches_one_bandwidth_along_each_axis():
    q = [np.arange(9.0).reshape(3, 3).tolist()]
    metric = [[[4.0, 0.0], [0.0, 0.25]]]
    figure = landscapes_figure([record("fqe", q), record("kmifqe", q, metric=metric, h=[[0.2]])])
    by_title = {axes.get_title(): axes for axes in figure.axes}
    contour = by_title["KMIFQE"].get_lines()[0].get_xydata()
    # h = 0.2 half ranges are 0.4 of torque: halved along the torque (A = 4), doubled along the dummy (A = 1/4).
    np.testing.assert_allclose(contour.max(axis=0), [0.5 + 0.2, 0.8], atol=2e-3)
    np.testing.assert_allclose(contour.min(axis=0), [0.5 - 0.2, -0.8], atol=2e-3)
    assert not by_title["FQE"].get_lines()
    assert "exact" in by_title


def test_a_method_without_a_surface_is_left_out():
    assert landscapes_figure([record("fqe", None)]) is None
    assert landscapes_figure([]) is None
