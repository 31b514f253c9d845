from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.worlds.gym_collect import BLOCK, log_writer
from kmifqe.worlds.gym_envs import describe_task

TASK = describe_task("Pendulum-v1")


def row(step: int, envs: int) -> dict[str, np.ndarray]:
    """Return one step of all environments; every number says which environment and step it belongs to."""
    mark = 10_000.0 * np.arange(envs) + step
    wide, flags = np.repeat(mark[:, None], 3, axis=1), np.full(envs, step % 2 == 0)
    return {
        "observations": wide,
        "next_observations": wide + 1,
        "actions": mark[:, None],
        "rewards": mark,
        "terminals": flags,
        "timeouts": ~flags,
        "infos/action_log_probs": mark[:, None],
    }


@pytest.mark.parametrize("lengths", [[1], [BLOCK, BLOCK], [2 * BLOCK + 3, 2 * BLOCK + 2], [5, 5, 4]])
def test_each_environments_rows_lie_together_in_time_order(tmp_path, lengths):
    with log_writer(tmp_path / "log.hdf5", TASK, np.array(lengths), {"seed": 3}) as store_rows:
        for step in range(max(lengths)):
            store_rows(row(step, len(lengths)))
    expected = np.concatenate([10_000.0 * env + np.arange(n) for env, n in enumerate(lengths)])
    with h5py.File(tmp_path / "log.hdf5") as file:
        np.testing.assert_array_equal(file["rewards"], expected)
        np.testing.assert_array_equal(file["observations"][:, 2], expected)
        np.testing.assert_array_equal(file["next_observations"][:, 0], expected + 1)
        np.testing.assert_array_equal(file["infos/action_log_probs"][:, 0], expected)
        np.testing.assert_array_equal(file["terminals"], expected % 2 == 0)
        assert file["timeouts"].dtype == bool
        assert json.loads(file.attrs["kmifqe"]) == {"seed": 3}


def leave_early(path: Path) -> None:
    with log_writer(path, TASK, np.array([9]), {}) as store_rows:
        store_rows(row(0, 1))
        raise KeyboardInterrupt


def test_a_log_that_is_left_early_or_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        leave_early(tmp_path / "log.hdf5")
    with pytest.raises(InputError, match="cannot be written"):
        leave_early(tmp_path / "no" / "log.hdf5")
    assert list(tmp_path.iterdir()) == []
