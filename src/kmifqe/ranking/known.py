"""What is known of policies from elsewhere: true values that a user gives, and episodes that were played online."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from kmifqe.errors import InputError, shown
from kmifqe.io.files import read_file
from kmifqe.io.serialize import read_json
from kmifqe.report.ranking import MOST_VALUE, Ranking
from kmifqe.trust.active import Choice, choose, paired_covariance

MOST_READ = 2**24  # bytes of a file with a line for every policy or episode


def check_truth(
    truth: Mapping[str, float] | None, named: Iterable[str], source: Path | str = "truth"
) -> None:
    """Refuse true values that lack one of the policies `named`, or that are no usable numbers; None is no truth.

    `source` is what they come from, for the message: a file, or by default the argument.
    """
    if truth is None:
        return
    names = list(named)
    missing = [name for name in names if name not in truth]
    if missing:
        raise InputError(
            f"{source} lacks the policy {shown(missing[0])}; expected a value for each of "
            f"{', '.join(map(shown, names))}"
        )
    for name in names:
        if not abs(truth[name]) <= MOST_VALUE:
            raise InputError(
                f"{source} says that the policy {shown(name)} is worth {truth[name]}; expected a number of at most "
                f"{MOST_VALUE:g}"
            )


def next_policy(
    ranking: Ranking, returns: str | PathLike[str] | Mapping[str, Sequence[float]], *, rule: str = "ucb"
) -> Choice:
    """Return which policy of a `ranking` to try next online, from the ranking and the online `returns` so far.

    Args:
        ranking: of `rank`, or loaded from its folder by `Ranking.load`.
        returns: a CSV file with the columns policy and discounted_return, a line for every episode played, or the
            same as a mapping of lists. A discounted return is Σ γᵗ r_t of one episode with the ranking's γ; an
            undiscounted one cannot be converted.
        rule: how to choose: "ucb" (default) or "thompson" (`trust.active`).
    """
    names = [each.policy for each in ranking.ranking]
    if not names:
        raise InputError("no policy is ranked: their estimates are not to be used, so there is none to try")
    widths = ndtri(0.5 + 0.5 * ranking.level)  # half an interval in standard deviations

    def variance(low: float | None, high: float | None) -> float:
        return float(((high or 0.0) - (low or 0.0)) / (2.0 * widths)) ** 2

    variances = np.array([variance(each.low, each.high) for each in ranking.ranking])
    between = np.add.outer(variances, variances)
    for each in ranking.differences:
        one, other = names.index(each.better), names.index(each.worse)
        between[one, other] = between[other, one] = variance(each.low, each.high)
    played = returns if isinstance(returns, Mapping) else read_returns(Path(returns))
    scale = 1.0 - ranking.question.gamma
    return choose(
        names,
        np.array([each.value for each in ranking.ranking], float),
        paired_covariance(variances, between),
        {name: [scale * each for each in own] for name, own in played.items()},
        ranking.logged.return_std,
        rule=rule,
    )


def read_returns(path: Path) -> dict[str, list[float]]:
    """Return the discounted returns of online episodes in a CSV at `path`, by policy."""
    expected = (
        "expected a CSV with the columns policy and discounted_return, a line for every episode: the sum of "
        "gamma^t times reward over the episode, with the gamma of the ranking"
    )
    returns: dict[str, list[float]] = {}
    for policy, value in read_column(path, "discounted_return", expected):
        returns.setdefault(policy, []).append(value)
    return returns


def read_truth(path: Path) -> dict[str, float]:
    """Return the true values in a CSV with the columns policy and value, or in a JSON object of policy and value."""
    if read_file(path, MOST_READ).lstrip()[:1] == b"{":
        return read_json(path, dict[str, float])
    expected = "expected a JSON object of policies and values, or a CSV with the columns policy and value"
    truths: dict[str, float] = {}
    for policy, value in read_column(path, "value", expected):
        if policy in truths:
            raise InputError(f"{path}: has two lines for the policy {shown(policy)}; expected one for each")
        truths[policy] = value
    return truths


def read_column(path: Path, column: str, expected: str) -> list[tuple[str, float]]:
    """Return the columns policy and `column` of a CSV at `path`, line by line; refuse what is no usable number.

    `expected` is what the file should have been, for messages.
    """
    try:
        rows = csv.DictReader(read_file(path, MOST_READ).decode("utf-8-sig").splitlines())
        lines = list(enumerate(rows, 2))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is no text ({shown(error)}); {expected}") from error
    if {"policy", column} - set(rows.fieldnames or ()):
        found = ", ".join(map(shown, rows.fieldnames or ())) or "none"
        raise InputError(f"{path}: the columns are {found}; {expected}")
    values = []
    for line, row in lines:
        try:
            value = float(row[column] or "")
        except ValueError:
            value = float("nan")
        if not row["policy"] or not abs(value) <= MOST_VALUE:
            raise InputError(f"{path}: line {line} is {shown(dict(row))}; {expected}")
        values.append((row["policy"], value))
    return values
