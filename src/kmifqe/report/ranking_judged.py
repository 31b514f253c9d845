"""From the estimates of many policies to their ranking: order, differences, groups, advice, scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np
from scipy.special import ndtri

from kmifqe.behavior.fit_report import FitReport
from kmifqe.estimators.base import Estimate
from kmifqe.io.format import number, percent
from kmifqe.report.ranking import (
    Advice,
    Difference,
    EstimatorValue,
    RankedPolicy,
    Ranking,
)
from kmifqe.report.result import Question, provenance
from kmifqe.trust.interval import interval_of
from kmifqe.trust.logged import LoggedController, LoggedValue, logged_value
from kmifqe.trust.ranking import (
    Joint,
    PolicyValue,
    alone,
    combined,
    critical_value,
    groups,
    joint,
    p_best,
    rank_intervals,
    value_draws,
)
from kmifqe.trust.scores import Scores, dope_scores
from kmifqe.trust.verdict import Judgement, judge_run

SURE = 0.95  # chance from which on something is said without a reservation
TRIED = 3  # policies to try next, at most
ONLINE = 10  # episodes of each of them
TOGETHER = "ranking"  # in the scores: what all estimators say together


def judged_ranking(
    names: Sequence[str],
    estimates: Sequence[Mapping[str, Estimate]],
    logged: LoggedController,
    question: Question,
    *,
    level: float,
    files: Sequence[str] = (),
    truth: Mapping[str, float] | None = None,
    command: Sequence[str] = (),
    digests: dict[str, str] | None = None,
    behavior_fit: FitReport | None = None,
) -> Ranking:
    """Return the ranking of policies from their `estimates`, by policy and estimator.

    Args:
        names: of the policies.
        estimates: measured, all from one log with the same seeds.
        logged: what the log says of its own controller.
        question: what the record says was asked.
        level: of every interval.
        files: of the policies, as they were given; by default none has one.
        truth: true values by name, where they are known.
        command: the command line that asks.
        digests: of the log and the density.
        behavior_fit: the report of a density that was fitted.
    """
    judgements = [judge_run(list(each.values()), question.accepted, level) for each in estimates]
    values = combined(estimates, judgements)
    episodes = len(logged.returns)
    kept = sorted((i for i, each in enumerate(values) if each.is_ranked), key=lambda i: -values[i].value)
    entries: dict[int, RankedPolicy] = {}
    differences: list[Difference] = []
    runs: list[list[int]] = []
    if kept:
        known = joint([*(values[i] for i in kept), PolicyValue(logged.values, logged.moves)], episodes)
        draws = value_draws(known)
        own = draws[:, :-1]
        chances, ranks = p_best(own), rank_intervals(own, level)
        better = np.mean(own > draws[:, -1:], axis=0)
        for place, i in enumerate(kept):
            _, low, high = known.interval(place, level)
            entries[i] = RankedPolicy(
                **_common(i, names, estimates, judgements, values, level, files, truth),
                low=low,
                high=high,
                p_best=float(chances[place]),
                p_better_than_logged=float(better[place]),
                rank_low=int(ranks[place][0]),
                rank_high=int(ranks[place][1]),
            )
        ordered = [names[i] for i in kept]
        differences = _differences(known.subset(range(len(kept))), own, ordered, level)
        places = {name: place for place, name in enumerate(ordered)}
        apart = {(places[d.better], places[d.worse]): d.separated for d in differences}
        runs = groups(range(len(kept)), apart)
    for i, value in enumerate(values):
        if i not in entries:
            low_or_none, high_or_none = _own_interval(value, episodes, level)
            entries[i] = RankedPolicy(
                **_common(i, names, estimates, judgements, values, level, files, truth),
                low=low_or_none,
                high=high_or_none,
                p_best=0.0,
                p_better_than_logged=None,
                rank_low=0,
                rank_high=0,
            )
    ranking = tuple(entries[i] for i in kept)
    worth = logged_value(logged.returns, level)
    return Ranking(
        question=question,
        provenance=provenance(command, digests=digests),
        level=level,
        estimators=tuple(estimates[0]),
        ranking=ranking,
        not_ranked=tuple(entries[i] for i in range(len(values)) if i not in kept),
        differences=tuple(differences),
        groups=tuple(tuple(names[kept[k]] for k in run) for run in runs),
        logged=worth,
        advice=advise(ranking, differences, worth),
        behavior_fit=behavior_fit,
        scores={} if truth is None else _scores(names, estimates, values, truth, level),
    )


def advise(ranking: Sequence[RankedPolicy], differences: Sequence[Difference], logged: LoggedValue) -> Advice:
    """Return what to do next with policies in this `ranking`, the best first.

    One is to be deployed where its value can be trusted, every other ranked policy is told apart from it, and it is
    better than the controller that made the log. Otherwise those are to be tried that are most likely the best.
    `differences` are those of the record, `logged` what the log's own controller was worth.
    """
    if not ranking:
        return Advice(
            deploy=None,
            try_next=(),
            sentences=("No policy has an estimate that may be used, so none of them has a place.",),
        )
    best = ranking[0]
    against = []
    if best.verdict != "trustworthy":
        against.append("its estimate is to be used with care")
    if any(not each.separated for each in differences if each.better == best.policy):
        against.append("other policies cannot be told apart from it")
    if len(ranking) == 1:
        against.append("no other policy has an estimate that it could be compared with")
    chance = best.p_better_than_logged
    if chance is None or chance < SURE:
        against.append("it may not be better than the controller that made the log")
    if not against:
        sentence = f"Deploy {best.policy}: it is the best of them, and better than the logged controller."
        return Advice(deploy=best.policy, try_next=(), sentences=(sentence,))
    likely = sorted(ranking, key=lambda each: -each.p_best)
    tried = [each for place, each in enumerate(likely[:TRIED]) if place < 2 or each.p_best >= 1.0 - SURE]
    among = sum(each.p_best for each in tried)
    sentences = [
        f"The evidence does not suffice to deploy {best.policy}.",
        f"Against it: {'; '.join(against)}.",
        f"Try {_listed([each.policy for each in tried])} next: with a chance of {percent(among)} the best is among "
        f"{'them' if len(tried) > 1 else 'it'}."
        if len(ranking) > 1
        else f"Try {best.policy} for some episodes first.",
        *_online_sentences(tried, differences, logged),
    ]
    return Advice(deploy=None, try_next=tuple(each.policy for each in tried), sentences=tuple(sentences))


def _online_sentences(
    tried: Sequence[RankedPolicy], differences: Sequence[Difference], logged: LoggedValue
) -> list[str]:
    """Return what some online episodes of the policies would tell, if their returns spread as the logged ones do."""
    if logged.return_std <= 0.0:
        return []
    sure = float(ndtri(SURE))
    told = sure * logged.return_std * np.sqrt(2.0 / ONLINE)
    sentences = [
        f"{ONLINE} online episodes of each would tell differences of {number(told)} apart, if returns spread as the "
        f"logged ones do ({number(logged.return_std)} an episode)."
    ]
    names = {each.policy for each in tried}
    between = [each for each in differences if {each.better, each.worse} <= names and each.value > 0]
    if between:
        gap = max(between, key=lambda each: each.value).value
        episodes = ceil(2.0 * (sure * logged.return_std / gap) ** 2)
        sentences.append(
            f"By their estimates the first and the last of them differ by {number(gap)}, which takes about "
            f"{max(episodes, 2):,} episodes of each."
        )
    return sentences


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _common(
    i: int,
    names: Sequence[str],
    estimates: Sequence[Mapping[str, Estimate]],
    judgements: Sequence[Judgement],
    values: Sequence[PolicyValue],
    level: float,
    files: Sequence[str],
    truth: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Return what is said of one policy whether it is ranked or not."""
    own = {}
    for name, estimate in estimates[i].items():
        interval, verdict = interval_of(estimate, level), judgements[i].verdicts[name]
        own[name] = EstimatorValue(
            value=_finite(estimate.value),
            low=None if interval is None else interval.low,
            high=None if interval is None else interval.high,
            verdict=verdict.word,
            weight=values[i].weights.get(name, 0.0),
            networks=tuple(_finite(value) for value in estimate.values),
            reasons=verdict.reasons,
        )
    return {
        "policy": names[i],
        "value": _finite(values[i].value),
        "verdict": values[i].word,
        "networks": len(values[i].values),
        "estimates": own,
        "file": files[i] if files else "",
        "truth": None if truth is None else float(truth[names[i]]),
    }


def _finite(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def _own_interval(value: PolicyValue, episodes: int, level: float) -> tuple[float | None, float | None]:
    if int(np.isfinite(value.values).sum()) < 2:
        return None, None
    _, low, high = joint([value], episodes).interval(0, level)
    return _finite(low), _finite(high)


def _differences(known: Joint, draws: np.ndarray, names: Sequence[str], level: float) -> list[Difference]:
    """Return the differences of all pairs, the better policy first; `names` are in the order of the values."""
    pairs = list(combinations(range(len(names)), 2))
    critical = critical_value(known, draws, pairs, level)
    differences = []
    for one, other in pairs:
        value, low, high = known.difference(one, other, level)
        contrast = np.zeros(len(names))
        contrast[one], contrast[other] = 1.0, -1.0
        # Of policies with few networks the own interval may be the wider one, by its fewer degrees of freedom.
        half = max(critical * float(np.sqrt(known.variance(contrast)[0])), high - value)
        differences.append(
            Difference(
                better=names[one],
                worse=names[other],
                value=value,
                low=low,
                high=high,
                simultaneous_low=value - half,
                simultaneous_high=value + half,
            )
        )
    return differences


def paired_differences(names: Sequence[str], estimates: Sequence[Estimate], level: float) -> list[Difference]:
    """Return the differences of policies with one estimate each, made from one log with the same seeds.

    `names` are those of the policies, in the order of `estimates`; the intervals are of this `level`.
    """
    order = sorted(range(len(names)), key=lambda i: -estimates[i].value)
    known = joint([alone(estimates[i]) for i in order], estimates[0].episodes)
    return _differences(known, value_draws(known), [names[i] for i in order], level)


def _scores(
    names: Sequence[str],
    estimates: Sequence[Mapping[str, Estimate]],
    values: Sequence[PolicyValue],
    truth: Mapping[str, float],
    level: float,
) -> dict[str, Scores]:
    """Return the scores of all estimators together, as this ranking has them, and of each alone.

    The ranking has policies whose estimate is not to be used apart from the rest, so there they come last.
    """
    truths = np.array([truth[name] for name in names])
    ranked = np.array([each.is_ranked for each in values])
    together = dope_scores(np.array([each.value for each in values]), truths, ranked=ranked, level=level)
    alone = {name: np.array([each[name].value for each in estimates]) for name in estimates[0]}
    return {TOGETHER: together} | {
        name: dope_scores(guess, truths, level=level) for name, guess in alone.items()
    }
