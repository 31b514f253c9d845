"""What a ranking of many policies comes to: one record that every table, figure and page takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kmifqe.behavior.fit_report import FitReport
from kmifqe.errors import InputError, shown
from kmifqe.io.serialize import json_schema, plain, read_json, write_json
from kmifqe.report import tables
from kmifqe.report.result import Provenance, Question
from kmifqe.trust.logged import LoggedValue
from kmifqe.trust.scores import Scores
from kmifqe.trust.verdict import Word

RANKING = "ranking.json"
RANKING_CSV = "ranking.csv"
RANKING_TEX = "ranking.tex"
SCHEMA = "kmifqe.ranking/1"
MOST_VALUE = 1e38  # rewards are float32
_DAMAGED = "the record is damaged: rank again"


class EstimatorValue(msgspec.Struct, frozen=True, kw_only=True):
    """What one estimator says of one policy."""

    value: float | None  # None where no network has a value
    low: float | None
    high: float | None
    verdict: Word
    weight: float  # its share in the policy's value; 0 where it does not count
    networks: tuple[float | None, ...]  # V̂ of every seed, in the order of the seeds
    reasons: tuple[str, ...] = ()  # for the verdict


class RankedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy: what it is worth, how far to believe it, and its place among the others."""

    policy: str  # by its file name
    value: float | None  # V̂, normalised per step; None where no network has a value
    low: float | None  # of the interval at the ranking's level
    high: float | None
    verdict: Word
    p_best: float  # chance that no other ranked policy is better
    p_better_than_logged: float | None  # chance that it is better than the controller that made the log
    rank_low: int  # 1 is the best; both 0 where the policy is not ranked
    rank_high: int
    networks: int  # trained for it, of every estimator
    estimates: dict[str, EstimatorValue]  # by estimator
    file: str = ""  # as it was given
    truth: float | None = None  # its true value, where one was given or rolled out

    @property
    def reason(self) -> str:
        """The weightiest reason for the verdict; empty where nothing speaks against the estimate."""
        judged = [each for each in self.estimates.values() if each.verdict == self.verdict and each.reasons]
        return max(judged, key=lambda each: each.weight).reasons[0] if judged else ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How much better one policy is than another, paired network by network and episode by episode."""

    better: str  # by its estimate
    worse: str
    value: float
    low: float  # of this difference alone
    high: float
    simultaneous_low: float  # such that all differences together hold at the ranking's level
    simultaneous_high: float

    @property
    def separated(self) -> bool:
        """Whether the simultaneous interval excludes 0: the two are told apart."""
        return self.simultaneous_low > 0.0


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next."""

    deploy: str | None  # the policy to deploy; None where the evidence is not there
    try_next: tuple[str, ...]  # otherwise those to try for some episodes
    sentences: tuple[str, ...]


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Policies from one log, the best first; those whose estimates are not to be used stand apart."""

    schema: str = SCHEMA
    question: Question
    provenance: Provenance
    level: float  # of every interval
    estimators: tuple[str, ...]
    ranking: tuple[RankedPolicy, ...]
    not_ranked: tuple[RankedPolicy, ...]  # their verdict is "do not use"
    differences: tuple[Difference, ...]  # of all pairs of ranked policies
    groups: tuple[tuple[str, ...], ...]  # policies that cannot be told apart, the best group first
    logged: LoggedValue
    advice: Advice
    behavior_fit: FitReport | None = None  # the report of a density that was fitted for this ranking
    scores: dict[str, Scores] = {}  # by estimator, where true values are known; "ranking" is all together

    def save(self, folder: str | Path) -> Path:
        """Write ranking.json into `folder`, whole or not at all, and return its path."""
        path = Path(folder) / RANKING
        write_json(path, plain(self))
        return path

    @classmethod
    def load(cls, path: str | Path) -> Ranking:
        """Return the ranking in a run directory, or of a ranking.json; refuse what is none of this version."""
        path = Path(path)
        file = path / RANKING if path.is_dir() else path
        if not file.exists():
            raise InputError(
                f"{file}: not found; expected a directory that `kmifqe rank` wrote {RANKING} into"
            )
        schema = read_json(file, dict[str, Any]).get("schema")
        if schema != SCHEMA:
            raise InputError(
                f"{file}: the field schema is {shown(repr(schema))}; this version reads {SCHEMA!r}: read it with "
                "the version that wrote it, or rank again"
            )
        ranking = read_json(file, cls)
        ranking._check(file)
        return ranking

    def _check(self, file: Path) -> None:
        """Refuse a record, read from `file`, whose policies, differences and numbers do not go together."""
        names = [each.policy for each in self.ranking]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"{file}: ranks the policy {shown(twice[0])} twice; {_DAMAGED}")
        for pair in self.differences:
            for name in (pair.better, pair.worse):
                if name not in names:
                    raise InputError(
                        f"{file}: has a difference of the policy {shown(name)}, which is not ranked; {_DAMAGED}"
                    )
        if not 0.0 < self.level < 1.0:
            raise InputError(
                f"{file}: the field level is {self.level}; expected a number between 0 and 1; {_DAMAGED}"
            )
        ends = [end or 0.0 for one in self.ranking for end in (one.low, one.high)]
        ends += [end for pair in self.differences for end in (pair.low, pair.high)]
        if max(map(abs, (*ends, self.logged.return_std))) > MOST_VALUE:
            raise InputError(
                f"{file}: has an interval or a spread beyond {MOST_VALUE:g}, more than rewards can be; {_DAMAGED}"
            )

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON schema of ranking.json."""
        return json_schema(Ranking)

    @property
    def policies(self) -> tuple[RankedPolicy, ...]:
        """All policies, those that are ranked first."""
        return (*self.ranking, *self.not_ranked)

    def between(self, one: str, other: str) -> Difference | None:
        """Return the difference of two ranked policies; None where one of them is not ranked."""
        for difference in self.differences:
            if {difference.better, difference.worse} == {one, other}:
                return difference
        return None

    def __rich__(self) -> Any:
        from kmifqe.report.ranking_terminal import ranking_table

        return ranking_table(self)

    def __repr__(self) -> str:
        names = ", ".join(each.policy for each in self.ranking[:3])
        return f"Ranking({len(self.ranking)} policies: {names}{', …' if len(self.ranking) > 3 else ''})"


COLUMNS = (
    "rank",
    "policy",
    "value",
    "low",
    "high",
    "verdict",
    "p_best",
    "p_better_than_logged",
    "rank_low",
    "rank_high",
    "networks",
    "truth",
)


def ranking_rows(ranking: Ranking) -> list[dict[str, Any]]:
    """Return a row for every policy with the COLUMNS of ranking.csv; policies that are not ranked have no rank."""
    rows = []
    for place, each in enumerate(ranking.policies, 1):
        row = {name: getattr(each, name) for name in COLUMNS[1:]}
        rows.append({"rank": place if place <= len(ranking.ranking) else None} | row)
    return rows


def write_csv(ranking: Ranking, path: Path) -> None:
    """Write ranking.csv: a row for every policy, the best first."""
    tables.write_csv(path, ranking_rows(ranking), COLUMNS)


def write_tex(ranking: Ranking, path: Path) -> None:
    """Write ranking.tex: a table for a paper, which needs the package booktabs."""
    interval = rf"{100 * ranking.level:.3g}\,\% interval"
    headings = ("", "policy", r"$\hat V$", interval, "verdict", r"$P(\text{best})$", r"$P(> \text{logged})$")
    groups = (
        [
            (
                "" if chances is None else str(place),
                tables.latex(each.policy),
                tables.latex_number(each.value),
                tables.latex_interval(each.low, each.high),
                each.verdict,
                *(("--", "--") if chances is None else chances),
            )
            for place, each in enumerate(group, 1)
            for chances in [(f"{each.p_best:.2f}", _chance(each)) if group is ranking.ranking else None]
        ]
        for group in (ranking.ranking, ranking.not_ranked)
    )
    tables.write_latex(path, "rlrrlrr", headings, groups)


def _chance(policy: RankedPolicy) -> str:
    return "--" if policy.p_better_than_logged is None else f"{policy.p_better_than_logged:.2f}"
