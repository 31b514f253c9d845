import pytest

from kmifqe.report.terminal import number, plus_minus

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
