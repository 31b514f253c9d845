from __future__ import annotations

import pytest

from kmifqe.errors import InputError
from kmifqe.experiments.context import kept_json


def test_the_same_settings_are_worked_out_once(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return {"value": len(calls)}

    assert kept_json(tmp_path / "new", "x", {"a": 1}, make) == {"value": 1}
    assert kept_json(tmp_path / "new", "x", {"a": 1}, make) == {"value": 1}
    assert kept_json(tmp_path / "new", "x", {"a": 2}, make) == {"value": 2}


def test_a_broken_file_is_named(tmp_path):
    kept_json(tmp_path, "x", {}, lambda: {"value": 1})
    (path,) = tmp_path.iterdir()
    path.write_text("{")
    with pytest.raises(InputError, match=path.name):
        kept_json(tmp_path, "x", {}, lambda: {"value": 2})
