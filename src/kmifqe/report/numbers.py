"""Numbers as a person reads them, whatever their size."""

from __future__ import annotations

import math

PLAIN = (0.01, 1e5)  # sizes that three decimals show well


def number(x: float, size: float | None = None, *, sign: bool = False, decimals: int = 3) -> str:
    """Return x with fixed decimals, or with three significant digits where these would say nothing or too much.

    `size` decides in place of |x|: a value and its spread are then written alike.
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
