"""Sentences a person should read beside a run."""

from __future__ import annotations

from rich.markup import escape

from kmifqe.trust.verdict import Diagnosis, Verdict

SHOWN = 4  # reasons for a verdict in a terminal; result.json has them all
COLOURS = {"trustworthy": "green", "use with care": "yellow", "do not use": "red"}


def verdict_lines(diagnosis: Diagnosis) -> list[str]:
    """Return lines of markup for a terminal: every estimator's verdict, and its weightiest reasons below it."""
    return [line for name, verdict in diagnosis.verdicts.items() for line in _told(name, verdict)]


def _told(name: str, verdict: Verdict) -> list[str]:
    lines = [f"{escape(name)}: [{COLOURS[verdict.word]}]{verdict.word}[/]"]
    lines += [f"  · {escape(reason)}" for reason in verdict.reasons[:SHOWN]]
    more = len(verdict.reasons) - SHOWN
    return [*lines, f"  · and {more} more in result.json"] if more > 0 else lines
