from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from encoded_log import encoded, log, same_log  # noqa: F401 (fixtures)


@pytest.fixture
def write_hdf5(tmp_path: Path):
    def write(fields: dict[str, np.ndarray], name: str = "log.hdf5", **options: object) -> Path:
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            for field, array in fields.items():
                file.create_dataset(field, data=array, **options)
        return path

    return write
