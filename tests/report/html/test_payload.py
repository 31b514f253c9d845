"""What the scripts get: numbers they can decode, few enough to embed."""

import base64
import json
from dataclasses import replace

import numpy as np

from kmifqe.report.html.page import report_page
from kmifqe.report.html.payload import MOST_RECORDS, landscape_payload, run_payload
from kmifqe.report.html.source import read_run
from report.html.small import small_estimate, small_landscape, small_run


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


def test_the_embedded_network_gives_the_surfaces_q():
    landscape = small_landscape()
    payload = landscape_payload(landscape, 10**6)
    points = landscape.points
    for surface, embedded in zip(landscape.surfaces, payload["surfaces"]):
        rows, from_states, w2, b2, w3, b3, *metrics = decoded(embedded, 1, len(points), 2)
        z = (points.targets - embedded["shift"]) / embedded["scale"]
        act = np.tanh if embedded["hidden"] == "tanh" else lambda x: np.maximum(x, 0)
        q = (act(act(from_states + z @ rows) @ w2 + b2) @ w3 + b3)[:, 0] * embedded["seeds"][1]["unit"]
        np.testing.assert_allclose(q, surface.q(1, points.states, points.targets), rtol=1e-5)
        if metrics:
            np.testing.assert_array_equal(metrics[0], surface.metrics[1])


def test_seeds_go_before_estimators_where_room_is_short():
    landscape = small_landscape()
    both = landscape_payload(landscape, 10**6)
    sizes = [len(surface["seeds"][0]["numbers"]) for surface in both["surfaces"]]
    one_seed = landscape_payload(landscape, sum(sizes) + 8)
    assert [len(surface["seeds"]) for surface in one_seed["surfaces"]] == [1, 1]
    one_left = landscape_payload(landscape, sizes[0] + 8)
    assert [surface["estimator"] for surface in one_left["surfaces"]] == ["kmifqe"]
    assert one_left["left_out"] == ["fqe"]


def test_a_page_stays_below_three_megabytes(tmp_path):
    large = small_landscape(action_dim=17, hidden=256, state_dim=376, points=8)
    identity = replace(large.surfaces[0], estimator="kmifqe-identity")
    large = replace(large, surfaces=(large.surfaces[0], identity, large.surfaces[1]))
    estimates = [small_estimate("kmifqe"), small_estimate("kmifqe") | {"estimator": "kmifqe-identity"}]
    long = small_estimate("fqe")
    steps = list(range(1, 5001))
    long["trajectory"] = {"step": steps, "value": [[-3.123456789] * 2] * len(steps)}
    run = read_run(small_run(tmp_path, large, estimates=[*estimates, long]))
    for runs in ([run], [run] * 4):
        assert len(report_page(runs).encode()) < 3_000_000


def test_long_trajectories_are_thinned_and_keep_their_ends(tmp_path):
    long = small_estimate("fqe")
    steps = list(range(1, 1002))
    long["trajectory"] = {"step": steps, "value": [[float(step)] * 2 for step in steps]}
    told = run_payload(read_run(small_run(tmp_path, estimates=[long])))["estimates"][0]
    assert len(told["recorded"]) == MOST_RECORDS
    assert (told["recorded"][0], told["recorded"][-1]) == (1, 1001)
    assert told["series"]["value"][-1] == [1001.0, 1001.0]


def test_numbers_that_do_not_exist_and_measurements_that_do_not_fit_are_left_out(tmp_path):
    estimate = small_estimate("kmifqe")
    estimate["measurements"] |= {"weight_histogram": [1.0, "two"], "distance_edges": [0.0, float("nan")]}
    payload = run_payload(read_run(small_run(tmp_path, estimates=[estimate], truth="not known")))
    assert payload["weights"] == []
    assert payload["overlap"] is None
    assert payload["references"] == []
    json.dumps(payload, allow_nan=False)
