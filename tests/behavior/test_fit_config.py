import pytest

from kmifqe.behavior import FitConfig
from kmifqe.errors import InputError


def test_defaults_are_the_papers_counts_and_share():
    config = FitConfig()
    assert config.components == (10, 20, 30, 40)
    assert config.held_out == 0.1
    assert config.hidden == (256, 256)


def test_a_large_log_is_seen_five_times():
    assert FitConfig().most_steps(54_000) == 1500
    assert FitConfig().most_steps(900_000) * FitConfig().batch == pytest.approx(5 * 900_000, rel=1e-3)
    assert FitConfig(steps=7).most_steps(900_000) == 7


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"components": ()}, "components is"),
        ({"components": (0, 10)}, "components is"),
        ({"held_out": 1.0}, "held_out is 1.0"),
        ({"layer": 0.0}, "layer is 0.0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
    ],
)
def test_wrong_settings_are_named(settings, named):
    with pytest.raises(InputError, match=named):
        FitConfig(**settings)
