"""What KMIFQE's settings refuse."""

from __future__ import annotations

import pytest

from kmifqe.errors import InputError
from kmifqe.estimators import KMIFQEConfig


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"metric": "euclidean"}, "metric is 'euclidean'; expected one of learned, identity"),
        ({"bias": "gone"}, "bias is 'gone'; expected one of ignored, subtracted"),
        ({"decay_steps": -1}, "decay_steps is -1; expected 0 or more, finite"),
        ({"bandwidth": 0.0}, r"bandwidth is 0\.0; expected a positive number"),
        ({"bandwidth": -1.0}, r"bandwidth is -1\.0; expected a positive number"),
        ({"bandwidth": float("nan")}, "bandwidth is nan; expected a positive number"),
        ({"clip": (2.0, 1.0)}, r"clip is \[2\.0, 1\.0\]; expected 0 <= low < high"),
        ({"clip": (-1.0, 1.0)}, r"clip is \[-1\.0, 1\.0\]; expected 0 <= low < high"),
        ({"clip": (0.0, float("nan"))}, r"clip is \[0\.0, nan\]; expected 0 <= low < high"),
        (
            {"bandwidth_bounds": (0.0, 1.0)},
            r"bandwidth_bounds is \[0\.0, 1\.0\]; expected 0 < low < high, finite",
        ),
        ({"bandwidth_period": 0}, "bandwidth_period is 0; expected a whole number of at least 1"),
        ({"metric_period": 0}, "metric_period is 0; expected a whole number of at least 1"),
        ({"envelope_period": -1}, "envelope_period is -1; expected 0 or more"),
        ({"tau": -0.1}, r"tau is -0\.1; expected 0 <= tau <= 1"),
        ({"tau": 0.1, "metric_period": 2}, r"tau is 0\.1 and metric_period 2; expected metric_period = 1"),
        ({"units": "dollars"}, "units is 'dollars'; expected one of returns, rewards"),
        ({"precision": "float64"}, "precision is 'float64'; expected one of mixed, float32"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        KMIFQEConfig(**settings)
