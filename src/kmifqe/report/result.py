"""What an evaluation comes to, as one object and as one JSON record."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate, plain
from kmifqe.io.files import whole_file
from kmifqe.mdp.problem import Problem
from kmifqe.report.figures import trajectories_figure
from kmifqe.report.terminal import number, plus_minus
from kmifqe.trust.checks.diagnose import Diagnostic
from kmifqe.trust.interval import LEVEL, ConfidenceInterval, interval_of
from kmifqe.trust.verdict import Diagnosis, Verdict, diagnose_run

PACKAGES = ("kmifqe", "jax", "jaxlib", "optax", "numpy")


def provenance(*more_packages: str) -> dict[str, Any]:
    """Return when, with which versions (of PACKAGES and `more_packages`) and on which device this runs."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name: _version(name) for name in (*PACKAGES, *more_packages)}
        | {"python": platform.python_version()},
        "device": str(jax.devices()[0].device_kind),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a source tree, or a package that this record can do without
        return "not installed"


if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from rich.console import Group


@dataclass(frozen=True)
class Result:
    """What the estimators said of a policy, and whether it can be believed; the first estimator is the headline.

    Values are normalised per step, V = (1 − γ) E Σ γᵗ r, as in `Estimate`.
    """

    estimates: tuple[Estimate, ...]
    intervals: tuple[ConfidenceInterval | None, ...]
    diagnosis: Diagnosis

    @classmethod
    def of(cls, estimates: Sequence[Estimate], level: float = LEVEL) -> Result:
        """Return the result of estimates made from one log and measured."""
        intervals = tuple(interval_of(estimate, level) for estimate in estimates)
        diagnosis = diagnose_run(estimates, [estimate.measurements for estimate in estimates])
        return cls(tuple(estimates), intervals, diagnosis)

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
        return self.intervals[0]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Every diagnostic of every estimate, the worst first."""
        return self.diagnosis.diagnostics

    @property
    def verdict(self) -> Verdict:
        """Whether the headline value can be believed, and what speaks against it."""
        return self.diagnosis.verdict

    def plot(self, *, references: dict[str, float] | None = None, title: str = "") -> Figure:
        """Return a matplotlib figure of V̂ against steps, and where every seed ended; `references` are lines."""
        return trajectories_figure(list(self.estimates), references, title=title)

    def to_frame(self, of: Literal["estimates", "trajectories", "diagnostics"] = "estimates") -> DataFrame:
        """Return a pandas data frame: a row per estimator, per recorded step and seed, or per diagnostic."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_frame needs pandas, which is not installed: pip install pandas") from error
        makers = {
            "estimates": self._estimate_rows,
            "trajectories": self._trajectory_rows,
            "diagnostics": lambda: [diagnostic.to_dict() for diagnostic in self.diagnostics],
        }
        if of not in makers:
            raise InputError(f"to_frame of {of!r} is unknown; expected one of {', '.join(makers)}")
        return pandas.DataFrame(makers[of]())

    def _estimate_rows(self) -> list[dict[str, Any]]:
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
                "verdict": self.diagnosis.verdicts[estimate.estimator].word,
                "steps": estimate.steps,
                "seconds": estimate.seconds,
            }
            for estimate, interval in zip(self.estimates, self.intervals)
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

        lines = [Text.from_markup(line) for line in verdict_lines(self.diagnosis)]
        level = self.interval.level if self.interval else LEVEL
        return Group(estimates_table(list(self.estimates), level=level), *lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the sentence, its reasons, and a table."""
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in self.verdict.reasons)
        rows = "".join(
            f"<tr><td>{escape(estimate.estimator)}</td><td>{plus_minus(estimate.value, estimate.spread)}</td>"
            f"<td>{_words(interval)}</td><td>{number(estimate.discounted_return, decimals=2)}</td>"
            f"<td>{self.diagnosis.verdicts[estimate.estimator].word}</td></tr>"
            for estimate, interval in zip(self.estimates, self.intervals)
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
        return f"V = {number(self.value, self.interval.width)}, {_words(self.interval)}"


def _words(interval: ConfidenceInterval | None) -> str:
    if interval is None:
        return "–"
    low, high = (number(end, interval.width) for end in (interval.low, interval.high))
    return f"{interval.level:.0%} interval {low} to {high}"


SCHEMA = "kmifqe.result/2"


def result_record(
    result: Result,
    problem: Problem,
    *,
    data: str,
    policy: str,
    behavior: str,
    command: list[str],
    **more: Any,
) -> dict[str, Any]:
    """Return the record of one evaluation (docs/result.md has the schema); `more` adds fields of its own."""
    return {
        "schema": SCHEMA,
        **provenance(),
        "command": command,
        "data": data,
        "policy": policy,
        "behavior": behavior,
        "gamma": round(float(problem.gamma), 7),
        "rows": asdict(problem.counts),
        "estimates": [_estimate_record(*each) for each in zip(result.estimates, result.intervals)],
        "verdict": result.verdict.to_dict(),
        "verdicts": {name: verdict.to_dict() for name, verdict in result.diagnosis.verdicts.items()},
        "diagnostics": [diagnostic.to_dict() for diagnostic in result.diagnostics],
        **more,
    }


def _estimate_record(estimate: Estimate, interval: ConfidenceInterval | None) -> dict[str, Any]:
    return estimate.to_dict() | {"interval": None if interval is None else interval.to_dict()}


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write `record` as JSON, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps(_plain(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(value) for value in x]
    return plain(x)
