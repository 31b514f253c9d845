"""A flag is 0 or 1 in every format: NumPy counts a bool of byte 2 as true and computes with it as with false."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.mdp.transitions import Transitions

TWO = np.full(16, 2, np.uint8).view(bool)


def write_npz(folder, fields):
    np.savez(folder / "log.npz", **fields)
    return folder / "log.npz"


def write_hdf5(folder, fields):
    with h5py.File(folder / "log.hdf5", "w") as file:
        for field, array in fields.items():
            file[field] = array
    return folder / "log.hdf5"


def write_table(folder, fields):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {field: list(array) if array.ndim == 2 else array for field, array in fields.items()}
    columns |= {field: columns[field].view(np.uint8) for field in ("terminals", "timeouts")}
    pq.write_table(pa.table(columns), folder / "log.parquet")
    return folder / "log.parquet"


@pytest.mark.parametrize("field", ["terminals", "timeouts"])
@pytest.mark.parametrize("write", [write_npz, write_hdf5, write_table])
def test_a_bool_stored_as_two_is_refused(tmp_path, encoded, write, field):
    path = write(tmp_path, encoded | {field: TWO})
    with pytest.raises(InputError, match=rf"{field} holds 2 at row 0; expected true/false flags"):
        load_dataset(path)
    with pytest.raises(InputError, match=rf"{field} holds 2 at row 0; expected true/false flags"):
        load_dataset(path, check_finite=False)  # as `kmifqe dataset inspect` reads it


def test_a_bool_stored_as_two_is_refused_in_a_minari_dataset(tmp_path, log):
    pytest.importorskip("minari")
    from kmifqe.io.logs.save import save_dataset

    save_dataset(log, tmp_path / "log-v0")
    with h5py.File(tmp_path / "log-v0" / "data" / "main_data.hdf5", "r+") as file:
        flags = file["episode_0/terminations"]
        flags[...] = np.full(flags.shape, 2, np.uint8).view(bool)
    with pytest.raises(InputError, match="episode 0: terminations holds 2 at row 0"):
        load_dataset(tmp_path / "log-v0")


def test_a_bool_stored_as_two_is_refused_among_arrays(encoded):
    with pytest.raises(InputError, match="terminals holds 2 at row 0"):
        Transitions.from_arrays(**encoded | {"terminals": TWO})


@pytest.mark.parametrize("first, second", [("action_0", "action_00"), ("action", "action_0")])
def test_two_columns_for_the_same_numbers_are_refused(tmp_path, encoded, first, second):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {field: list(array) if array.ndim == 2 else array for field, array in encoded.items()}
    del columns["actions"]
    columns |= {first: np.zeros(16), second: np.ones(16)}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    with pytest.raises(InputError, match=f"holds both {first} and {second}, which mean the same"):
        load_dataset(tmp_path / "log.parquet")
