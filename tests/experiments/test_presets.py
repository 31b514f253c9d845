from __future__ import annotations

from pathlib import Path

import pytest

from kmifqe.errors import InputError
from kmifqe.estimators import entry_named, make_estimator
from kmifqe.estimators.base import config_dict
from kmifqe.estimators.registry import DEFAULT
from kmifqe.estimators.sizing import ProblemSize
from kmifqe.experiments.presets import (
    METHODS,
    PRESETS,
    d4rl_file,
    file_rows,
    preset_named,
    row_named,
    table_rows,
)
from kmifqe.experiments.records import RESULTS, Place, is_done, read_records

ROOT = Path(__file__).parents[2]
KINDS = ("pendulum", "mujoco", "d4rl")


def test_the_paper_preset_is_the_papers_own_table_of_hyperparameters():
    paper = preset_named("paper")
    for kind, batch, steps in (
        ("pendulum", 1024, 2_000_000),
        ("mujoco", 2048, 1_000_000),
        ("d4rl", 2048, 1_000_000),
    ):
        run = paper.run_of("kmifqe-paper", kind)
        config = run.estimator.config
        assert (config.batch, run.steps, config.hidden, config.target_period) == (batch, steps, 256, 1000)
        assert (config.clip, config.clip_per_dimension) == ((1e-3, 2.0), kind == "mujoco")
        assert config.density_floor == (1e-3 if kind == "d4rl" else 1e-5)
        assert paper.run_of("fqe-paper", kind).estimator.config.inputs == "raw"
        assert paper.run_of("sr-dice", kind).estimator.config.stages == (30_000, 100_000, 250_000)
    assert (paper.rows["pendulum"], paper.rows["known"], paper.seeds) == (500_000, 1_000_000, 10)
    assert (paper.truth_episodes, paper.pendulum_truth_episodes) == (1_000, 1_500)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda p: p.name)
def test_every_method_has_its_settings_in_every_preset(preset):
    for kind in KINDS:
        runs = {m: preset.run_of(m, kind) for m, method in METHODS.items() if not method.members}
        assert runs["kmifqe-identity"].estimator.config.metric == "identity"
        assert runs["fqe-paper"].estimator.config.inputs == "raw"
        assert sum(runs["sr-dice"].estimator.config.stages) == runs["sr-dice"].steps
        assert all(run.steps >= 1 for run in runs.values())


@pytest.mark.parametrize("name", ["small", "fast", "paper"])
def test_what_users_get_is_what_evaluate_would_fit(name):
    """The columns KMIFQE and FQE have the registry's defaults, sized by the row's log, and auto averages the two."""
    size = ProblemSize(rows=25_000, gamma=0.99)
    for method in ("kmifqe", "fqe"):
        run = preset_named(name).run_of(method, "mujoco", size)
        asked = make_estimator(method, DEFAULT, (), None, size)
        assert run.estimator.config == asked.config
        assert run.steps == asked.default_steps
    deterministic = {each for each in entry_named("auto").panel if entry_named(each).targets != "stochastic"}
    assert set(METHODS["auto"].members) == deterministic
    floors = {
        kind: preset_named(name).run_of("kmifqe", kind, size).estimator.config.density_floor for kind in KINDS
    }
    assert floors == {
        "pendulum": 1e-5,
        "mujoco": 1e-5,
        "d4rl": 1e-3,
    }  # of a known density, and of a fitted one


@pytest.mark.parametrize("name", ["small", "fast", "paper"])
def test_every_method_of_the_paper_follows_its_target_network_for_five_horizons(name):
    # A value learned by bootstrapping falls short by about exp(-copies (1 - γ)): of 5 horizons, by 0.7 %.
    preset = preset_named(name)
    for row in map(row_named, table_rows(preset)):
        kernel, fqe, sr_dice = (
            preset.run_of(method, row.kind) for method in ("kmifqe-paper", "fqe-paper", "sr-dice")
        )
        copies = {
            "kmifqe-paper": kernel.steps / kernel.estimator.config.target_period,
            "fqe-paper": fqe.steps * fqe.estimator.config.tau,
            "sr-dice": sr_dice.estimator.config.stages[1] * sr_dice.estimator.config.tau,
        }
        for method, count in copies.items():
            assert count * (1.0 - row.gamma) > 4.99, (row.name, method)


def test_the_full_table_has_the_papers_twelve_rows():
    for name in ("small", "fast", "paper"):
        assert len(table_rows(preset_named(name))) == 12
    rows = table_rows(preset_named("smoke"))
    assert {row_named(row).recipe for row in rows} == {"pendulum", "known", "mix", "replay"}
    smoke = preset_named("smoke")
    assert {m for row in rows for m in smoke.methods_of(row_named(row).recipe)} == set(METHODS)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="preset 'huge' is unknown; expected one of smoke, small"):
        preset_named("huge")
    with pytest.raises(InputError, match="method 'dice' is unknown"):
        preset_named("fast").run_of("dice", "mujoco")


def test_a_name_says_task_recipe_and_column():
    found = {
        row_named(name).name: (row_named(name).task, row_named(name).kind, row_named(name).recipe)
        for name in ("pendulum", "ant", "hopper-medium-expert", "walker2d-medium-replay-regenerated")
    }
    assert found == {
        "pendulum": ("pendulum", "pendulum", "pendulum"),
        "ant": ("ant", "mujoco", "known"),
        "hopper-medium-expert": ("hopper", "d4rl", "file"),
        "walker2d-medium-replay-regenerated": ("walker2d", "d4rl", "replay"),
    }
    assert (row_named("pendulum").gamma, row_named("ant").gamma) == (0.95, 0.99)


def test_regenerated_rows_say_so():
    unknown = [row for row in table_rows(preset_named("fast")) if row_named(row).kind == "d4rl"]
    assert len(unknown) == 6
    assert all(row.endswith("-regenerated") for row in unknown)


@pytest.mark.parametrize(
    "name", ["", "swimmer", "ant-medium-expert", "hopper-medium", "hopper-medium-expert-x"]
)
def test_other_names_are_refused(name):
    with pytest.raises(InputError, match="is unknown; expected pendulum, hopper"):
        row_named(name)


def test_d4rl_files_are_found_by_their_published_names(tmp_path):
    for name in ("hopper_medium_expert-v2.hdf5", "walker2d_medium_replay-v2.hdf5", "hopper_expert-v2.hdf5"):
        (tmp_path / name).touch()
    assert file_rows(tmp_path) == ("hopper-medium-expert", "walker2d-medium-replay")
    assert d4rl_file(tmp_path, "hopper-expert").name == "hopper_expert-v2.hdf5"


def test_a_missing_an_ambiguous_and_an_unnamed_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no D4RL file"):
        file_rows(tmp_path)
    with pytest.raises(InputError, match="found none; expected one file hopper_expert-v2"):
        d4rl_file(tmp_path, "hopper-expert")
    for version in (0, 2):
        (tmp_path / f"hopper_expert-v{version}.hdf5").touch()
    with pytest.raises(InputError, match=r"found hopper_expert-v0.hdf5, hopper_expert-v2.hdf5"):
        d4rl_file(tmp_path, "hopper-expert")
    with pytest.raises(InputError, match="--d4rl-dir"):
        d4rl_file(None, "hopper-expert")


def test_the_committed_records_of_the_papers_methods_have_the_settings_of_their_presets():
    records = read_records(ROOT / RESULTS, "table1")
    assert records
    for record in records:
        if not METHODS[record.method].is_default:
            run = preset_named(record.preset).run_of(record.method, row_named(record.row).kind)
            asked = {**record.settings, "config": config_dict(run.estimator.config), "steps": run.steps}
            assert is_done(ROOT / RESULTS, Place(record.preset, "table1", record.row, record.method), asked)
