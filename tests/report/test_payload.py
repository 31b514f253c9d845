"""What the scripts get: numbers they can decode, few enough to embed."""

import base64
import json
from dataclasses import replace

import msgspec
import numpy as np

from kmifqe.io.serialize import to_json
from kmifqe.report.page import render_page
from kmifqe.report.payload import MOST_RECORDS, landscape_numbers, run_numbers
from kmifqe.trust.landscape import write_landscape
from report.small import small_estimate, small_landscape, small_result


def decoded(surface, seed, points, dimension):
    """Return the embedded arrays as network.js takes them apart."""
    numbers = np.frombuffer(base64.b64decode(surface["seeds"][seed]["numbers"]), "<f4")
    shapes, inputs = [(dimension, surface["sizes"][0]), (points, surface["sizes"][0])], surface["sizes"][0]
    for outputs in surface["sizes"][1:]:
        shapes += [(inputs, outputs), (outputs,)]
        inputs = outputs
    if surface["seeds"][seed]["metrics"]:
        shapes.append((points, dimension, dimension))
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    assert ends[-1] == len(numbers)
    return [part.reshape(shape) for part, shape in zip(np.split(numbers, ends[:-1]), shapes)]


def q_of(surface, seed, states, actions, low, high):
    """Return Q as a surface documents it."""
    actions = np.clip(actions, low, high) if surface.cut_actions else actions
    x = (np.concatenate([states, actions], axis=1) - surface.shift) / surface.scale
    *hidden, (w, b) = [(w[seed], b[seed]) for w, b in zip(surface.weights, surface.biases)]
    for w_hidden, b_hidden in hidden:
        x = x @ w_hidden + b_hidden
        x = np.tanh(x) if surface.hidden == "tanh" else np.maximum(x, 0.0)
    return (x @ w + b)[:, 0] * surface.unit[seed]


def test_the_embedded_network_gives_the_surfaces_q():
    landscape = small_landscape()
    numbers = landscape_numbers(landscape, 10**6)
    points = landscape.points
    for surface, embedded in zip(landscape.surfaces, numbers["surfaces"]):
        rows, from_states, w2, b2, w3, b3, *metrics = decoded(embedded, 1, len(points), 2)
        actions = 1.5 * points.targets
        cut = actions if embedded["action_box"] is None else np.clip(actions, *embedded["action_box"])
        z = (cut - embedded["shift"]) / embedded["scale"]
        act = np.tanh if embedded["hidden"] == "tanh" else lambda x: np.maximum(x, 0)
        q = (act(act(from_states + z @ rows) @ w2 + b2) @ w3 + b3)[:, 0] * embedded["seeds"][1]["unit"]
        expected = q_of(surface, 1, points.states, actions, landscape.low, landscape.high)
        np.testing.assert_allclose(q, expected, rtol=1e-5)
        if metrics:
            np.testing.assert_array_equal(metrics[0], surface.metrics[1])


def test_seeds_go_before_estimators_where_room_is_short():
    landscape = small_landscape()
    both = landscape_numbers(landscape, 10**6)
    sizes = [len(surface["seeds"][0]["numbers"]) for surface in both["surfaces"]]
    one_seed = landscape_numbers(landscape, sum(sizes) + 8)
    assert [len(surface["seeds"]) for surface in one_seed["surfaces"]] == [1, 1]
    one_left = landscape_numbers(landscape, sizes[0] + 8)
    assert [surface["estimator"] for surface in one_left["surfaces"]] == ["kmifqe"]
    assert one_left["left_out"] == ["fqe"]


def test_a_page_stays_below_three_megabytes(tmp_path):
    large = small_landscape(action_dim=17, hidden=256, state_dim=376, points=8)
    identity = replace(large.surfaces[0], estimator="kmifqe-identity")
    large = replace(large, surfaces=(large.surfaces[0], identity, large.surfaces[1]))
    write_landscape(tmp_path / "landscape.npz", large)
    long = small_estimate(
        "fqe", recorded_steps=np.arange(1, 5001), trajectory=np.full((5000, 2), -3.123456789)
    )
    kernel = small_estimate("kmifqe")
    result = small_result((kernel, replace(kernel, estimator="kmifqe-identity"), long))
    for count in (1, 4):
        page = render_page([result] * count, [tmp_path] * count)
        assert "data-explorer>" in page
        assert len(page.encode()) < 3_000_000


def test_long_trajectories_are_thinned_and_keep_their_ends():
    steps = np.arange(1, 1002)
    long = small_estimate("fqe", recorded_steps=steps, trajectory=np.stack([steps, steps], axis=1) * 1.0)
    numbers = run_numbers(small_result((long,)))["estimates"][0]
    assert len(numbers["recorded"]) == MOST_RECORDS
    assert (numbers["recorded"][0], numbers["recorded"][-1]) == (1, 1001)
    assert numbers["series"]["value"][-1].tolist() == [1001.0, 1001.0]


def test_numbers_that_do_not_exist_are_null():
    lost = small_estimate("fqe", values=(np.nan, np.inf))
    numbers = json.loads(to_json(run_numbers(small_result((lost,), references={"truth": np.nan}))))
    assert numbers["references"] == []
    assert numbers["estimates"][0]["value"] is None
    assert numbers["estimates"][0]["values"] == [None, None]
    assert numbers["estimates"][0]["series"]["value"][0] == [None, None]


def test_histograms_that_do_not_fit_their_edges_are_left_out():
    estimate = small_estimate("kmifqe")
    found = estimate.measurements
    wrong = msgspec.structs.replace(
        found,
        weights=msgspec.structs.replace(found.weights, weight_histogram=[1.0]),
        overlap=msgspec.structs.replace(found.overlap, distance_edges=[0.0]),
    )
    numbers = run_numbers(small_result((replace(estimate, measurements=wrong),)))
    assert numbers["weights"] == []
    assert numbers["overlap"] is None
