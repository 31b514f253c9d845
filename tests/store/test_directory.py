"""A run directory: what it holds, what it refuses, and that a full disk costs nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess

import pytest

from kmifqe.errors import InputError
from kmifqe.estimators.fit import make_plan
from kmifqe.io import files as durable
from kmifqe.runner import run_estimators
from kmifqe.store.checkpoints import Interrupted, read_snapshot
from kmifqe.store.directory import LOCK, locked, open_run
from store.conftest import assert_same_bits, run_toy
from store.test_checkpoints import PowerCutError, cut_at
from store.toy import SEEDS, ToyConfig, toy, toy_problem


def break_off(out, step=101, **options):
    with pytest.raises(PowerCutError):
        run_toy(out, on_progress=cut_at(step), **options)


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_finished_run_keeps_its_estimate_and_no_checkpoint(tmp_path, undisturbed):
    assert_same_bits(run_toy(tmp_path / "run"), undisturbed)
    assert names(tmp_path / "run") == ["finished/toy.safetensors", "run.json"]
    again = run_toy(tmp_path / "run", resume=True, on_progress=cut_at(0))  # not one step is taken
    assert_same_bits(again, undisturbed)


def test_a_broken_off_run_goes_on(tmp_path, undisturbed):
    break_off(tmp_path / "run")
    folder = "checkpoints/toy/step-0000000000"
    assert names(tmp_path / "run") == [f"{folder}90.safetensors", f"{folder[:-1]}100.safetensors", "run.json"]
    assert_same_bits(run_toy(tmp_path / "run", resume=True), undisturbed)


def test_resume_begins_where_there_is_nothing(tmp_path, undisturbed):
    assert_same_bits(run_toy(tmp_path / "run", resume=True), undisturbed)


def test_an_unfinished_run_is_not_overwritten_unasked(tmp_path, undisturbed):
    break_off(tmp_path / "run")
    before = names(tmp_path / "run")
    with pytest.raises(InputError, match="holds an unfinished run; --resume to go on"):
        run_toy(tmp_path / "run")
    assert names(tmp_path / "run") == before
    seen = []
    assert_same_bits(
        run_toy(tmp_path / "run", force=True, on_progress=lambda p: seen.append(p.step)), undisturbed
    )
    assert seen[0] == 2


def test_a_forced_run_that_fails_early_leaves_the_earlier_one(tmp_path, undisturbed):
    break_off(tmp_path / "run")
    before = names(tmp_path / "run")
    with pytest.raises(PowerCutError), open_run(tmp_path / "run", {}, force=True):
        raise PowerCutError
    assert names(tmp_path / "run") == before


def test_a_run_that_reached_nothing_leaves_nothing(tmp_path):
    break_off(tmp_path / "run", step=2)
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    break_off(tmp_path / "mine", step=2)
    assert list((tmp_path / "mine").iterdir()) == []


def test_two_processes_are_one_too_many(tmp_path):
    break_off(tmp_path / "run")
    refused = pytest.raises(InputError, match=f"another process .id {os.getpid()}. is writing")
    with locked(tmp_path / "run" / LOCK), refused:
        run_toy(tmp_path / "run", resume=True)


def test_a_refused_resume_changes_nothing(tmp_path, undisturbed):
    break_off(tmp_path / "run")
    before = {name: (tmp_path / "run" / name).read_bytes() for name in names(tmp_path / "run")}
    with pytest.raises(InputError, match=r"rate = 0.1.* rate = 0.3"):
        run_toy(tmp_path / "run", resume=True, estimator=toy(ToyConfig(rate=0.3)))
    with pytest.raises(InputError, match="another log"):
        run_toy(tmp_path / "run", resume=True, problem=toy_problem(seed=1))
    assert {name: (tmp_path / "run" / name).read_bytes() for name in names(tmp_path / "run")} == before


def test_a_finished_estimate_of_another_run_is_refused(tmp_path):
    run_toy(tmp_path / "run")
    with pytest.raises(InputError, match=r"finished/toy.safetensors: was made with rate = 0.1"):
        run_toy(tmp_path / "run", resume=True, estimator=toy(ToyConfig(rate=0.3)))


def test_a_damaged_finished_estimate_is_computed_again(tmp_path, undisturbed):
    run_toy(tmp_path / "run")
    (tmp_path / "run" / "finished" / "toy.safetensors").write_bytes(b"\0" * 100)
    told = []
    assert_same_bits(run_toy(tmp_path / "run", resume=True, warn=told.append), undisturbed)
    assert len(told) == 1
    assert "computed again" in told[0]


def test_the_first_of_two_estimators_is_not_run_again(tmp_path):
    problem, estimators = toy_problem(), [toy(), toy(name="second")]
    plans = [make_plan(e, problem, seeds=SEEDS) for e in estimators]
    steps: list[tuple[str, int]] = []

    def run_both(stop_asked):
        with open_run(tmp_path / "run", {}, resume=True, stop_asked=stop_asked) as run:
            run.begin(plans, problem)
            run_estimators(
                problem,
                estimators,
                plans,
                store=run,
                on_progress=lambda p: steps.append((p.estimator, p.step)),
                forecast=False,
            )

    with pytest.raises(Interrupted) as stopped:
        run_both(lambda: ("toy", 200) in steps)
    assert (stopped.value.estimator, stopped.value.snapshot) == ("second", None)  # nothing new is begun
    with pytest.raises(Interrupted) as stopped:
        run_both(lambda: ("second", 52) in steps)
    assert (stopped.value.estimator, stopped.value.snapshot.step) == ("second", 50)
    assert steps.pop() == ("second", 52)  # no fit can begin there, so that it comes again
    run_both(lambda: False)
    assert steps == [(name, step) for name in ("toy", "second") for step in range(2, 201, 2)]


@pytest.mark.parametrize("schema", ["kmifqe.run/1", "kmifqe.run/3", None])
def test_another_schema_of_the_directory_is_refused(tmp_path, schema):
    break_off(tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": schema}))
    with pytest.raises(InputError, match=r"run.json: its schema is .*, this version .* reads 'kmifqe.run/2'"):
        run_toy(tmp_path / "run", resume=True)


def test_what_a_killed_process_was_writing_is_swept_away(tmp_path, undisturbed):
    break_off(tmp_path / "run")
    leftovers = [tmp_path / "run" / folder / f"{durable.PARTIAL}abc" for folder in ("", "checkpoints/toy")]
    for leftover in leftovers:
        leftover.mkdir()
        (leftover / "run.json").write_bytes(b"half")
    assert_same_bits(run_toy(tmp_path / "run", resume=True), undisturbed)
    assert names(tmp_path / "run") == ["finished/toy.safetensors", "run.json"]
    assert not any(leftover.exists() for leftover in leftovers)


# --- A full disk


def refuse_the(count: int, monkeypatch) -> None:
    """Let the disk be full from the `count`-th flush or rename on."""
    calls = [0]
    for call in ("fsync", "replace"):
        real = getattr(os, call)

        def full(*args, real=real):
            calls[0] += 1
            if calls[0] >= count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        monkeypatch.setattr(durable.os, call, full)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 30, 70, 122, 128, 129, 130])
def test_a_disk_that_is_full_at_any_write_costs_nothing(tmp_path, monkeypatch, undisturbed, count):
    """A run flushes or renames 130 times before it has ended; the last three are those of the finished estimate."""
    with monkeypatch.context() as patched:
        refuse_the(count, patched)
        with pytest.raises(InputError, match=rf"{tmp_path}/run.*cannot be written .No space left on device"):
            run_toy(tmp_path / "run")
    assert_same_bits(run_toy(tmp_path / "run", resume=True), undisturbed)


def test_a_full_tmpfs_stops_the_run_with_a_sentence_and_more_room_lets_it_go_on(tmp_path, undisturbed):
    """A snapshot of the toy takes 0.4 MB: two fit into 1 MB, the third, written before one goes, does not."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True
    )
    if not made or made.returncode:
        pytest.skip("no right to mount a tmpfs; the test before this one fills the disk without one")
    try:
        with pytest.raises(
            InputError, match=r"step-000000000030.safetensors: cannot be written .No space left"
        ):
            run_toy(disk / "run")
        saved = sorted((disk / "run" / "checkpoints" / "toy").iterdir())
        assert [read_snapshot(path)[0].step for path in saved] == [10, 20]
        with pytest.raises(InputError, match="No space left"):
            run_toy(disk / "run", resume=True)
        subprocess.run([mount, "-o", "remount,size=4m", disk], check=True)
        assert_same_bits(run_toy(disk / "run", resume=True), undisturbed)
    finally:
        subprocess.run(["umount", disk], check=True)
