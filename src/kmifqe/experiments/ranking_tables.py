"""The records of the ranking benchmark as one table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kmifqe.experiments.records import RankingRecord
from kmifqe.trust.scores import Scores

FIELDS = ("rank_correlation", "regret_1", "regret_3", "regret_5", "absolute_error")


def ranking_scores_table(records: Sequence[RankingRecord]) -> str:
    """Return a line for every task, kind of log and estimator, and the means over all rows at the end."""
    columns = ("log", "estimator", "rank correlation", "regret@1", "regret@3", "regret@5", "absolute error")
    lines = [columns, ("---",) * len(columns)]
    for record in records:
        for name, scores in record.scores.items():
            lines.append((record.row, name, *_cells(scores)))
    for name in dict.fromkeys(name for record in records for name in record.scores):
        found = [record.scores[name] for record in records if name in record.scores]
        lines.append((f"mean of {len(found)}", name, *_means(found)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(scores: Scores) -> list[str]:
    cells = []
    for field in FIELDS:
        score = getattr(scores, field)
        ends = "" if score is None or score.low is None else f" ({score.low:.2f} to {score.high:.2f})"
        cells.append("–" if score is None else f"{score.value:.2f}{ends}")
    return cells


def _means(found: Sequence[Scores]) -> list[str]:
    cells = []
    for field in FIELDS:
        known = [score.value for scores in found if (score := getattr(scores, field)) is not None]
        cells.append(f"{np.mean(known):.2f}" if known else "–")
    return cells
