import json

import numpy as np
import pytest

from kmifqe.report.result import write_record


def test_what_json_cannot_hold_becomes_null(tmp_path):
    write_record(
        {"a": [np.nan, {"b": (1.0, float("inf"))}], "c": np.array([[1.0, np.nan]])}, tmp_path / "r.json"
    )
    assert json.loads((tmp_path / "r.json").read_text()) == {
        "a": [None, {"b": [1.0, None]}],
        "c": [[1.0, None]],
    }


def test_a_record_that_cannot_be_written_leaves_the_earlier_one(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("earlier")
    with pytest.raises(TypeError):
        write_record({"a": object()}, path)
    assert path.read_text() == "earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
