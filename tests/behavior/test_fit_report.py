import json

import numpy as np
import pytest

from kmifqe.behavior.fit_report import FitReport, calibration, episode_standard_error, restart_standard_error


def report(**changes):
    fields = {
        "components": (10, 20),
        "log_likelihood": np.array([[-1.2, -1.4], [-1.5, -1.5]]),
        "standard_error": np.array([0.01, float("nan")]),
        "chosen": 10,
        "held_out_rows": 2000,
        "held_out_episodes": 20,
        "train_rows": 18_000,
        "steps": 100,
        "low": np.array([-1.0]),
        "high": np.array([1.0]),
        "widened": np.array([False]),
        "on_bound": np.array([0.0]),
        "in_layer": np.array([0.001]),
        "calibration": calibration((np.arange(2000)[:, None] + 0.5) / 2000),
    }
    return FitReport(**fields | changes)


def test_a_clean_fit_warns_of_nothing():
    assert report().warnings == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"on_bound": np.array([0.25])}, "25.0% of the actions sit exactly on a bound"),
        ({"widened": np.array([True])}, "dimension 0 cross the given bounds"),
        ({"calibration": calibration(np.full((2000, 1), 0.5))}, "miscalibrated in dimension 0"),
        ({"held_out_episodes": 2}, "only 2 episode"),
    ],
)
def test_each_doubt_has_its_sentence(changes, named):
    (sentence,) = report(**changes).warnings
    assert named in sentence


def test_the_record_is_plain_json_with_the_table():
    record = json.loads(json.dumps(report().as_record(), allow_nan=False))
    first, second = record["table"]
    assert first["log_likelihood"] == pytest.approx(-1.3)
    assert first["restart_standard_error"] == pytest.approx(0.1)
    assert second["standard_error"] is None
    assert record["chosen"] == 10


def test_standard_error_over_episodes_of_one_row_is_the_usual_one():
    values = np.random.default_rng(0).normal(size=50)
    expected = values.std(ddof=1) / np.sqrt(50)
    assert episode_standard_error(values, np.arange(50)) == pytest.approx(expected)


def test_rows_that_repeat_within_an_episode_add_no_certainty():
    values = np.random.default_rng(1).normal(size=50)
    once = episode_standard_error(values, np.arange(50))
    assert episode_standard_error(np.repeat(values, 8), np.repeat(np.arange(50), 8)) == pytest.approx(once)


def test_one_episode_or_one_restart_has_no_standard_error():
    assert np.isnan(episode_standard_error(np.arange(5.0), np.zeros(5)))
    assert restart_standard_error(np.array([1.0])) is None
