"""A long fit of the table that was stopped goes on where it was."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from kmifqe.estimators.base import Estimate
from kmifqe.experiments import context as context_module
from kmifqe.experiments.context import Context
from kmifqe.experiments.presets import preset_named
from kmifqe.experiments.records import read_records
from kmifqe.experiments.table1 import MOST_POINTS, run_row, thin_trajectory
from kmifqe.report.watch import Watch


class StoppedError(Exception):
    """Stands in for whatever ends a process."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs FQE on the smallest Pendulum and tells where it began and what it kept."""
    saving_often = partial(context_module.CheckpointFolder, save_seconds=0)
    monkeypatch.setattr(context_module, "CheckpointFolder", saving_often)
    preset = replace(preset_named("smoke"), pendulum_truth_episodes=2)

    def run(results, *, resume, stop_at=None):
        begun = []

        class Stops(Watch):
            def progress(self, progress):
                begun.append(progress.begun)
                if progress.step == stop_at:
                    raise StoppedError

        context = Context(
            preset,
            tmp_path / results,
            tmp_path / "work",
            method="fqe-paper",
            resume=resume,
            watch=Stops(),
        )
        run_row("pendulum", context)
        (record,) = read_records(tmp_path / results)
        return begun[0], record.values.tolist()

    return run


def test_a_stopped_fit_goes_on_where_it_was_and_ends_as_if_never_stopped(run, tmp_path):
    _, whole = run("whole", resume=False)
    with pytest.raises(StoppedError):
        run("stopped", resume=False, stop_at=12)
    (unfinished,) = (tmp_path / "work" / "fits").iterdir()
    begun, values = run("stopped", resume=True)
    assert begun == 11
    assert values == whole
    assert not unfinished.exists()


def test_without_resume_a_stopped_fit_begins_again(run):
    with pytest.raises(StoppedError):
        run("stopped", resume=False, stop_at=12)
    begun, _ = run("stopped", resume=False)
    assert begun == 0


def estimate(records, seeds=10, seed=0):
    rng = np.random.default_rng(seed)
    trajectory = rng.standard_normal((records, seeds)).astype(np.float32)
    return Estimate(
        estimator="kmifqe",
        config={},
        gamma=0.95,
        seeds=tuple(range(seeds)),
        steps=records * 10,
        values=trajectory[-1].astype(np.float64),
        recorded_steps=10 * np.arange(1, records + 1),
        trajectory=trajectory,
        infos={"h": np.ones((records, seeds)), "ess": rng.uniform(1, 1e5, (records, seeds))},
        seconds=1.0,
        device="cpu",
    )


@pytest.mark.parametrize("records", [1, 49, 50, 51, 100])
def test_a_trajectory_is_thinned_and_keeps_its_end(records):
    thin = thin_trajectory(estimate(records))
    assert len(thin["step"]) == min(records, MOST_POINTS)
    assert (np.diff(thin["step"]) > 0).all()
    assert thin["step"][-1] == 10 * records
    assert thin["value"].shape == (len(thin["step"]), 10)
    assert thin["h"].shape == thin["step"].shape
