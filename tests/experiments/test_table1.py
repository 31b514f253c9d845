"""A long fit of the table that was stopped goes on where it was."""

from dataclasses import replace
from functools import partial

import pytest

from kmifqe.experiments import context as context_module
from kmifqe.experiments import table1
from kmifqe.experiments.context import Context
from kmifqe.experiments.presets import preset_named
from kmifqe.experiments.records import read_records


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

        def on_progress(progress):
            begun.append(progress.begun)
            if progress.step == stop_at:
                raise StoppedError

        context = Context(
            preset,
            tmp_path / results,
            tmp_path / "work",
            method="fqe",
            resume=resume,
            on_progress=on_progress,
        )
        table1.run("pendulum", context)
        (record,) = read_records(tmp_path / results)
        return begun[0], record["values"]

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
