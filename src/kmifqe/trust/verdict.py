"""From checks to a verdict: trustworthy, use with care, or do not use, with the reasons in order of weight."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal

import msgspec
import numpy as np

from kmifqe.errors import InputError, meant
from kmifqe.estimators.base import Estimate
from kmifqe.io.format import digits
from kmifqe.trust.checks import Check, Reach, checks_of
from kmifqe.trust.checks.base import ORDER, Thresholds
from kmifqe.trust.interval import LEVEL, interval_of

Word = Literal["trustworthy", "use with care", "do not use"]
WORDS: tuple[Word, ...] = ("trustworthy", "use with care", "do not use")
# Errors are held against the interval of this level, the one that is shown unless a user asks for another: a verdict
# does not change with what is shown.
JUDGED_LEVEL = LEVEL

# What an average over estimates is judged by itself, because it is an average of theirs; all else is of the log or of
# one fit.
OF_AVERAGES = ("interval_width", "drift", "start_td", "unsolved", "state_coverage")
DISAGREEMENT = Thresholds(
    1.25,
    float("inf"),
    "two right estimates differ by more than 1.25 times their joint half-width about once in a hundred times; which "
    "of them is wrong the difference does not say",
)


class Verdict(msgspec.Struct, frozen=True):
    """Whether a value can be believed, and what speaks against it, the weightiest first."""

    word: Word
    reasons: tuple[str, ...]  # each a finding, with the advice that goes with it
    checks: tuple[str, ...] = ()  # the names of the checks behind the reasons


class Judgement(msgspec.Struct, frozen=True):
    """A run's checks, the worst first, and each estimator's verdict; the run's is the first estimator's."""

    checks: tuple[Check, ...]
    verdicts: dict[str, Verdict]  # by estimator, in the order in which they were asked for

    @property
    def verdict(self) -> Verdict:
        """The verdict on the headline value: that of the estimator that was asked for first."""
        return next(iter(self.verdicts.values()))


def judge(checks: Iterable[Check]) -> Verdict:
    """Return the verdict on one estimate: one bad check forbids its use, one that asks for care asks for it."""
    against = ranked(check for check in checks if check.level != "ok")
    worst = against[0].level if against else "ok"
    reasons = tuple(f"{check.finding} {check.advice}" for check in against)
    return Verdict(WORDS[("ok", "care", "bad").index(worst)], reasons, tuple(check.name for check in against))


def ranked(checks: Iterable[Check]) -> list[Check]:
    """Return the checks, the worst first, and those of one level in the order of ORDER."""
    return sorted(
        checks, key=lambda check: (("bad", "care", "ok").index(check.level), ORDER.index(check.name))
    )


def check_accepted(names: Iterable[str]) -> None:
    """Refuse to accept a check that does not exist."""
    for name in names:
        if name not in ORDER:
            raise InputError(
                f"accepted check {name!r} is unknown; expected some of {', '.join(sorted(ORDER))}{meant(name, ORDER)}"
            )


def judge_run(
    estimates: Sequence[Estimate], accepted: Collection[str] = (), level: float = LEVEL
) -> Judgement:
    """Return what is to be said of all estimates made from one log; each carries its measurements.

    `accepted` names checks whose question the user has answered, such as "unexplained_ends" where episodes do end by
    chance: they ask for care no longer. What forbids the use of a number still does. `level` is that of the intervals
    that the user is shown: reasons quote these. It changes no verdict.

    Only estimates that nothing forbids to use are compared with each other: to differ from a wrong one is no fault.
    An average over estimates is judged by its own checks, and else by what speaks against the best judged of its
    members: the others are averaged with it because they are not wrong, and what they differ by widens the interval.
    But an error that was measured of one member is in the average too, by that member's weight.
    """
    reaches = [_reach(estimate, level) for estimate in estimates]
    each = [
        [_answered(check, accepted) for check in checks_of(estimate, reach)]
        for estimate, reach in zip(estimates, reaches)
    ]
    fitted = [i for i, estimate in enumerate(estimates) if not estimate.members]
    sound = [i for i in fitted if judge(each[i]).word != "do not use"]
    disagreement, involved = compared([estimates[i] for i in sound], [reaches[i] for i in sound])
    checks = _said_once([each[i] for i in fitted])
    for i in set(range(len(estimates))) - set(fitted):
        own = [check for check in each[i] if check.name in OF_AVERAGES]
        checks += own
        of_fits = {estimates[j].estimator: each[j] for j in fitted}
        each[i] = [*own, *_against_best(estimates[i], of_fits, {check.name for check in own})]
    if disagreement is not None:
        checks.append(disagreement)
        for i, estimate in enumerate(estimates):
            if estimate.estimator in involved or any(name in involved for name in estimate.members):
                each[i].append(disagreement)
    verdicts = {estimate.estimator: judge(found) for estimate, found in zip(estimates, each)}
    return Judgement(tuple(ranked(checks)), verdicts)


def _answered(check: Check, accepted: Collection[str]) -> Check:
    """Return the `check`, of level "ok" where it only asks for care and its name is among the `accepted` ones."""
    if check.name not in accepted or check.level != "care":
        return check
    finding = f"{check.finding} This was accepted."
    return msgspec.structs.replace(check, level="ok", finding=finding, advice="")


def _against_best(
    average: Estimate, of_fits: Mapping[str, Sequence[Check]], own: Collection[str]
) -> list[Check]:
    """Return what speaks against the best judged member of an `average`, by the checks `of_fits` by estimator.

    Checks that the average has of its `own`, by name, are left out.
    """
    against = {
        name: [c for c in of_fits[name] if c.level != "ok" and c.name not in own] for name in average.members
    }
    return min(against.values(), key=lambda checks: (WORDS.index(judge(checks).word), len(checks)))


def compared(
    estimates: Sequence[Estimate], reaches: Sequence[Reach | None]
) -> tuple[Check | None, tuple[str, ...]]:
    """Return one check of whether `estimates` agree, None without two of them, and the estimators it is about.

    `reaches` are those of their intervals. A disagreement is about the estimators that some other contradicts.
    """
    both = zip(estimates, reaches, strict=True)
    known = [(each, reach) for each, reach in both if reach is not None and np.isfinite(each.value)]
    pairs = [
        (
            abs(one.value - other.value) / max(float(np.hypot(a.judged, b.judged)), 1e-300),
            (one, a),
            (other, b),
        )
        for (one, a), (other, b) in combinations(known, 2)
    ]
    if not pairs:
        return None, ()
    ratio, (one, a), (other, b) = max(pairs, key=lambda pair: pair[0])
    apart = [pair for pair in pairs if DISAGREEMENT.level(pair[0]) != "ok"] or pairs
    involved = [e for e, _ in known if any(e is each for pair in apart for each, _ in pair[1:])]
    check = DISAGREEMENT.check(
        "disagreement",
        ratio,
        f"{', '.join(f'{e.estimator} says {digits(e.value)}' for e in involved)}: {one.estimator} and "
        f"{other.estimator} differ by {digits(abs(one.value - other.value))}; of the one {a.said}, of the other "
        f"{digits(b.shown)}.",
        "Find out which is wrong before you use either: train for more steps, or try the target for some episodes.",
        shown=lambda x: f"{digits(x)} times both half-widths together, of 95 % intervals",
    )
    return check, tuple(e.estimator for e in involved)


def _reach(estimate: Estimate, level: float) -> Reach | None:
    """Return the reach of the intervals, or twice the standard error over seeds; None for a single seed."""
    judged, shown = interval_of(estimate, JUDGED_LEVEL), interval_of(estimate, level)
    if judged is not None and shown is not None:
        return Reach(0.5 * judged.width, 0.5 * shown.width, level)
    twice = 2.0 * estimate.standard_error
    return Reach(twice, twice, None) if len(estimate.known) > 1 else None


def _said_once(each: Sequence[Sequence[Check]]) -> list[Check]:
    """Return all checks; what is said alike of every one of several estimates is said once, of the log."""
    if len(each) == 1:
        return list(each[0])
    of_log = [[msgspec.structs.replace(check, estimator="") for check in found] for found in each]
    shared = [check for check in of_log[0] if all(check in found for found in of_log)]
    own = [c for found, bare in zip(each, of_log) for c, b in zip(found, bare) if b not in shared]
    return [*own, *shared]
