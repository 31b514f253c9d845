"""A run in plain sentences."""

from __future__ import annotations

import re

from kmifqe.report.html.source import Number, Run, Told
from kmifqe.report.terminal import number

VERDICTS = {"trustworthy": "ok", "use with care": "care", "do not use": "bad"}
NAMES = {
    "kmifqe": "KMIFQE",
    "kmifqe-best": "KMIFQE, best settings",
    "kmifqe-identity": "KMIFQE without metric",
    "fqe": "FQE",
    "sr-dice": "SR-DICE",
}


def show(x: Number, size: float | None = None, *, sign: bool = False, decimals: int = 3) -> str:
    """Return a number for a reader: a true minus sign, a dash where there is none."""
    return "–" if x is None else number(x, size, sign=sign, decimals=decimals).replace("-", "−")


def typeset(sentence: str) -> str:
    """Return a sentence with true minus signs before its numbers."""
    return re.sub(r"(?<![\w-])-(?=[\d.])", "−", sentence)


def name_of(estimator: str) -> str:
    """Return an estimator's name as people write it."""
    return NAMES.get(estimator, estimator)


def headline(run: Run) -> str:
    """Return what the policy is worth, in one sentence."""
    told = run.main
    if told.value is None:
        return f"There is no value: no seed of {name_of(told.estimator)} ended with a finite one."
    if told.interval is None:
        return f"The policy is worth {show(told.value)} per step."
    return f"The policy is worth {show(told.value)} per step ({level_of(told)} interval {interval_of(told)})."


def discounted(run: Run) -> str | None:
    """Return the same as a discounted return, as other libraries print it."""
    told = run.main
    if told.value is None:
        return None
    horizon = 1.0 / (1.0 - told.gamma)
    words = f"As a discounted return: {show(told.value * horizon, decimals=2)}"
    if told.interval is not None:
        words += f" ({interval_of(told, horizon, 2)})"
    return f"{words}, with γ = {told.gamma:g}."


def provenance(run: Run) -> str:
    """Return by whom and from what the value was judged."""
    told, rows = run.main, run.record.get("rows")
    counts = rows if isinstance(rows, dict) else {}
    logged, episodes = counts.get("logged"), counts.get("episodes")
    source = "the log"
    if isinstance(logged, int) and isinstance(episodes, int):
        source = f"{logged:,} logged steps in {episodes:,} episode{'s' if episodes != 1 else ''}"
    seeds = f"{len(told.seeds)} seed{'s' if len(told.seeds) != 1 else ''}"
    return f"Judged by {name_of(told.estimator)} from {source}, {seeds} of {told.steps:,} steps each."


def missing_trust(run: Run) -> list[str]:
    """Return what the record does not say, and why."""
    if run.record.get("schema") == "kmifqe.result/1":
        return [
            "This record (kmifqe.result/1) was written by a version without intervals, diagnostics and verdicts: "
            "nothing here says how far the number can be believed. Run the evaluation again to know."
        ]
    missing = []
    if run.main.interval is None and run.main.value is not None:
        missing.append(
            "No interval was computed: the spread over seeds is training noise only, not the log's."
        )
    if run.verdict is None:
        missing.append("No verdict was recorded.")
    return missing


def truth_words(run: Run, truth: float) -> str:
    """Return how far the value is from a truth that is known, and whether the interval holds it."""
    told = run.main
    if told.value is None:
        return f"The true value is known here: {show(truth)}."
    words = (
        f"The true value is known here: {show(truth)}, so the error is {show(told.value - truth, sign=True)}"
    )
    if told.interval is None:
        return f"{words}."
    inside = told.interval.low <= truth <= told.interval.high
    return f"{words}; the interval {'holds' if inside else 'misses'} it."


def level_of(told: Told) -> str:
    """Return the interval's level as "90 %"."""
    assert told.interval is not None
    return f"{100.0 * told.interval.level:.3g} %"


def interval_of(told: Told, factor: float = 1.0, decimals: int = 3) -> str:
    """Return "low to high", both written alike."""
    if told.interval is None:
        return "–"
    low, high = told.interval.low * factor, told.interval.high * factor
    size = max(abs(low), abs(high))
    return f"{show(low, size, decimals=decimals)} to {show(high, size, decimals=decimals)}"
