"""A result is read back as itself; what is no result, or one of another version, is refused by file and field."""

import copy
import json

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.report.page import render_page
from kmifqe.report.result import Result
from report.small import small_result, small_run


def test_a_result_is_read_back_as_it_was_saved(tmp_path):
    saved = small_result(extra={"demo": {"rows": 77}})
    saved.save(tmp_path)
    for path in (tmp_path, tmp_path / "result.json"):
        read = Result.load(path)
        assert read.question == saved.question
        assert (read.checks, read.verdicts, read.intervals) == (saved.checks, saved.verdicts, saved.intervals)
        assert read.extra == saved.extra
        for estimate in saved.estimates:
            np.testing.assert_array_equal(read[estimate.estimator].values, estimate.values)
            np.testing.assert_array_equal(read[estimate.estimator].trajectory, estimate.trajectory)
            assert read[estimate.estimator].config == estimate.config


@pytest.fixture
def record(tmp_path):
    """Return a valid record as plain values."""
    return json.loads((small_run(tmp_path / "valid") / "result.json").read_text())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not found"),
        ("", "JSON"),
        ("{" * 5000, "JSON"),
        ('{"schema": ' + "[" * 100_000, "JSON"),
        ("[]", "result.json: expected"),
        ("{}", "schema is None"),
        ('{"schema": "kmifqe.result/9"}', "schema is 'kmifqe.result/9'"),
        ('{"schema": "kmifqe.result/3"}', "missing required field"),
    ],
)
def test_what_is_no_record_is_refused(text, said, tmp_path):
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError, match=said) as refused:
        Result.load(tmp_path)
    assert str(tmp_path / "result.json") in str(refused.value)


@pytest.mark.parametrize("schema", ["kmifqe.result/1", "kmifqe.result/2"])
def test_an_older_record_is_refused_with_the_version_that_wrote_it(schema, tmp_path):
    old = {"schema": schema, "versions": {"kmifqe": "0.0.7"}, "estimates": [], "verdict": None}
    (tmp_path / "result.json").write_text(json.dumps(old))
    with pytest.raises(
        InputError, match=rf"{schema}'.* written by kmifqe 0\.0\.7.* reads 'kmifqe\.result/3'"
    ):
        Result.load(tmp_path)


def broken(record, place, value):
    """Return the record with another value at a place such as "estimates.0.gamma"; None removes the field."""
    *parents, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    inside = record
    for parent in parents:
        inside = inside[parent]
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    return record


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("estimates", [], "the field estimates is empty"),
        ("estimates.0", 3, r"estimates\[0\].*found int"),
        ("estimates.0.gamma", 1.0, "expected 0 <= gamma < 1"),
        ("estimates.0.steps", "many", r"estimates\[0\]\.steps.*found str"),
        ("estimates.0.steps", 0, "at least 1 step"),
        ("estimates.0.seeds", [0], r"values of kmifqe has the shape \(2,\); expected \(1,\)"),
        ("estimates.0.trajectory", None, "missing required field trajectory"),
        ("estimates.0.trajectory", [[1.0]], r"trajectory of kmifqe has the shape \(1, 1\)"),
        ("estimates.0.trajectory", [[1.0], [2.0, 3.0]], r"estimates\[0\]\.trajectory"),
        ("estimates.0.trajectory", "steep", r"estimates\[0\]\.trajectory"),
        ("estimates.0.infos.h", [1.0], r"h of kmifqe has the shape \(1,\)"),
        ("intervals.fqe", None, "intervals lacks fqe"),
        ("verdicts.fqe", None, "verdicts lacks fqe"),
        ("verdicts.fqe.word", "perhaps", "verdicts"),
        ("checks.0.level", "great", r"checks\[0\]\.level"),
        ("checks", "fine", "checks.*found str"),
        ("estimates.0.measurements", 3, "the field measurements: Expected"),
        ("estimates.0.measurements.log.reward_mean", "high", r"measurements: .*log\.reward_mean"),
    ],
)
def test_a_field_that_is_wrong_is_named(record, place, value, said, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(broken(record, place, value)))
    with pytest.raises(InputError, match=said) as refused:
        Result.load(tmp_path)
    assert str(tmp_path / "result.json") in str(refused.value)


def places(inside, path=()):
    """Yield the path of every field of a record, of a list the first element only."""
    yield path
    if isinstance(inside, dict):
        for name, value in inside.items():
            yield from places(value, (*path, name))
    elif isinstance(inside, list) and inside:
        yield from places(inside[0], (*path, 0))


@pytest.mark.parametrize("other", [None, -1, 1e308, "text", [], [[]], {}, {"a": None}, True], ids=repr)
def test_any_field_can_be_anything_and_costs_a_page_or_a_sentence(record, other, tmp_path):
    paths = [path for path in places(record) if path]
    assert len(paths) > 100
    refused = []
    for path in paths:
        changed = copy.deepcopy(record)
        inside = changed
        for part in path[:-1]:
            inside = inside[part]
        inside[path[-1]] = other
        (tmp_path / "result.json").write_text(json.dumps(changed))
        try:
            assert "<article" in render_page([Result.load(tmp_path)])
        except InputError as error:
            refused.append(str(error))
    assert 0 < len(refused) < len(paths)
    assert all(sentence.startswith(str(tmp_path / "result.json")) for sentence in refused)


@pytest.mark.parametrize("depth", [100, 900, 1500])
def test_deep_nesting_costs_a_page_or_a_sentence(record, depth, tmp_path):
    deep = json.loads("[" * min(depth, 900) + "]" * min(depth, 900))
    record["estimates"][0]["config"] = record["extra"] = {"deep": deep}
    text = json.dumps(record)
    if depth > 900:
        text = text.replace("[" * 900 + "]" * 900, "[" * depth + "]" * depth)
    (tmp_path / "result.json").write_text(text)
    try:
        assert "<article" in render_page([Result.load(tmp_path)])
    except InputError:
        assert depth > 100
