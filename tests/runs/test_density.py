"""A fitted density is kept with the run, for the data it was fitted to and as it was written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.store.directory import DENSITY, DENSITY_REPORT, fitted_on, read_report, write_report

ON = fitted_on(states=np.zeros((3, 2)), low=None)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / DENSITY).write_bytes(b"network")
    write_report(tmp_path, ON, {"chosen": 10})
    return tmp_path


def test_the_report_comes_back_for_the_same_data(folder):
    assert read_report(folder, fitted_on(states=np.zeros((3, 2)), low=None)) == {"chosen": 10}


@pytest.mark.parametrize(
    "changed, name",
    [
        ({"states": np.ones((3, 2)), "low": None}, "states"),
        ({"states": np.zeros((3, 2)), "low": -1.0}, "low"),
    ],
)
def test_other_data_is_refused_by_name(folder, changed, name):
    with pytest.raises(InputError, match=f"was fitted to other data: {name} differ"):
        read_report(folder, fitted_on(**changed))


def test_what_is_missing_cut_or_changed_is_fitted_again(folder):
    (folder / DENSITY).write_bytes(b"netw")
    assert read_report(folder, ON) is None
    (folder / DENSITY).unlink()
    assert read_report(folder, ON) is None
    (folder / DENSITY_REPORT).write_text('{"schema"')
    assert read_report(folder, ON) is None
    (folder / DENSITY_REPORT).unlink()
    assert read_report(folder, ON) is None


def test_another_schema_is_refused(folder):
    record = json.loads((folder / DENSITY_REPORT).read_text()) | {"schema": "kmifqe.behavior_fit/9"}
    (folder / DENSITY_REPORT).write_text(json.dumps(record))
    with pytest.raises(InputError, match="behavior_fit/9"):
        read_report(folder, ON)
