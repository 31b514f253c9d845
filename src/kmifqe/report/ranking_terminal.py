"""What a terminal shows of a ranking."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kmifqe.errors import printable
from kmifqe.io.format import number, percent
from kmifqe.report.ranking import Ranking
from kmifqe.report.ranking_judged import TOGETHER
from kmifqe.report.terminal import COLOURS, SHOWN
from kmifqe.trust.scores import Score
from kmifqe.trust.verdict import WORDS


def ranking_table(ranking: Ranking) -> Table:
    """Return a row for every policy, the best first; those that are not ranked stand below a line."""
    # Without lines between columns the names of policies have room on a terminal of eighty columns.
    table = Table(
        title="Policies by value",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("policy", overflow="fold")
    for head in ("V̂", f"{100 * ranking.level:.4g} % interval", "P(best)", "P(>\nlogged)", "rank"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", min_width=max(map(len, " ".join(WORDS).split())))
    for place, each in enumerate(ranking.policies, 1):
        is_ranked = place <= len(ranking.ranking)
        ends = "–" if each.low is None or each.high is None else f"{number(each.low)} … {number(each.high)}"
        chances = (
            (
                percent(each.p_best),
                percent(each.p_better_than_logged or 0.0),
                _ranks(each.rank_low, each.rank_high),
            )
            if is_ranked
            else ("–", "–", "–")
        )
        table.add_row(
            str(place) if is_ranked else "",
            printable(each.policy),
            "–" if each.value is None else number(each.value),
            ends,
            *chances,
            f"[{COLOURS[each.verdict]}]{each.verdict}[/]",
            end_section=place == len(ranking.ranking),
        )
    return table


def explained(ranking: Ranking) -> list[str]:
    """Return what the numbers of the table are, and what the controller that made the log is worth beside them."""
    logged = ranking.logged
    return [
        f"V̂ is the value per step, discounted and normalised: (1 − γ) Σ γᵗ r with γ = {ranking.question.gamma:g}; "
        "P(best) and P(> logged) are chances to be the best, and better than the logged controller.",
        f"The logged controller earned {number(logged.value)} per step ({100 * ranking.level:.4g} % interval "
        f"{number(logged.low)} … {number(logged.high)}).",
    ]


def reasons(ranking: Ranking) -> list[str]:
    """Return the weightiest reason for the verdict on each policy that is not simply trustworthy."""
    alike: dict[str, list[str]] = {}
    for each in ranking.policies:
        if each.reason:
            alike.setdefault(f"{each.verdict}. {each.reason}", []).append(each.policy)
    lines = [f"{', '.join(names)}: {reason}" for reason, names in alike.items()]
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], *[f"and {more} more, in ranking.json"] * (more > 0)]


def scores_table(ranking: Ranking) -> Table:
    """Return how well each estimator ranks policies whose true values are known."""
    table = Table(title="Against the true values, as DOPE scores them", title_justify="left")
    table.add_column("estimator", no_wrap=True)
    for head in ("rank correlation", "regret@1", "regret@3", "regret@5", "absolute error"):
        table.add_column(head, justify="right")
    for name, each in ranking.scores.items():
        cells = (
            each.rank_correlation,
            each.regret_1,
            each.regret_3,
            each.regret_5,
            each.absolute_error,
        )
        table.add_row("all together" if name == TOGETHER else name, *map(_score, cells))
    return table


def _score(score: Score | None) -> str:
    if score is None:
        return "–"
    ends = "" if score.low is None or score.high is None else f" ({score.low:.2f} … {score.high:.2f})"
    return f"{score.value:.2f}{ends}"


def _ranks(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"
