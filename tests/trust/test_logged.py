"""A policy beside the controller that made the log: values in closed form, and what is said of them."""

from dataclasses import replace

import numpy as np
import pytest

from kmifqe.trust.interval import interval_of
from kmifqe.trust.logged import LoggedController, compared_with_logged, comparison_sentence, logged_value
from kmifqe.trust.verdict import Verdict
from trust.fitted import measured, sound_fit

TRUSTED = Verdict("trustworthy", ())


def controller(mean: float, *, shift: float = 0.0) -> LoggedController:
    """Return a logged controller whose episodes were worth `mean` on average, and scatter by 0.1."""
    rng = np.random.default_rng(0)
    returns = mean + 0.1 * rng.standard_normal(400)
    sound = measured(*sound_fit())
    moves = 0.005 * rng.standard_normal(len(sound.measurements.chance.moves))
    return LoggedController(returns, returns.mean() + shift + np.zeros(len(sound.seeds)), moves)


def test_the_logged_controllers_value_is_the_mean_return_with_students_interval() -> None:
    found = logged_value(np.array([1.0, 2.0, 3.0, 6.0]), 0.95)
    assert (found.value, found.episodes) == (3.0, 4)
    half = 3.182446 * np.std([1, 2, 3, 6], ddof=1) / 2.0
    assert (found.low, found.high) == (pytest.approx(3 - half), pytest.approx(3 + half))


@pytest.mark.parametrize("apart, answer", [(-5.0, "better"), (5.0, "worse"), (0.0, "cannot tell")])
def test_a_difference_beyond_its_interval_is_told(apart: float, answer: str) -> None:
    sound = measured(*sound_fit())
    interval = interval_of(sound)
    assert interval is not None
    found = compared_with_logged(sound, TRUSTED, controller(sound.value + apart * interval.width), 0.95)
    assert found.answer == answer
    assert found.low < found.difference < found.high
    assert found.difference == pytest.approx(sound.value - found.logged.value)
    said = comparison_sentence(found, 0.95)
    assert {"better": "is better;", "worse": "is worse;"}.get(answer, "cannot be told;") in said


def test_the_weights_of_the_networks_do_not_move_the_difference() -> None:
    sound = measured(*sound_fit())
    plain, moved = (
        compared_with_logged(sound, TRUSTED, controller(sound.value, shift=shift), 0.95)
        for shift in (0.0, 0.3)
    )
    assert moved.difference == pytest.approx(plain.difference)


def test_a_value_that_is_not_to_be_used_is_no_better_than_anything() -> None:
    sound = measured(*sound_fit())
    found = compared_with_logged(sound, Verdict("do not use", ("It diverged.",)), controller(-1e3), 0.95)
    assert (found.answer, found.is_usable) == ("cannot tell", False)
    assert "not to be used" in comparison_sentence(found, 0.95)


def test_one_network_tells_nothing_of_a_difference() -> None:
    sound = measured(*sound_fit())
    alone = replace(sound, values=np.array([1.0, *[np.nan] * (len(sound.values) - 1)]))
    found = compared_with_logged(alone, TRUSTED, controller(0.0), 0.95)
    assert found.answer == "cannot tell"
    assert np.isnan(found.difference)
