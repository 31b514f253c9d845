"""One estimate out of several: the average over those that are fit for use, weighted by how well each is known.

KMIFQE learns from logged actions alone and FQE from what a network makes of the target's own. Which of the two is
nearer to the truth depends on the log, and no log says which. But each has an interval and a verdict. So estimates
that are not to be used are left out, and the others are averaged with weights 1/variance, the variance of their
intervals. docs/estimators/auto.md has what that is worth.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.estimators.registry import find_entry
from kmifqe.io.format import percent
from kmifqe.trust.checks.training import StartFacts
from kmifqe.trust.influence import ChanceFacts
from kmifqe.trust.interval import variance_of
from kmifqe.trust.verdict import WORDS, Verdict, judge_run


def average(name: str, estimates: Sequence[Estimate], accepted: Collection[str] = ()) -> Estimate:
    """Return one estimate called `name`: the weighted average of those of `estimates` that nothing forbids to use.

    The estimates are of one problem, with the same seeds. Where none is fit for use all are averaged, for the average
    to be judged so. Where none has an interval the weights are equal. `accepted` are checks as of `judge_run`.
    """
    verdicts = judge_run(estimates, accepted).verdicts
    sound = [each for each in estimates if verdicts[each.estimator].word != WORDS[-1]] or list(estimates)
    finite = [each for each in sound if np.isfinite(each.value)] or sound[:1]
    variances = {each.estimator: variance_of(each) for each in finite}
    known = {each: 1.0 / variance for each, variance in variances.items() if variance}
    shares = known or dict.fromkeys(variances, 1.0)
    weights = {each: share / sum(shares.values()) for each, share in shares.items()}
    return _averaged(name, [each for each in finite if each.estimator in weights], weights)


def sentence(estimate: Estimate, verdicts: Mapping[str, Verdict]) -> str:
    """Return what was averaged and why, for a person who reads the `estimate`; `verdicts` are those of the run."""
    members = " and ".join(f"{name} ({percent(weight)})" for name, weight in estimate.members.items())
    entry = find_entry(estimate.estimator)
    could_be = (
        verdicts if entry is None else entry.panel
    )  # others of the run were asked for beside the average
    left_out = [
        f"{name} is judged '{verdict.word}' and left out"
        for name, verdict in verdicts.items()
        if name in could_be and name not in (*estimate.members, estimate.estimator)
    ]
    how = "weighted by how well each is known" if len(estimate.members) > 1 else "alone"
    return f"{estimate.estimator} is {members}, {how}{''.join(f'; {each}' for each in left_out)}."


def _averaged(name: str, estimates: Sequence[Estimate], weights: dict[str, float]) -> Estimate:
    """Return the average of `estimates` with `weights`, network by network and record by record."""
    first = estimates[0]
    shares = [weights[each.estimator] for each in estimates]
    # Estimators may have other numbers of steps: records are put side by side by the share of the steps.
    at = max((each.recorded_steps / each.steps for each in estimates), key=len)
    trajectories = [_interpolated(each, at) for each in estimates]
    values = np.average([each.values for each in estimates], axis=0, weights=shares)
    steps = max(each.steps for each in estimates)
    return replace(
        first,
        estimator=name,
        config={},
        steps=steps,
        values=values,
        recorded_steps=np.round(at * steps).astype(int),
        trajectory=np.average(trajectories, axis=0, weights=shares),
        infos={},
        seconds=sum(each.seconds for each in estimates),
        final_state=None,
        bootstrap=all(each.bootstrap for each in estimates),
        measurements=_measured(estimates, shares, float(np.nanmean(values))),
        members=dict(zip((each.estimator for each in estimates), shares)),
    )


def _interpolated(estimate: Estimate, at: np.ndarray) -> np.ndarray:
    """Return V̂ of every network when these shares of the steps were done, (records, networks)."""
    own = estimate.recorded_steps / estimate.steps
    return np.stack([np.interp(at, own, column) for column in estimate.trajectory.T], axis=1)


def _measured(estimates: Sequence[Estimate], shares: Sequence[float], value: float) -> object:
    """Return what is known of the log, and how far V̂ would move with another; None where one was not measured."""
    found = [each.measurements for each in estimates]
    if any(each is None for each in found):
        return None
    chances: list[ChanceFacts | None] = [each.chance for each in found]
    chance = None
    if all(each is not None for each in chances):
        between = np.average([(each.value - value) ** 2 for each in estimates], weights=shares)
        means: dict[str, Any] = {
            name: float(np.average([getattr(each, name) for each in chances], weights=shares))
            for name in ("log_std", "first_std", "unsolved", "visited_rows", "negative_visits")
        }
        each_moves = [each.moves for each in chances if each is not None]
        alike = len({len(moves) for moves in each_moves}) == 1
        moves = np.average(each_moves, axis=0, weights=shares) if alike else ()
        chance = ChanceFacts(**means, between_std=float(np.sqrt(between)), moves=tuple(map(float, moves)))
    starts = [each.start for each in found]
    start = None
    if all(each is not None for each in starts):
        # All were seen along the same episodes, so their errors add up where they are most alike.
        missed, error = np.average(
            [(each.start_td, each.start_td_error) for each in starts], axis=0, weights=shares
        )
        start = StartFacts(start_td=float(missed), start_td_error=float(error))
    # What is judged of single fits, such as their weights, is judged there; the log is the same for all.
    return msgspec.structs.replace(
        found[0],
        uses_density=False,
        arrived=None,
        density=None,
        weights=None,
        kernel=None,
        td=None,
        start=start,
        ratio=None,
        chance=chance,
    )
