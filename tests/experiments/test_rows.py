from __future__ import annotations

import pytest

from kmifqe.errors import InputError
from kmifqe.experiments.presets import preset_named
from kmifqe.experiments.rows import d4rl_file, file_rows, row_named, table_rows


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
