"""One diagnostic: a number, what it means in a sentence, and where it becomes worrying and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from kmifqe.estimators.base import plain

Level = Literal["ok", "care", "bad"]


@dataclass(frozen=True)
class Diagnostic:
    """What was found (`line`), how bad it is, and the threshold it was held against with its reason."""

    name: str
    value: float | None
    level: Level
    line: str
    threshold: str
    reason: str
    about: str = ""  # the estimator, or "" for the log itself

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {name: plain(value) for name, value in asdict(self).items()}

    def of(self, estimator: str) -> Diagnostic:
        """Return the same, said of an estimator."""
        return replace(self, about=estimator)


@dataclass(frozen=True)
class Limit:
    """Where a number becomes worrying (care) and where it speaks against any use (bad), and why there."""

    care: float
    bad: float
    reason: str
    below: bool = False  # True: small values are the bad ones

    def level(self, value: float) -> Level:
        """Return how bad the value is; what is no number is bad."""
        sign = -1.0 if self.below else 1.0
        if not sign * value <= sign * self.bad:
            return "bad"
        return "ok" if sign * value <= sign * self.care else "care"

    def words(self, shown: Callable[[float], str]) -> str:
        """Return both thresholds as text."""
        side = "below" if self.below else "above"
        parts = [
            f"{name} {side} {shown(limit)}"
            for name, limit in (("care", self.care), ("bad", self.bad))
            if abs(limit) != float("inf")
        ]
        return ", ".join(parts)


def percent(share: float) -> str:
    """Return a share as a person reads it: 0.03 % and 99.98 % are not 0 % and 100 %."""
    text = f"{share:.0%}" if 0.1 <= share <= 0.9 or share in (0.0, 1.0) else f"{share:.1%}"
    if text == "0.0%" and share > 0:
        return "<0.1%"
    return ">99.9%" if text == "100.0%" and share < 1 else text.replace(".0%", "%")


def digits(x: float) -> str:
    """Return a number with three significant digits."""
    return f"{x:,.0f}" if 1e3 <= abs(x) < 1e6 else f"{x:.3g}"


def graded(
    name: str, value: float, limit: Limit, line: str, shown: Callable[[float], str] = percent
) -> Diagnostic:
    """Return the diagnostic of a value held against a limit."""
    return Diagnostic(name, float(value), limit.level(value), line, limit.words(shown), limit.reason)
