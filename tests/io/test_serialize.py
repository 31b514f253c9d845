"""Values reach JSON and come back as themselves; a wrong file is named with its field."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from jaxtyping import Float

from kmifqe.errors import InputError
from kmifqe.io.serialize import digest, from_json, plain, read_json, to_json, write_json


@dataclass(frozen=True)
class Part:
    count: int
    series: np.ndarray
    by_name: dict[str, np.ndarray] = field(default_factory=dict)


class Whole(msgspec.Struct):
    name: str
    parts: list[Part]
    value: float | None = None
    shaped: Float[np.ndarray, "n 2"] | None = None


def test_records_and_their_arrays_come_back_as_themselves():
    series = np.array([[1.5, np.nan], [np.inf, -2.0]])
    whole = Whole("a", [Part(3, series, {"x": np.arange(4), "flags": np.array([True, False])})], math.nan)
    again = from_json(to_json(whole), Whole)
    part = again.parts[0]
    assert (again.name, again.value, part.count) == ("a", None, 3)
    np.testing.assert_array_equal(part.series, [[1.5, np.nan], [np.nan, -2.0]])
    assert part.by_name["x"].dtype.kind == "i"
    assert part.by_name["flags"].dtype.kind == "b"


def test_every_double_survives_exactly():
    values = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-300, 300, 0.6)
    again = from_json(to_json(Part(0, values)), Part).series
    assert again.tobytes() == values.tobytes()


def test_numpy_and_jax_values_are_plain_numbers_in_json():
    value = {
        "scalar": np.float32(1.5),
        "nan": np.float64("nan"),
        "infinite": -math.inf,
        "count": np.int64(3),
        "flag": np.bool_(True),
        "jax": jnp.arange(3.0),
        "path": Path("a/b"),
        "pair": (1, 2),
        7: np.str_("key"),
    }
    assert json.loads(to_json(value)) == {
        "scalar": 1.5,
        "nan": None,
        "infinite": None,
        "count": 3,
        "flag": True,
        "jax": [0.0, 1.0, 2.0],
        "path": "a/b",
        "pair": [1, 2],
        "7": "key",
    }


def test_indented_and_sorted_text_says_the_same():
    value = {"b": [1, 2], "a": {"d": 1.0, "c": None}}
    assert json.loads(to_json(value, indent=1)) == value
    assert to_json(value, indent=2).startswith(b'{\n  "b"')
    assert to_json(value, sort_keys=True) == b'{"a":{"c":null,"d":1.0},"b":[1,2]}'


def test_what_is_no_record_is_refused_when_it_is_written():
    with pytest.raises(NotImplementedError, match="object"):
        to_json({"x": object()})


def test_whole_numbers_fill_an_array_of_floats():
    found = from_json(b'{"name": "a", "parts": [], "shaped": [[1, 2]]}', Whole)
    assert found.shaped is not None
    assert found.shaped.dtype == np.float64


@pytest.mark.parametrize(
    "text, parts",
    [
        (b'{"name": 3, "parts": []}', ("name", "expected str", "found int")),
        (b'{"name": "a", "parts": [{"count": "x", "series": []}]}', ("parts[0].count", "expected int")),
        (b'{"name": "a", "parts": [{"count": 1, "series": [[1], [1, 2]]}]}', ("parts[0].series",)),
        (b'{"name": "a", "parts": [{"count": 1, "series": ["x"]}]}', ("parts[0].series",)),
        (b'{"name": "a", "parts": [], "shaped": [1, 2]}', ("shaped", "Float[ndarray, 'n 2']")),
        (b'{"parts": []}', ("missing required field name",)),
        (b"[1]", ("expected object", "found array")),
        (b'{"name": ', ("cannot be read as JSON",)),
        (b"", ("cannot be read as JSON",)),
        (b"\xff\xfe", ("cannot be read as JSON",)),
        (b"[" * 100_000, ()),
    ],
)
def test_a_wrong_file_is_a_sentence_with_the_file_and_the_field(tmp_path, text, parts):
    path = tmp_path / "file.json"
    path.write_bytes(text)
    with pytest.raises(InputError) as refused:
        read_json(path, Whole)
    for part in (str(path), *parts):
        assert part in str(refused.value)


def test_deep_nesting_is_a_sentence():
    with pytest.raises(InputError, match="text: cannot be read as JSON"):
        from_json(b"[" * 100_000 + b"]" * 100_000, list[Any], name="text")


def test_a_file_is_written_whole_and_read_back(tmp_path):
    write_json(tmp_path / "file.json", {"a": [1, math.nan]})
    assert read_json(tmp_path / "file.json", dict[str, Any]) == {"a": [1, None]}
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
    with pytest.raises(InputError, match=r"none.json: no such file"):
        read_json(tmp_path / "none.json", dict[str, Any])


def test_plain_values_are_those_that_json_gives_back():
    assert plain({"a": np.array([1.0, np.nan]), "b": (np.int32(2), math.inf)}) == {
        "a": [1.0, None],
        "b": [2, None],
    }


def test_a_digest_tells_arrays_of_another_value_shape_or_type_apart():
    a = np.arange(6.0)
    others = [
        a + 1,
        a.reshape(2, 3),
        a.reshape(3, 2),
        a.astype(np.float32),
        np.arange(6),
        a[:0],
        None,
        b"",
        b"x",
    ]
    assert len({digest(each) for each in (a, *others)}) == 10
    assert digest(a) == digest(a.copy()) == digest(np.repeat(a, 2)[::2])
