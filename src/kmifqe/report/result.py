"""What an evaluation comes to: one object that every table, plot and page takes, saved and loaded as itself."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import msgspec
import numpy as np

from kmifqe.behavior.fit_report import FitReport
from kmifqe.errors import InputError, shown
from kmifqe.estimators.base import Estimate
from kmifqe.io.format import number, plus_minus
from kmifqe.io.serialize import from_json, json_schema, plain, read_json, to_json, write_json
from kmifqe.mdp.problem import Problem, RowCounts
from kmifqe.trust.checks import Check, restored
from kmifqe.trust.choice import sentence
from kmifqe.trust.interval import LEVEL, ConfidenceInterval, interval_of
from kmifqe.trust.logged import Comparison, LoggedController, compared_with_logged, comparison_sentence
from kmifqe.trust.verdict import Verdict, judge_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from rich.console import Group

RESULT = "result.json"
SCHEMA = "kmifqe.result/3"
PACKAGES = ("kmifqe", "jax", "jaxlib", "optax", "numpy")
# Figures that follow from an estimate: written for those who read the JSON, not read back.
DERIVED = ("value", "spread", "standard_error", "discounted_return", "corrected", "diverged")


class Provenance(msgspec.Struct, frozen=True):
    """When, with which versions, on which device and by which command a number was made."""

    created: str
    versions: dict[str, str]
    device: str
    command: tuple[str, ...] = ()  # the arguments of `kmifqe`; empty where it was called from Python
    digests: dict[str, str] = {}  # SHA-256 of the log, of the policy's answers and of the density's


def provenance(
    command: Iterable[str] = (), packages: Iterable[str] = (), digests: dict[str, str] | None = None
) -> Provenance:
    """Return the provenance of what is made here and now.

    `command` are the arguments of the command line, `packages` are named beside those that every record names.
    `digests` name the log, the policy and the density by their content; by default none does.
    """
    versions = {name: _version(name) for name in (*PACKAGES, *packages)}
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions | {"python": platform.python_version()},
        device=str(jax.devices()[0].device_kind),
        command=tuple(command),
        digests=digests or {},
    )


class Question(msgspec.Struct, frozen=True):
    """What was asked: of which log, which policy, with which density and discount."""

    data: str
    policy: str
    behavior: str  # "none" where no estimator needs a density
    gamma: float
    rows: RowCounts
    notes: tuple[str, ...] = ()  # what the reader of the log found worth saying
    accepted: tuple[str, ...] = ()  # checks whose question the user has answered

    @classmethod
    def about(
        cls,
        problem: Problem,
        *,
        data: str = "",
        policy: str = "",
        behavior: str = "none",
        notes: Iterable[str] = (),
        accepted: Iterable[str] = (),
    ) -> Question:
        """Return the question that `problem` poses; `data`, `policy` and `behavior` are what a person calls them.

        `notes` are sentences about the log that a reader of the result should see, `accepted` names of checks that
        ask for care no longer.
        """
        gamma = round(float(problem.gamma), 7)
        return cls(data, policy, behavior, gamma, problem.counts, tuple(notes), tuple(accepted))


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimators said of a policy, and whether it can be believed; the first estimator is the headline.

    Values are normalised per step, V = (1 − γ) E Σ γᵗ r, as in `Estimate`.
    """

    schema: str = SCHEMA
    question: Question
    provenance: Provenance
    estimates: tuple[Estimate, ...]
    intervals: dict[str, ConfidenceInterval | None]  # by estimator; None where its seeds cannot tell
    verdicts: dict[str, Verdict]  # by estimator
    checks: tuple[Check, ...]  # the worst first
    comparison: Comparison | None = (
        None  # of the headline with the logged controller; None where not asked for
    )
    references: dict[str, float] = {}  # values known otherwise, such as the truth of a demo
    behavior_fit: FitReport | None = None  # the report of a density that was fitted for this result
    extra: dict[str, Any] = {}  # what one command alone has to say, such as the demo's sizes

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together, as in a file that was edited."""
        if not self.estimates:
            raise InputError("the field estimates is empty; expected at least one estimate")
        for estimate in self.estimates:
            name = estimate.estimator
            for field in ("intervals", "verdicts"):
                if name not in getattr(self, field):
                    raise InputError(
                        f"the field {field} lacks {shown(name)}; expected an entry for each estimate"
                    )
            _check_estimate(estimate)

    @classmethod
    def judged(
        cls,
        estimates: Sequence[Estimate],
        question: Question,
        *,
        level: float = LEVEL,
        command: Iterable[str] = (),
        digests: dict[str, str] | None = None,
        logged: LoggedController | None = None,
        references: dict[str, float] | None = None,
        behavior_fit: FitReport | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Result:
        """Return the result of `estimates` that were made from one log and measured.

        `question` says what was asked, `level` is the intervals' (0.95 by default). `command` are the arguments
        of the command line, `digests` those of `store.identity.digests`. `logged` is what the log says of the
        controller that made it, which the headline is compared with where it is given. `references`, `behavior_fit`
        and `extra` are kept as the fields of these names.
        """
        judgement = judge_run(estimates, question.accepted, level)
        comparison = None
        if logged is not None:
            comparison = compared_with_logged(estimates[0], judgement.verdict, logged, level)
        return cls(
            question=question,
            provenance=provenance(command, digests=digests),
            # A final state is as large as the log, and what is to be known of it has been measured.
            estimates=tuple(estimate.without_state() for estimate in estimates),
            intervals={estimate.estimator: interval_of(estimate, level) for estimate in estimates},
            verdicts=judgement.verdicts,
            checks=judgement.checks,
            comparison=comparison,
            references=references or {},
            behavior_fit=behavior_fit,
            extra=extra or {},
        )

    @property
    def estimate(self) -> Estimate:
        """The headline estimate."""
        return self.estimates[0]

    @property
    def value(self) -> float:
        """V̂ of the headline estimate."""
        return self.estimate.value

    @property
    def discounted_return(self) -> float:
        """V̂/(1 − γ) of the headline estimate."""
        return self.estimate.discounted_return

    @property
    def interval(self) -> ConfidenceInterval | None:
        """The headline value's interval; None where the seeds cannot tell."""
        return self.intervals[self.estimate.estimator]

    @property
    def verdict(self) -> Verdict:
        """Whether the headline value can be believed, and what speaks against it."""
        return self.verdicts[self.estimate.estimator]

    @property
    def choice(self) -> str:
        """What the headline averages and why, in a sentence; "" where it is a single estimator's."""
        return sentence(self.estimate, self.verdicts) if self.estimate.members else ""

    @property
    def better(self) -> str:
        """Whether the policy is better than the logged controller, in a sentence; "" where nobody compared."""
        if self.comparison is None:
            return ""
        return comparison_sentence(self.comparison, LEVEL if self.interval is None else self.interval.level)

    def __getitem__(self, estimator: str) -> Estimate:
        """Return the estimate of the estimator with this name."""
        for estimate in self.estimates:
            if estimate.estimator == estimator:
                return estimate
        raise KeyError(f"{estimator!r}; the result has {', '.join(e.estimator for e in self.estimates)}")

    def to_record(self) -> dict[str, Any]:
        """Return what result.json holds: every field, and for each estimate the figures that follow from it."""
        record: dict[str, Any] = plain(self)
        for estimate, entry in zip(self.estimates, record["estimates"]):
            del entry["final_state"]
            entry |= plain({name: getattr(estimate, name) for name in DERIVED})
        return record

    def save(self, folder: str | Path) -> Path:
        """Write result.json into `folder`, whole or not at all, and return its path."""
        path = Path(folder) / RESULT
        write_json(path, self.to_record())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Return the result in a run directory, or of a result.json; refuse what is no result of this version."""
        path = Path(path)
        file = path / RESULT if path.is_dir() else path
        if (ranking := file.parent / "ranking.html").exists() and not file.exists():
            raise InputError(f"{file}: not found; the directory holds a ranking, whose page is {ranking}")
        if not file.exists():
            raise InputError(
                f"{file}: not found; expected a directory that `kmifqe evaluate` or `kmifqe demo` wrote {RESULT} into"
            )
        record = read_json(file, dict[str, Any])
        if record.get("schema") != SCHEMA:
            versions = record.get("versions")  # where records before kmifqe.result/3 have them
            writer = versions.get("kmifqe") if isinstance(versions, dict) else None
            raise InputError(
                f"{file}: the field schema is {shown(repr(record.get('schema')))}, written by kmifqe "
                f"{shown(writer or 'of an unknown version')}; this version reads {SCHEMA!r}: read it with the "
                "version that wrote it, or run the evaluation again"
            )
        result = from_json(to_json(record), cls, name=file)
        try:
            estimates = tuple(restored(estimate) for estimate in result.estimates)
        except msgspec.ValidationError as error:
            raise InputError(f"{file}: the field measurements: {shown(error)}") from error
        return msgspec.structs.replace(result, estimates=estimates)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON schema of result.json."""
        schema = json_schema(Result)
        estimate = schema["$defs"]["Estimate"]
        del estimate["properties"]["final_state"]
        estimate["properties"] |= {name: {"type": ["number", "null"]} for name in DERIVED}
        return schema

    def report(self, path: str | Path, *, folder: Path | None = None) -> Path:
        """Write one self-contained HTML page about this result to `path`, and return it.

        `folder` is the run directory of this result, for its name and its Q-landscape; None (the default) for none.
        """
        from kmifqe.report.page import write_page

        return write_page([self], Path(path), folders=[folder])

    def plot(self, *, title: str = "") -> Figure:
        """Return a matplotlib figure of V̂ against steps, and where every seed ended; `references` are lines."""
        from kmifqe.report.figures import trajectories_figure

        return trajectories_figure(list(self.estimates), self.references, title=title)

    def to_frame(self, of: Literal["estimates", "trajectories", "checks"] = "estimates") -> DataFrame:
        """Return a pandas data frame: a row per estimator, per recorded step and seed, or per check."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_frame needs pandas, which is not installed: pip install pandas") from error
        makers = {
            "estimates": self.estimate_rows,
            "trajectories": self._trajectory_rows,
            "checks": lambda: [msgspec.to_builtins(check) for check in self.checks],
        }
        if of not in makers:
            raise InputError(f"to_frame of {of!r} is unknown; expected one of {', '.join(makers)}")
        return pandas.DataFrame(makers[of]())

    def estimate_rows(self) -> list[dict[str, Any]]:
        """Return what a table says of every estimator, by column, the headline first."""
        return [
            {
                "estimator": estimate.estimator,
                "value": estimate.value,
                "low": interval.low if interval else None,
                "high": interval.high if interval else None,
                "level": interval.level if interval else None,
                "spread": estimate.spread,
                "seeds": len(estimate.seeds),
                "diverged": estimate.diverged,
                "discounted_return": estimate.discounted_return,
                "verdict": self.verdicts[estimate.estimator].word,
                "steps": estimate.steps,
                "seconds": estimate.seconds,
            }
            for estimate in self.estimates
            for interval in [self.intervals[estimate.estimator]]
        ]

    def _trajectory_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "estimator": estimate.estimator,
                "step": int(step),
                "seed": seed,
                "value": float(estimate.trajectory[i, j]),
                **{name: float(series[i, j]) for name, series in estimate.infos.items()},
            }
            for estimate in self.estimates
            for i, step in enumerate(estimate.recorded_steps)
            for j, seed in enumerate(estimate.seeds)
        ]

    def __repr__(self) -> str:
        return f"Result({self.estimate.estimator}: {self._sentence()}; {self.verdict.word})"

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        from kmifqe.report.terminal import estimates_table, verdict_lines

        lines = [Text.from_markup(line, emoji=False) for line in verdict_lines(self.verdicts)]
        level = self.interval.level if self.interval else LEVEL
        return Group(estimates_table(self.estimates, level=level), *lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the sentence, its reasons, and a table."""
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in self.verdict.reasons)
        rows = "".join(
            f"<tr><td>{escape(estimate.estimator)}</td><td>{plus_minus(estimate.value, estimate.spread)}</td>"
            f"<td>{_between(interval)}</td><td>{number(estimate.discounted_return, decimals=2)}</td>"
            f"<td>{self.verdicts[estimate.estimator].word}</td></tr>"
            for estimate in self.estimates
            for interval in [self.intervals[estimate.estimator]]
        )
        heads = ("estimator", "V̂ ± spread", "interval", "discounted return", "verdict")
        return (
            f"<p><b>{escape(self.verdict.word)}</b>: {escape(self._sentence())}</p>"
            + (f"<ul>{reasons}</ul>" if reasons else "")
            + f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead>"
            + f"<tbody>{rows}</tbody></table>"
        )

    def _sentence(self) -> str:
        spread = plus_minus(self.value, self.estimate.spread)
        if self.interval is None:
            return f"V = {spread} over {len(self.estimate.seeds)} seeds, no interval"
        return f"V = {number(self.value, self.interval.width)}, {_between(self.interval)}"


def _check_estimate(estimate: Estimate) -> None:
    """Refuse an estimate whose arrays do not have an entry for each seed and record."""
    name, seeds, records = shown(estimate.estimator), len(estimate.seeds), np.size(estimate.recorded_steps)
    if not 0.0 <= estimate.gamma < 1.0 or estimate.steps < 1:
        raise InputError(
            f"{name} has gamma {estimate.gamma} and {estimate.steps} steps; expected 0 <= gamma < 1, at least 1 step"
        )
    arrays = {
        "values": (estimate.values, (seeds,)),
        "recorded_steps": (estimate.recorded_steps, (records,)),
        "trajectory": (estimate.trajectory, (records, seeds)),
        **{info: (series, (records, seeds)) for info, series in estimate.infos.items()},
    }
    for field, (array, shape) in arrays.items():
        if np.shape(array) != shape:
            raise InputError(f"{shown(field)} of {name} has the shape {np.shape(array)}; expected {shape}")


def _between(interval: ConfidenceInterval | None) -> str:
    if interval is None:
        return "–"
    low, high = (number(end, interval.width) for end in (interval.low, interval.high))
    return f"{interval.level:.0%} interval {low} to {high}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a source tree, or a package that this record can do without
        return "not installed"
