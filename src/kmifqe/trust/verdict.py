"""Diagnostics -> trustworthy, use with care, or do not use, with the reasons in order of weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kmifqe.estimators.base import Estimate
from kmifqe.trust.checks.diagnose import Diagnostic, diagnose, disagreements
from kmifqe.trust.interval import interval_of

Word = Literal["trustworthy", "use with care", "do not use"]
JUDGED_LEVEL = 0.9
WORDS: tuple[Word, ...] = ("trustworthy", "use with care", "do not use")

# From what makes any number meaningless to what makes it somewhat less precise. Of two diagnostics of one level the
# one named earlier here is told first: it is often the cause of the other.
ORDER = (
    *("diverged", "ran_away", "reward_range", "time_limit", "flat_weights", "clipped_actions", "density_fit"),
    *(
        "distance",
        "rare_actions",
        "nearby_rows",
        "effective_rows",
        "mean_weight",
        "clipped_low",
        "clipped_high",
    ),
    *(
        "target_copies",
        "drift",
        "start_td",
        "kernel_bias",
        "bias_taken_off",
        "kernel_outside",
        "bandwidth",
        "held_out_td",
        "disagreement",
    ),
    *("episodes", "interval_width", "rows_dropped", "metric"),
)


@dataclass(frozen=True)
class Verdict:
    """Whether a value can be believed, and what speaks against it, the weightiest first."""

    word: Word
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {"word": self.word, "reasons": list(self.reasons)}


@dataclass(frozen=True)
class Diagnosis:
    """A run's diagnostics, the worst first, and each estimator's verdict; the run's is the first estimator's."""

    diagnostics: tuple[Diagnostic, ...]
    verdicts: dict[str, Verdict]  # by estimator, in the order in which they were asked for

    @property
    def verdict(self) -> Verdict:
        """The verdict on the headline value: that of the estimator that was asked for first."""
        return next(iter(self.verdicts.values()))


def judge(diagnostics: Iterable[Diagnostic]) -> Verdict:
    """Return the verdict on one estimate: one bad diagnostic forbids its use, one of care asks for it."""
    against = ranked(diagnostic for diagnostic in diagnostics if diagnostic.level != "ok")
    worst = against[0].level if against else "ok"
    word = WORDS[("ok", "care", "bad").index(worst)]
    return Verdict(word, tuple(diagnostic.line for diagnostic in against))


def ranked(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics, the worst first, and of one level in the order of ORDER."""
    return sorted(diagnostics, key=lambda d: (("bad", "care", "ok").index(d.level), ORDER.index(d.name)))


def diagnose_run(estimates: Sequence[Estimate], measurements: Sequence[Mapping[str, Any]]) -> Diagnosis:
    """Return what is to be said of all estimates made from one log; one entry of each argument per estimate.

    The verdict holds errors against an interval of one level, whatever level a user is shown.
    """
    intervals = [interval_of(estimate, JUDGED_LEVEL) for estimate in estimates]
    alone = [diagnose(*each) for each in zip(estimates, measurements, intervals, strict=True)]
    sound = [i for i, found in enumerate(alone) if judge(found).word != "do not use"]
    compared = disagreements([estimates[i] for i in sound], [intervals[i] for i in sound])
    each = [
        (*found, *(d for d in compared if d.about == estimate.estimator))
        for estimate, found in zip(estimates, alone)
    ]
    verdicts = {estimate.estimator: judge(found) for estimate, found in zip(estimates, each)}
    return Diagnosis(tuple(ranked(_told_once(each))), verdicts)


def _told_once(each: Sequence[Sequence[Diagnostic]]) -> list[Diagnostic]:
    """Return all diagnostics; what is said alike of every one of several estimates is said once, of the log."""
    if len(each) == 1:
        return list(each[0])
    of_log = [replace(d, about="") for d in each[0]]
    shared = [d for d in of_log if all(d in [replace(x, about="") for x in others] for others in each)]
    own = [d for found in each for d in found if replace(d, about="") not in shared]
    return [*own, *shared]
