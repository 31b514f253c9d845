import ast
import math
from pathlib import Path

import msgspec
import pytest

import kmifqe.trust
from kmifqe.io.format import digits
from kmifqe.trust.checks.base import ORDER, Check, Thresholds, unjudged

ABOVE = Thresholds(0.1, 0.5, "why")
BELOW = Thresholds(100, 30, "why", below=True)


@pytest.mark.parametrize(
    "thresholds, value, level",
    [
        (ABOVE, 0.1, "ok"),
        (ABOVE, 0.11, "care"),
        (ABOVE, 0.5, "care"),
        (ABOVE, 0.51, "bad"),
        (ABOVE, math.nan, "bad"),
        (BELOW, 100, "ok"),
        (BELOW, 99, "care"),
        (BELOW, 30, "care"),
        (BELOW, 29, "bad"),
        (BELOW, math.nan, "bad"),
        (Thresholds(1.0, math.inf, "why"), 1e9, "care"),
    ],
)
def test_levels(thresholds, value, level):
    assert thresholds.level(value) == level
    assert thresholds.check("drift", value, "found", "advice").level == level


def test_thresholds_as_text():
    assert ABOVE.check("drift", 0.2, "found", "advice").threshold == "care above 10%, bad above 50%"
    assert BELOW.text(digits) == "care below 100, bad below 30"
    assert Thresholds(1.0, math.inf, "why").text(digits) == "care above 1"


def test_a_check_survives_json_and_an_infinite_number_is_none():
    check = ABOVE.check("drift", math.nan, "found", "advice")
    assert (check.value, check.care, check.bad) == (None, 0.1, 0.5)
    assert unjudged("why").check("metric", 3.0, "found", "").care is None
    assert msgspec.json.decode(msgspec.json.encode(check), type=Check) == check


def test_advice_is_kept_where_something_is_to_be_done():
    assert ABOVE.check("drift", 0.0, "found", "advice").advice == ""
    assert ABOVE.check("drift", 0.0, "found", "advice", level="care").advice == "advice"


def calls_of_check():
    """Return every call `….check("name", value, finding, advice, …)` in the source of this room."""
    for path in Path(kmifqe.trust.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "check":
                yield node


def test_every_check_has_a_place_in_the_order_and_the_order_names_no_other():
    assert {ast.literal_eval(call.args[0]) for call in calls_of_check()} == set(ORDER)
    assert len(set(ORDER)) == len(ORDER)


def test_every_check_that_can_fail_has_advice():
    without = {ast.literal_eval(call.args[0]) for call in calls_of_check() if _is_empty(call.args[3])}
    assert without == {"metric"}  # which is never judged


def _is_empty(node):
    return isinstance(node, ast.Constant) and node.value == ""
