"""Records of both schemas open; what is no record is refused by file and field."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate
from kmifqe.mdp.problem import RowCounts
from kmifqe.report.html.source import Interval, finite, read_run
from kmifqe.report.result import Result, result_record, write_record
from report.html.small import small_estimate, small_landscape, small_record, small_run


def test_a_run_is_read_with_its_landscape(tmp_path):
    run = read_run(small_run(tmp_path, small_landscape()))
    assert [told.estimator for told in run.estimates] == ["kmifqe", "fqe", "sr-dice"]
    assert run.main.interval == Interval(-3.95, -3.62, 0.9)
    assert run.verdict == "do not use"
    assert [check.level for check in run.checks] == ["care", "bad", "ok"]
    assert run.landscape is not None
    assert run.landscape_note is None


def test_what_an_evaluation_writes_is_read(tmp_path):
    values = np.array([1.0, np.nan])
    estimate = Estimate(
        "fqe",
        {"clip": [0.0, float("inf")]},
        0.9,
        seeds=(0, 1),
        steps=20,
        values=values,
        recorded_steps=np.array([10, 20]),
        trajectory=np.stack([0.5 * values, values]),
        infos={"loss": np.ones((2, 2))},
        seconds=1.0,
        device="cpu",
    )
    counts = RowCounts(100, 100, 90, 0, 10, 0, 10)
    record = result_record(
        Result.of([estimate]),
        SimpleNamespace(gamma=0.9, counts=counts),
        data="log.npz",
        policy="actor.npz",
        behavior="none",
        command=["evaluate"],
    )
    write_record(record, tmp_path / "result.json")
    told = read_run(tmp_path).main
    assert (told.value, told.values, told.recorded) == (1.0, (1.0, None), (10, 20))
    assert told.series["value"] == [[0.5, None], [1.0, None]]
    assert told.steps == 20


def test_a_record_file_serves_as_well_as_its_directory(tmp_path):
    assert read_run(small_run(tmp_path) / "result.json").path == tmp_path


def test_the_first_estimator_is_the_one_the_verdict_is_about(tmp_path):
    estimates = [small_estimate("fqe"), small_estimate("kmifqe")]
    assert read_run(small_run(tmp_path, estimates=estimates)).main.estimator == "fqe"


def test_the_first_schema_opens_without_trust(tmp_path):
    estimate = small_estimate("kmifqe")
    for later in ("interval", "measurements"):
        del estimate[later]
    run = read_run(
        small_run(tmp_path, schema="kmifqe.result/1", estimates=[estimate], diagnostics=None, verdict=None)
    )
    assert (run.verdict, run.checks, run.main.interval) == (None, (), None)


def test_a_landscape_of_another_run_is_left_out_and_named(tmp_path):
    estimate = small_estimate("kmifqe") | {"values": [-9.0, -8.0]}
    run = read_run(small_run(tmp_path, small_landscape(), estimates=[estimate]))
    assert run.landscape is None
    assert "of another run" in run.landscape_note
    (tmp_path / "landscape.npz").write_bytes(b"")
    assert "landscape.npz: not a readable zip archive" in read_run(tmp_path).landscape_note


def without(record, *names):
    return {name: value for name, value in record.items() if name not in names}


ESTIMATE = small_estimate("fqe")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not found"),
        ("", "cannot be read as a JSON record"),
        ("{" * 5000, "cannot be read as a JSON record"),
        ("[" * 100_000, "cannot be read as a JSON record"),
        ("[]", "expected an object"),
        ("{}", "field schema is None"),
        ('{"schema": "kmifqe.result/9"}', "field schema is 'kmifqe.result/9'"),
        ('{"schema": "kmifqe.result/2"}', "field estimates should be a list, found nothing"),
        (small_record(estimates=[]), "field estimates is empty"),
        (small_record(estimates=[3]), r"field estimates\[0\] should be an object, found 3"),
        (small_record(estimates=[ESTIMATE | {"gamma": 1.0}]), r"estimates\[0\].gamma is 1.0"),
        (small_record(estimates=[ESTIMATE | {"steps": "many"}]), r"estimates\[0\].steps should be a whole"),
        (small_record(estimates=[ESTIMATE | {"seeds": [0]}]), "values has 2 entries for 1 seeds"),
        (small_record(estimates=[without(ESTIMATE, "trajectory")]), r"estimates\[0\].trajectory should be"),
        (
            small_record(estimates=[ESTIMATE | {"trajectory": {"step": [1], "value": [[1.0]]}}]),
            "should hold 1 records of 2 seeds",
        ),
        (small_record(verdict={"reasons": []}), "field verdict.word should be text"),
        (small_record(diagnostics=[{"level": "great"}]), r"diagnostics\[0\].level is 'great'"),
        (small_record(diagnostics="fine"), "field diagnostics should be a list"),
    ],
)
def test_what_is_no_record_is_refused_by_file_and_field(text, said, tmp_path):
    if text is not None:
        (tmp_path / "result.json").write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(InputError, match=said) as refused:
        read_run(tmp_path)
    assert str(tmp_path / "result.json") in str(refused.value)


def test_only_finite_numbers_are_numbers():
    assert finite(2) == 2.0
    for x in (None, True, "2", float("nan"), -np.inf, 10**400, [1]):
        assert finite(x) is None
