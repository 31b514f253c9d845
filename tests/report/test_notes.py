import numpy as np
import pytest

from kmifqe.estimators.base import Estimate
from kmifqe.report.notes import convergence_notes


def estimate(trajectory, gamma=0.9, **config):
    trajectory = np.asarray(trajectory, float)
    return Estimate(
        estimator="kmifqe",
        config=config,
        gamma=gamma,
        seeds=tuple(range(trajectory.shape[1])),
        steps=1000,
        values=trajectory[-1],
        recorded_steps=np.linspace(0, 1000, len(trajectory) + 1)[1:].astype(int),
        trajectory=trajectory,
        infos={},
        seconds=1.0,
        device="cpu",
    )


FLAT = np.tile([-4.0, -3.99, -3.98], (8, 1))


def test_a_settled_estimate_has_no_notes():
    assert convergence_notes(estimate(FLAT, target_period=20)) == []


def test_too_few_copies_are_counted():
    (note,) = convergence_notes(estimate(FLAT, target_period=100))
    assert "10 target copies let at most 65% of the value arrive at gamma 0.9" in note


def test_a_value_that_still_moves_is_named():
    moving = FLAT + np.linspace(1, 0, 8)[:, None]
    (note,) = convergence_notes(estimate(moving))
    assert note.startswith(f"V̂ moved by {moving[-1].mean() - moving[5].mean():+.3f}")


@pytest.mark.parametrize("bad, count", [([np.nan, -4, -4], 1), ([np.inf, np.nan, -4], 2)])
def test_a_seed_that_diverged_is_named(bad, count):
    (note,) = convergence_notes(estimate(np.vstack([FLAT, bad])))
    assert f"{count} of 3 seeds" in note


def test_one_seed_can_be_judged_too():
    assert convergence_notes(estimate(FLAT[:, :1], target_period=20)) == []
