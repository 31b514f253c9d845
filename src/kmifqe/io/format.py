"""Numbers as a person reads them."""

from __future__ import annotations

import math

PLAIN = (0.01, 1e5)  # sizes that three decimals show well


def number(x: float, size: float | None = None, *, sign: bool = False, decimals: int = 3) -> str:
    """Return `x` with fixed decimals, or with three significant digits where these would say nothing or too much.

    size: decides in place of |x| (the default), so that a value and its spread are written alike.
    sign: write a plus sign before a positive number; False by default.
    decimals: how many digits follow the point, by default 3.
    """
    largest = abs(x if size is None else size)
    fixed = largest == 0 or not math.isfinite(largest) or PLAIN[0] <= largest < PLAIN[1]
    return f"{x:{'+' if sign else ''}{f'.{decimals}f' if fixed else '.3g'}}"


def plus_minus(value: float, spread: float) -> str:
    """Return "value ± spread", both written alike; the value alone where one seed leaves no spread."""
    if math.isnan(spread) and not math.isnan(value):
        return number(value)
    size = max(abs(x) for x in (value, spread, 0.0) if not math.isnan(x))
    return f"{number(value, size)} ± {number(spread, size)}"


def percent(share: float) -> str:
    """Return a share in percent, such that 0.03 % and 99.98 % do not read as 0 % and 100 %."""
    text = f"{share:.0%}" if 0.1 <= share <= 0.9 or share in (0.0, 1.0) else f"{share:.1%}"
    if text == "0.0%" and share > 0:
        return "<0.1%"
    return ">99.9%" if text == "100.0%" and share < 1 else text.replace(".0%", "%")


def digits(x: float) -> str:
    """Return a number with three significant digits, or all digits between a thousand and a million."""
    return f"{x:,.0f}" if 1e3 <= abs(x) < 1e6 else f"{x:.3g}"


def size(bytes_: int) -> str:
    """Return an amount of memory in the largest unit that fits into it: 1.5 GiB, 3.0 MiB, 12 KiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if bytes_ >= scale:
            return f"{bytes_ / scale:.1f} {unit}"
    return f"{bytes_ / 2**10:.0f} KiB"


def duration(seconds: float) -> str:
    """Return a length of time in the largest unit that fits into it twice: 2.3 days, 2.5 h, 2.0 min, 119 s."""
    for unit, scale in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds:.0f} s"
