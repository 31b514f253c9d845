"""One check: what was measured, how bad it is, where the thresholds lie and why, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from kmifqe.io.format import digits, percent

Level = Literal["ok", "care", "bad"]

# Every check, from what makes any number meaningless to what makes it somewhat less precise. Of two checks of one
# level the one named earlier comes first, because it is often the cause of the other.
ORDER = (
    *("diverged", "ran_away", "row_order", "lost_digits", "misplaced_rows", "copied_rows"),
    *("reward_range", "cut_values", "time_limit", "reset_states", "reward_shift", "unexplained_ends"),
    *("flat_weights", "clipped_actions", "density_fit", "target_density"),
    *("distance", "state_coverage", "rare_actions", "nearby_rows", "effective_rows", "mean_weight"),
    *("ratio_visits", "ratio_balance", "smoothed_ratio"),
    *("effective_episodes", "largest_weight", "unseen_steps"),
    *(
        "clipped_low",
        "clipped_high",
        "target_copies",
        "drift",
        "unsolved",
        "start_td",
        "kernel_bias",
        "bias_removed",
    ),
    *("kernel_outside", "bandwidth", "held_out_td", "disagreement"),
    *("episodes", "interval_width", "rows_dropped", "metric"),
)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One fact about an estimate or its log, held against two thresholds."""

    name: str  # one of ORDER
    estimator: str = ""  # the estimator that it is about; "" for the log itself
    level: Level
    value: float | None  # what was measured; None where there is no finite number
    care: float | None  # the value at which care begins; None where no such value exists
    bad: float | None  # the value at which the estimate is not to be used; None where no such value exists
    finding: str  # what was found, one sentence
    threshold: str  # both thresholds as text
    reason: str  # why the thresholds lie there
    advice: str = ""  # what to do about it, one sentence; "" where the level is "ok"


class Reach(NamedTuple):
    """How far V̂'s interval reaches to either side."""

    judged: float  # of the 95 % interval: what errors are held against
    shown: float  # of the interval that the user is shown
    level: float | None = 0.95  # of that one; None where there is none and both are twice the standard error

    @property
    def name(self) -> str:
        """What reaches so far."""
        return "doubled standard error" if self.level is None else f"{100 * self.level:.4g} % interval"

    @property
    def said(self) -> str:
        """The part of a sentence that quotes what is shown."""
        return f"the {self.name} reaches {digits(self.shown)} to either side"

    def held_against(self, error: float) -> float:
        """Return the size of an `error` of V̂ in half-widths of the 95 % interval."""
        return abs(error) / max(self.judged, 1e-300)


def half_widths(x: float) -> str:
    """Return a threshold of `Reach.held_against` as text."""
    return f"{digits(x)} half-widths of the 95 % interval"


@dataclass(frozen=True)
class Thresholds:
    """Where a value asks for care and where it forbids any use, and why there."""

    care: float
    bad: float
    reason: str
    below: bool = False  # True: small values are the bad ones

    def level(self, value: float) -> Level:
        """Return how bad the value is; NaN is bad."""
        sign = -1.0 if self.below else 1.0
        if not sign * value <= sign * self.bad:
            return "bad"
        return "ok" if sign * value <= sign * self.care else "care"

    def text(self, shown: Callable[[float], str]) -> str:
        """Return both thresholds as text, each number as `shown` writes it; an infinite one is left out."""
        side = "below" if self.below else "above"
        both = (("care", self.care), ("bad", self.bad))
        return ", ".join(f"{name} {side} {shown(limit)}" for name, limit in both if math.isfinite(limit))

    def check(
        self,
        name: str,
        value: float | None,
        finding: str,
        advice: str,
        *,
        shown: Callable[[float], str] | None = None,
        level: Level | None = None,
        threshold: str | None = None,
    ) -> Check:
        """Return the check called `name` of a `value`, None or not finite where there is no number.

        `finding` says what was found and `advice` what to do about it; the advice is left out where the level is
        "ok". `shown` writes a threshold as text, by default as a percentage. `level` and `threshold` (the thresholds
        as text) are given where the numbers alone do not say them.
        """
        level = level or self.level(math.nan if value is None else value)
        return Check(
            name=name,
            level=level,
            value=_finite(value),
            care=_finite(self.care),
            bad=_finite(self.bad),
            finding=finding,
            threshold=self.text(shown or percent) if threshold is None else threshold,
            reason=self.reason,
            advice="" if level == "ok" else advice,
        )


def unjudged(reason: str) -> Thresholds:
    """Return thresholds that no number passes, for a check whose level is decided otherwise or always "ok"."""
    return Thresholds(math.inf, math.inf, reason)


def _finite(x: float | None) -> float | None:
    return None if x is None or not math.isfinite(x) else float(x)
