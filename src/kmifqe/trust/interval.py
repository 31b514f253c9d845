"""A confidence interval for V(π̃) from three sources: another log, another training, and what no network fits.

V̂ is the mean over K networks. Another log of as many episodes would move it by about σ, which `trust.influence`
reads off the networks (`ChanceFacts.log_std`). The spread s over networks is averaged out in their mean, s/√K, but it
also tells how far wrong all of them are alike: measured, by as much as they differ. And where all networks agree they
can still be wrong together: a twentieth of what single episodes scatter, u (`LogFacts.value_unit`), is always
allowed for. So the interval is

    V̂ ± t·√(σ² + s²(1 + 1/K) + (0.05u)² + d²),

where d is how far the estimators differ whose values were averaged (`trust.choice`), 0 for a single one. Where an
estimator offers no features to read σ from, σ is left out: networks that each saw the log's episodes with weights of
their own differ by what another log would have changed too. See docs/concepts/intervals.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate

LEVEL = 0.95
# Both were chosen on the half of a study that is for choosing (docs/concepts/intervals.md).
SHARED = 1.0  # what networks have wrong alike, squared, in units of the variance over networks
LEAST_ERROR = 0.05  # of `LogFacts.value_unit`: the error that is left where networks agree


@dataclass(frozen=True)
class ConfidenceInterval:
    """low ≤ V(π̃) ≤ high with probability `level`, in the normalised scale, as far as V̂ has no bias."""

    low: float
    high: float
    level: float
    freedom: float  # degrees of freedom of Student's t: how well the width itself is known

    @property
    def width(self) -> float:
        """high − low."""
        return self.high - self.low

    @property
    def width_error(self) -> float:
        """Relative standard error of the width: with 10 degrees of freedom about a quarter."""
        return float(np.sqrt(0.5 / self.freedom))

    def to_dict(self) -> dict[str, float]:
        """Return what result.json keeps."""
        return {"low": self.low, "high": self.high, "level": self.level}

    def contains(self, value: float) -> bool:
        """Whether the value lies inside."""
        return self.low <= value <= self.high

    def discounted(self, gamma: float) -> ConfidenceInterval:
        """The interval of the expected discounted return, V/(1 − γ)."""
        return replace(self, low=self.low / (1.0 - gamma), high=self.high / (1.0 - gamma))


def check_level(level: float) -> None:
    """Refuse a level that is no probability."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level is {level}; expected a number between 0 and 1, such as {LEVEL}")


def interval_of(estimate: Estimate, level: float = LEVEL) -> ConfidenceInterval | None:
    """Return the interval, None where it cannot be told: fewer than two networks or episodes, or one diverged.

    A network that diverged is a log like this one from which V̂ is anything: no finite interval tells of it. Without
    features to read the log's part from (`ChanceFacts`), every network needs episode weights of its own.
    """
    check_level(level)
    return _interval(estimate.value, _variances(estimate), level)


def narrowing(estimate: Estimate, networks: int) -> float | None:
    """Return by which share the interval of `estimate` becomes narrower with so many `networks`; None without one.

    It is taken that they differ as those that are there do. The rest of the width is then what another log would
    change, what no network fits, and how far averaged estimators differ.
    """
    now, then = (_interval(0.0, _variances(estimate, each), LEVEL) for each in (None, networks))
    return None if now is None or then is None else 1.0 - then.width / now.width


def _interval(
    value: float, parts: list[tuple[float, float]] | None, level: float
) -> ConfidenceInterval | None:
    if parts is None:
        return None
    variance = sum(part for _, part in parts)
    spread = sum(part**2 / freedom for freedom, part in parts)
    freedom = variance**2 / spread if spread > 0 else min(freedom for freedom, _ in parts)  # Satterthwaite's
    half = float(stdtrit(freedom, 0.5 + 0.5 * level) * np.sqrt(variance))
    return ConfidenceInterval(value - half, value + half, level, freedom)


def variance_of(estimate: Estimate) -> float | None:
    """Return the variance that the interval of `estimate` is made from; None where there is no interval."""
    parts = _variances(estimate)
    return None if parts is None else float(sum(part for _, part in parts))


def _variances(estimate: Estimate, networks: int | None = None) -> list[tuple[float, float]] | None:
    """Return the interval's variances, each with its degrees of freedom; None where there is no interval.

    They are those of so many `networks` that spread as the estimate's do; None: of its own.
    """
    episodes = estimate.episodes
    if len(estimate.values) < 2 or episodes < 2 or estimate.diverged:
        return None
    seeds = len(estimate.values) if networks is None else networks
    found = estimate.measurements
    least = 0.0 if found is None else (LEAST_ERROR * found.log.value_unit) ** 2
    training = estimate.spread**2 * (SHARED + 1.0 / seeds)
    if found is not None and found.chance is not None:
        chance = found.chance
        return [
            (episodes - 1, chance.log_std**2 + least),
            (seeds - 1, training + chance.between_std**2),
        ]
    if not estimate.bootstrap:
        return None
    # Bayesian weights spread a mean over m episodes by (m − 1)/(m + 1) of what its variance is.
    training *= (episodes + 1) / (episodes - 1)
    return [(1.0 / (1.0 / (seeds - 1) + 1.0 / (episodes - 1)), training), (episodes - 1, least)]
