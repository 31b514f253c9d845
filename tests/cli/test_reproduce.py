"""The whole of `kmifqe reproduce all --preset smoke`, once; what it left is what the tests look at."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest

from kmifqe.cli import main
from kmifqe.experiments.drive import EXPERIMENTS
from kmifqe.experiments.presets import METHODS
from kmifqe.experiments.records import read_records, stored
from kmifqe.worlds.pendulum import collect, value_of_states
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors, with_dummies


def run(folder, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["kmifqe", "reproduce", *map(str, arguments)])
        patch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            main()
    return end.value.code or 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder in which every experiment ran at its smallest, from training to figures."""
    folder = tmp_path_factory.mktemp("reproduce")
    assert run(folder, "all", "--preset", "smoke", "--workers", 1, "--no-prefetch") == 0
    return folder


@pytest.fixture
def records(folder):
    return read_records(folder / "experiments" / "results")


def test_every_experiment_and_method_left_records(records):
    assert {record.experiment for record in records} == set(EXPERIMENTS)
    assert {record.method for record in records if record.experiment == "table1"} == set(METHODS)
    assert {record.preset for record in records} == {"smoke"}


def test_records_are_small_and_say_how_they_were_made(folder, records):
    for record in records:
        assert {"settings", "versions", "device", "created", "wall_seconds", "command"} <= set(stored(record))
    sizes = {path: path.stat().st_size for path in folder.glob("experiments/results/smoke/*/*/*.json")}
    assert len(sizes) == len(records)
    assert max(sizes.values()) < 30_000


def test_errors_follow_from_the_values_and_truths_in_the_record(records):
    for record in (record for record in records if record.experiment == "table1"):
        for truth, error in record.errors.items():
            assert error["truth"] == pytest.approx(record.truth[truth], rel=1e-5)
            expected = np.sqrt(np.mean((np.array(record.values) - error["truth"]) ** 2))
            assert error["rmse"] == pytest.approx(expected, rel=1e-4)
    (pendulum,) = (
        r for r in records if (r.experiment, r.row, r.method) == ("table1", "pendulum", "fqe-paper")
    )
    assert set(pendulum.errors) == {"population", "logged_first_states"}


def test_pendulum_is_judged_against_its_own_first_states_exactly(folder, records):
    """The dynamics are deterministic: the target's value from the logged first states is known to rounding."""
    (record,) = (r for r in records if (r.experiment, r.row) == ("data", "pendulum"))
    behavior = PendulumBehavior(load_pendulum_actors()[1], 1)
    log = collect(record.settings["seed"], behavior, record.settings["rows"])
    target = with_dummies(load_pendulum_actors()[0], 1)
    exact = value_of_states(log.states[log.first_rows], target, 0.95).mean()
    assert record.truth["logged_first_states"] == pytest.approx(exact, rel=1e-5)
    assert record.truth["population"] == record.policies["target"].V


@pytest.mark.parametrize("method", ["fqe-paper", "fqe"])
def test_a_record_is_made_again_by_the_command_inside_it(folder, records, method):
    record = next(r for r in records if (r.experiment, r.method) == ("table1", method))
    command = record.command.split()
    assert command[:2] == ["kmifqe", "reproduce"]
    assert run(folder, *command[2:], "--results", "again", "--workers", 1) == 0
    (again,) = (r for r in read_records(folder / "again") if r.method == method)
    for field in ("values", "errors", "settings", "truth", "policies", "trajectory"):
        assert stored(again)[field] == stored(record)[field], field


def test_resuming_leaves_what_is_there(folder, capsys):
    paths = list(folder.glob("experiments/results/smoke/*/*/*.json"))
    before = {path: path.stat().st_mtime_ns for path in paths}
    for experiment in EXPERIMENTS:  # not "all", which would draw the figures again
        assert run(folder, experiment, "--preset", "smoke", "--resume", "--workers", 1, "--no-prefetch") == 0
    assert {path: path.stat().st_mtime_ns for path in paths} == before
    assert "table1 pendulum kmifqe-paper: there already" in capsys.readouterr().err


def test_tables_and_figures_come_from_the_records_alone(folder, tmp_path, records):
    rendered = folder / "experiments" / "results" / "smoke" / "rendered"
    tables = (rendered / "tables.md").read_text(encoding="utf-8")
    for row in {record.row for record in records if record.experiment in ("table1", "loglik")}:
        assert f"| {row} |" in tables
    assert "Every row and method of Table 1 was run with preset smoke." in tables
    assert {"fig1a.png", "fig1b.png", "fig2.png", "shift.png"} <= {path.name for path in rendered.iterdir()}
    shutil.rmtree(rendered)
    assert run(folder, "render", "--preset", "smoke") == 0
    assert (rendered / "tables.md").read_text(encoding="utf-8") == tables


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("table2",), "experiment 'table2' is unknown"),
        (("table1", "--preset", "huge"), "preset 'huge' is unknown"),
        (("table1", "--preset", "smoke", "--only", "ant"), "table1 has no row 'ant' in preset smoke"),
        (("table1", "--preset", "smoke", "--method", "dice"), "method 'dice' is unknown"),
        (("table1", "--preset", "smoke", "--d4rl-dir", "none"), "holds no D4RL file"),
        (("render", "--preset", "fast"), "holds no experiment records"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, capsys, arguments, words):
    assert run(tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert words in " ".join(error.split())
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []
