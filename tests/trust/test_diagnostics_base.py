import math

import pytest

from kmifqe.trust.checks.base import Limit, digits, graded, percent

ABOVE = Limit(0.1, 0.5, "why")
BELOW = Limit(100, 30, "why", below=True)


@pytest.mark.parametrize(
    "limit, value, level",
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
        (Limit(1.0, math.inf, "why"), 1e9, "care"),
    ],
)
def test_levels(limit, value, level):
    assert limit.level(value) == level


def test_thresholds_in_words():
    assert graded("name", 0.2, ABOVE, "line").threshold == "care above 10%, bad above 50%"
    assert BELOW.words(digits) == "care below 100, bad below 30"
    assert Limit(1.0, math.inf, "why").words(digits) == "care above 1"


@pytest.mark.parametrize(
    "share, text",
    [
        (0.0, "0%"),
        (1.0, "100%"),
        (0.0004, "<0.1%"),
        (0.012, "1.2%"),
        (0.05, "5%"),
        (0.5, "50%"),
        (0.9996, ">99.9%"),
    ],
)
def test_shares_near_the_ends_are_not_rounded_away(share, text):
    assert percent(share) == text


def test_a_diagnostic_is_plain_json():
    told = graded("name", math.nan, ABOVE, "line").of("fqe").to_dict()
    assert told == {
        "name": "name",
        "value": None,
        "level": "bad",
        "line": "line",
        "threshold": "care above 10%, bad above 50%",
        "reason": "why",
        "about": "fqe",
    }
