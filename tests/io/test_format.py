"""Numbers as a person reads them."""

import pytest

from kmifqe.io.format import digits, duration, number, percent, plus_minus, size

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "x, text",
    [
        (-4.4004, "-4.400"),
        (0.01, "0.010"),
        (0.0, "0.000"),
        (99_999.0, "99999.000"),
        (1e5, "1e+05"),
        (-1.2345e6, "-1.23e+06"),
        (2.5e-6, "2.5e-06"),
        (NAN, "nan"),
        (-INF, "-inf"),
    ],
)
def test_three_decimals_or_three_digits(x, text):
    assert number(x) == text


def test_a_sign_a_size_and_decimals_may_be_asked_for():
    assert number(0.5, sign=True) == "+0.500"
    assert number(1e-7, size=2.0) == "0.000"
    assert number(12.3456, decimals=2) == "12.35"


@pytest.mark.parametrize(
    "value, spread, text",
    [
        (-4.4, 0.1414, "-4.400 ± 0.141"),
        (1e-6, 1e-8, "1e-06 ± 1e-08"),
        (1e-6, 0.5, "0.000 ± 0.500"),
        (2.0, NAN, "2.000"),
        (NAN, NAN, "nan ± nan"),
    ],
)
def test_value_and_spread_are_written_alike(value, spread, text):
    assert plus_minus(value, spread) == text


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


@pytest.mark.parametrize(
    "seconds, said", [(0.4, "0 s"), (119, "119 s"), (120, "2.0 min"), (9_000, "2.5 h"), (2e5, "2.3 days")]
)
def test_durations_in_words(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize("amount, said", [(2048, "2 KiB"), (3 * 2**19, "1.5 MiB"), (5 * 2**30, "5.0 GiB")])
def test_sizes_in_words(amount: int, said: str) -> None:
    assert size(amount) == said


@pytest.mark.parametrize(
    "x, text",
    [(0.012345, "0.0123"), (999.0, "999"), (1234.5, "1,234"), (-45_678.0, "-45,678"), (2e6, "2e+06")],
)
def test_three_significant_digits_and_thousands_in_full(x, text):
    assert digits(x) == text
