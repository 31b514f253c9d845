"""The folder of snapshots: bits, the two that are kept, damage, identity, cadence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.estimators import fit
from kmifqe.estimators.fit import Snapshot, make_plan
from kmifqe.store.archive import read_archive, write_archive
from kmifqe.store.checkpoints import CheckpointFolder, Interrupted, read_snapshot
from store.conftest import assert_same_bits
from store.toy import BALLAST, PERIOD, SEEDS, STEPS, ToyConfig, toy, toy_problem


class PowerCutError(Exception):
    pass


def cut_at(step):
    def watch(progress):
        if progress.step >= step:
            raise PowerCutError

    return watch


def stopped(folder, step=101, estimator=None, **options):
    """Leave what a fit that broke off after `step` leaves: snapshots of steps 90 and 100."""
    with pytest.raises(PowerCutError):
        fit(
            estimator or toy(),
            toy_problem(),
            seeds=SEEDS,
            checkpoints=CheckpointFolder(folder, save_seconds=0),
            on_progress=cut_at(step),
            **options,
        )
    return sorted(folder.glob("*"))


def go_on(folder, estimator=None, problem=None, **options):
    told: list[str] = []
    checkpoints = CheckpointFolder(folder, save_seconds=0, warn=told.append)
    result = fit(
        estimator or toy(), problem or toy_problem(), seeds=SEEDS, checkpoints=checkpoints, **options
    )
    return result, told


def test_the_last_two_are_kept_and_hold_no_row_of_the_log(tmp_path):
    paths = stopped(tmp_path / "c")
    assert [path.name for path in paths] == ["step-000000000090.safetensors", "step-000000000100.safetensors"]
    snapshot, _ = read_snapshot(paths[-1])
    assert snapshot.step == 100
    assert set(snapshot.state) == {".x", ".momentum['m']", ".momentum['count']", ".target", ".ballast"}
    assert snapshot.state[".ballast"].shape == (SEEDS, BALLAST)
    assert snapshot.recorded_steps.tolist() == list(range(2, 101, 2))


@pytest.mark.parametrize("step", [1, 11, 57, STEPS])
def test_a_fit_that_broke_off_ends_with_the_same_bits(tmp_path, undisturbed, step):
    stopped(tmp_path / "c", step)
    result, told = go_on(tmp_path / "c")
    assert_same_bits(result, undisturbed)
    np.testing.assert_array_equal(result.final_state.wide, undisturbed.final_state.wide)
    assert told == []


def test_a_finished_fit_is_not_taken_further(tmp_path, undisturbed):
    folder = tmp_path / "c"
    go_on(folder)
    result, _ = go_on(folder, on_progress=cut_at(0))
    assert_same_bits(result, undisturbed)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "garbage", "gone"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path, undisturbed, damage):
    _, newest = stopped(tmp_path / "c")
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    spoilt = {"flip": content, "cut": content[:-1], "empty": b"", "garbage": b"\xff" * 4000}
    if damage == "gone":
        newest.unlink()
    else:
        newest.write_bytes(spoilt[damage])
    result, told = go_on(tmp_path / "c")
    assert_same_bits(result, undisturbed)
    assert len(told) == (damage != "gone")
    assert all(newest.name in sentence and "the one before" in sentence for sentence in told)


def test_every_flipped_bit_of_the_header_is_noticed(tmp_path):
    _, newest = stopped(tmp_path / "c")
    content, (whole, _) = newest.read_bytes(), read_snapshot(newest)
    rng = np.random.default_rng(0)
    end = 8 + int.from_bytes(content[:8], "little")
    for place in rng.choice(end, 60, replace=False):
        spoilt = bytearray(content)
        spoilt[place] ^= 1 << rng.integers(8)
        newest.write_bytes(spoilt)
        told: list[str] = []
        checkpoints = CheckpointFolder(tmp_path / "c", warn=told.append)
        snapshot = checkpoints.restore(_plan(), toy_problem())
        assert snapshot is not None
        assert (snapshot.step, len(told)) in [(90, 1), (100, 0)]
        if snapshot.step == 100:  # white space in the header may change without changing what is read
            for name, array in whole.state.items():
                np.testing.assert_array_equal(snapshot.state[name], array, strict=True)


def test_with_all_checkpoints_damaged_the_fit_begins_again(tmp_path, undisturbed):
    for path in stopped(tmp_path / "c"):
        path.write_bytes(b"")
    result, told = go_on(tmp_path / "c")
    assert_same_bits(result, undisturbed)
    assert len(told) == 2


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"estimator": toy(ToyConfig(rate=0.2))}, ["rate = 0.1", "rate = 0.2"]),
        ({"estimator": toy(name="other")}, ["estimator = 'toy'", "estimator = 'other'"]),
        ({"steps": 300}, ["steps = 200", "steps = 300"]),
        ({"record_every": 5}, ["record_every = 2", "record_every = 5"]),
        ({"problem": toy_problem(gamma=0.5)}, ["gamma = 0.9", "gamma = 0.5"]),
        ({"problem": toy_problem(seed=1)}, ["states", "another log"]),
        ({"problem": toy_problem(target=0.1)}, ["target_actions", "another policy"]),
        ({"stop": lambda steps, values: False}, ["stop = ''"]),
    ],
)
def test_another_run_is_refused_by_the_field_that_differs(tmp_path, changed, words):
    stopped(tmp_path / "c")
    with pytest.raises(InputError) as refused:
        go_on(tmp_path / "c", **changed)
    for word in [*words, "step-000000000100.safetensors"]:
        assert word in str(refused.value)


def test_other_seeds_are_refused(tmp_path):
    stopped(tmp_path / "c")
    with pytest.raises(InputError, match=r"seeds = \[0, 1\].*seeds = \[5\]"):
        fit(toy(), toy_problem(), seeds=[5], checkpoints=CheckpointFolder(tmp_path / "c"))


def rewrite(path: Path, change) -> None:
    arrays, described = read_archive(path)
    change(arrays, described)
    write_archive(path, arrays, described)


def test_another_version_or_machine_goes_on_with_a_warning(tmp_path, undisturbed):
    _, newest = stopped(tmp_path / "c")

    def change(arrays, described):
        described["identity"]["versions"]["jax"] = "0.0.1"
        described["identity"]["machine"]["device"] = "abacus"

    rewrite(newest, change)
    result, told = go_on(tmp_path / "c")
    assert_same_bits(result, undisturbed)
    assert [word in " ".join(told) for word in ("'0.0.1'", "'abacus'", "last bits")] == [True] * 3


@pytest.mark.parametrize("schema", ["kmifqe.checkpoint/1", "kmifqe.checkpoint/3", None])
def test_another_schema_is_refused(tmp_path, schema):
    _, newest = stopped(tmp_path / "c")
    rewrite(newest, lambda arrays, described: described.update(schema=schema))
    with pytest.raises(InputError, match="schema") as refused:
        go_on(tmp_path / "c")
    assert repr(schema) in str(refused.value)


def test_a_state_of_other_shapes_is_refused(tmp_path):
    _, newest = stopped(tmp_path / "c")
    rewrite(newest, lambda arrays, described: arrays.update({"state.x": np.zeros((SEEDS, 4), np.float32)}))
    with pytest.raises(InputError, match=r"\.x; expected float32 \(2, 3\)"):
        go_on(tmp_path / "c")


@pytest.mark.parametrize(
    ("asked_at", "seen_last", "saved"), [(3, 4, None), (33, 34, 30), (38, 40, 40), (39, 40, 40)]
)
def test_a_wish_to_stop_is_granted_before_the_next_record(tmp_path, undisturbed, asked_at, seen_last, saved):
    """What is saved is the last step that a fit can begin from."""
    seen: list[int] = [0]
    checkpoints = CheckpointFolder(tmp_path / "c", save_seconds=1e9, stop_asked=lambda: max(seen) >= asked_at)
    with pytest.raises(Interrupted) as stop:
        fit(
            toy(),
            toy_problem(),
            seeds=SEEDS,
            checkpoints=checkpoints,
            on_progress=lambda p: seen.append(p.step),
        )
    assert max(seen) == seen_last
    assert (None if stop.value.snapshot is None else stop.value.snapshot.step) == saved
    assert_same_bits(go_on(tmp_path / "c")[0], undisturbed)


def test_saving_waits_for_its_time_and_for_its_cost(tmp_path, monkeypatch):
    """At 1 s every 30 s a save would take 3 %: after one that costs 1 s the next waits 100 s."""
    clock = [0.0]
    monkeypatch.setattr("kmifqe.store.checkpoints.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(
        "kmifqe.store.checkpoints.write_archive", lambda *args: clock.__setitem__(0, clock[0] + 1.0)
    )
    checkpoints = CheckpointFolder(tmp_path / "c", save_seconds=30)
    assert checkpoints.restore(_plan(), toy_problem()) is None
    due = []
    for second in range(300):
        clock[0] = max(clock[0], float(second))
        if checkpoints.due(second):
            due.append(second)
            checkpoints.save(_snapshot(second))
    assert due == [30, 131, 232]
    assert checkpoints.saves == 3
    assert checkpoints.seconds == 3.0


def _plan():
    return make_plan(toy(), toy_problem(), seeds=SEEDS)


def _snapshot(step):
    return Snapshot(step, {}, np.arange(1), np.zeros((1, SEEDS)), {}, 0.0)


def test_a_stop_rule_ends_the_fit_and_a_resumed_one_at_the_same_record(tmp_path):
    assert PERIOD == 10
    plain = fit(toy(), toy_problem(), seeds=SEEDS, stop=after_120)
    assert plain.steps == plain.recorded_steps[-1] == 120
    np.testing.assert_array_equal(plain.values, plain.trajectory[-1])
    stopped(tmp_path / "c", 120, stop=after_120)  # the save of step 120 did not happen
    assert_same_bits(go_on(tmp_path / "c", stop=after_120)[0], plain)
    assert_same_bits(go_on(tmp_path / "c", stop=after_120)[0], plain)  # now it is there, and the rule holds


def after_120(steps, values):
    return steps[-1] >= 120
