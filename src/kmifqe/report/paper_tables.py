"""Experiment records -> Markdown tables, our numbers above the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kmifqe.report.numbers import number, plus_minus
from kmifqe.report.paper_numbers import LIKELIHOODS, POLICY_VALUES, TABLE1
from kmifqe.report.seed_means import error_of_mean

Record = Mapping[str, Any]

METHOD_NAMES = {
    "kmifqe": "KMIFQE",
    "kmifqe-best": "KMIFQE, our best",
    "kmifqe-identity": "w/o metric",
    "sr-dice": "SR-DICE",
    "fqe": "FQE",
    "fqe-standardized": "FQE, standardised",
}
OURS, BASELINES = "kmifqe-best", ("sr-dice", "fqe", "fqe-standardized")
TRUTHS = {"logged_first_states": "logged first states", "population": "population"}
POLICIES = {"target": "π̃", "behavior_mean": "μ̃", "behavior": "μ"}
NOTHING = "–"
MEANS = (2, 4, 10)  # how many seeds a user may take the mean of
SHOWN_MEAN = 4  # the one with a table of its own


def error_table(records: Sequence[Record]) -> str:
    """Return Table 1: RMSE over seeds ± one standard error by row, truth and method, the paper's below ours."""
    lines = _head("row", "against", *METHOD_NAMES.values())
    for row, truth, found in _compared(records):
        cells = [_error(found.get(method), truth) for method in METHOD_NAMES]
        lines.append(_line(row, TRUTHS[truth], *cells))
        printed = TABLE1.get(paper_row(row)) if truth == "population" else None
        if printed is not None:
            cells = [_with_error(*printed[m]) if m in printed else NOTHING for m in METHOD_NAMES]
            lines.append(_line("", f"paper{'' if row in TABLE1 else ', D4RL'}", *cells))
    return "\n".join(lines)


def bias_table(records: Sequence[Record]) -> str:
    """Return mean V̂ − V over seeds (± the seeds' standard deviation) by row, truth and method."""
    lines = _head("row", "V", "against", *METHOD_NAMES.values())
    for row, truth, found in _compared(records):
        value = next(iter(found.values()))["errors"][truth]["truth"]
        cells = [_bias(found.get(method), truth) for method in METHOD_NAMES]
        lines.append(_line(row, number(value), TRUTHS[truth], *cells))
    return "\n".join(lines)


def means_table(records: Sequence[Record]) -> str:
    """Return the RMSE of means of four seeds ± one standard error, by row, truth and method."""
    lines = _head("row", "against", *METHOD_NAMES.values())
    for row, truth, found in _compared(records):
        cells = [_mean_error(found.get(method), truth) for method in METHOD_NAMES]
        lines.append(_line(row, TRUTHS[truth], *cells))
    return "\n".join(lines)


def score_line(records: Sequence[Record]) -> str:
    """Return on how many rows KMIFQE at our best settings is as good as the best baseline: of seeds, and of means.

    As good: its RMSE is at most the baseline's plus one standard error of their difference. Pendulum counts
    once, against the logged first states. Means are of as many seeds for the baselines as for KMIFQE.
    """
    good, lost = _score(records, 1)
    rows = len(good) + len(lost)
    if not rows:
        return "No row has been run with both KMIFQE at our best settings and a baseline."
    behind = f" Behind: {', '.join(lost)}." if lost else ""
    seeds = min(len(record["values"]) for record in records)
    means = [f"{len(_score(records, count)[0])} over {count}" for count in MEANS if count <= seeds]
    read = f" Read as means over seeds, every method alike, {', '.join(means)}." if means else ""
    return (
        f"KMIFQE at our best settings is better than the best baseline, or within one standard error of the "
        f"difference, on {len(good)} of {rows} rows.{behind}{read}"
    )


def _score(records: Sequence[Record], seeds: int) -> tuple[list[str], list[str]]:
    """Return the rows where a mean over seeds of our best is as good as one of the best baseline, and the others."""
    good: list[str] = []
    lost: list[str] = []
    for row, truth, found in _compared(records):
        baselines = [_judged(found[m], truth, seeds) for m in BASELINES if m in found]
        if row in (*good, *lost) or OURS not in found or not baselines:
            continue
        ours, best = _judged(found[OURS], truth, seeds), min(baselines)
        (good if ours[0] <= best[0] + math.hypot(ours[1], best[1]) else lost).append(row)
    return good, lost


def values_table(records: Sequence[Record]) -> str:
    """Return R and V of target, behaviour mean and behaviour by row, with standard errors; the paper's below."""
    columns = [f"{what}({name})" for what in "RV" for name in POLICIES.values()]
    lines = _head("row", "", *columns)
    for row, found in _by_row(records).items():
        policies = found[0].get("policies", {})
        cells = [_value(policies.get(name), what) for what in "RV" for name in POLICIES]
        episodes = policies.get("target", {}).get("episodes", 0)
        lines.append(_line(row, f"{episodes:,} episodes", *cells))
        if row in POLICY_VALUES:
            printed = POLICY_VALUES[row]
            cells = [
                number(printed[c], decimals=0 if c[0] == "R" else 3) if c in printed else NOTHING
                for c in columns
            ]
            lines.append(_line("", "paper", *cells))
    return "\n".join(lines)


def likelihood_table(records: Sequence[Record]) -> str:
    """Return held-out log-likelihoods ± one standard error by row and component count, the chosen in bold."""
    counts = sorted({entry["components"] for record in records for entry in record["table"]})
    lines = _head("row", "", *(f"{count}" for count in counts))
    for row, found in _by_row(records).items():
        cells = dict.fromkeys(counts, NOTHING)
        for entry in found[0]["table"]:
            cell = _with_error(entry["log_likelihood"], entry["standard_error"])
            cells[entry["components"]] = f"**{cell}**" if entry["components"] == found[0]["chosen"] else cell
        lines.append(_line(row, f"{found[0]['held_out_episodes']:,} episodes held out", *cells.values()))
        printed = LIKELIHOODS.get(paper_row(row), {})
        if printed:
            likely = [_with_error(*printed[count]) if count in printed else NOTHING for count in counts]
            lines.append(_line("", "paper, D4RL", *likely))
    return "\n".join(lines)


def policies_table(records: Sequence[Record]) -> str:
    """Return what training reached by task: steps and return of target and behaviour mean, and the latter's level."""
    lines = _head("task", "target at step", "R(target)", "behaviour at step", "R(behaviour)", "level")
    for row, (record, *_) in _by_row(records).items():
        choice = record["choice"]
        cells = [_checkpoint(choice[name]) for name in ("target", "behavior")]
        reached = choice["behavior_level"]
        lines.append(_line(row, *cells[0], *cells[1], NOTHING if reached is None else f"{reached:.0%}"))
    return "\n".join(lines)


def conditions_line(records: Sequence[Record]) -> str:
    """Return on which devices, with which versions and how long the records were made, and on which logs."""
    devices = sorted({record["device"] for record in records})
    versions = sorted({f"kmifqe {r['versions']['kmifqe']}, jax {r['versions']['jax']}" for r in records})
    dates = sorted(record["created"][:10] for record in records)
    hours = sum(record["wall_seconds"] for record in records) / 3600.0
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        f"{len(records)} records, {span}; {' and '.join(devices)}; {'; '.join(versions)}; "
        f"{hours:.2f} hours of running in all.{_other_logs(records)}"
    )


def _other_logs(records: Sequence[Record]) -> str:
    """Return a sentence on methods whose rows or truth are not those of most others of their row; "" without any.

    A seed gives one MuJoCo log on one kind of processor: records that were made apart may differ in it.
    """
    apart = []
    for row, found in _by_row(records).items():
        logs = [(record.get("counts"), record.get("truth")) for record in found]
        usual = max(logs, key=logs.count)
        others = [record["method"] for record, log in zip(found, logs) if log != usual]
        if others:
            apart.append(f"{row} ({', '.join(others)})")
    return f" By its rows or truth, another log of the same seed: {'; '.join(apart)}." if apart else ""


def paper_row(row: str) -> str:
    """Return the row of the paper that ours stands beside: a regenerated one beside the D4RL file's."""
    return row.removesuffix("-regenerated")


def _compared(records: Sequence[Record]) -> Iterable[tuple[str, str, dict[str, Record]]]:
    """Yield (row, truth, method -> record) in the paper's order, the exact truth first."""
    for row, found in _by_row(records).items():
        by_method = {record["method"]: record for record in found}
        for truth in TRUTHS:
            known = {m: r for m, r in by_method.items() if truth in r["errors"]}
            if known:
                yield row, truth, known


def _by_row(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return row -> its records, rows in the paper's order, others after them."""
    order = list(TABLE1)
    rows = sorted(
        {record["row"] for record in records},
        key=lambda row: (order.index(paper_row(row)) if paper_row(row) in order else len(order), row),
    )
    return {row: [record for record in records if record["row"] == row] for row in rows}


def _judged(record: Record, truth: str, seeds: int) -> tuple[float, float]:
    """Return (RMSE, standard error) of means over so many seeds to compare by; a method that diverged comes last."""
    values = [math.nan if value is None else value for value in record["values"]]
    return error_of_mean(values, record["errors"][truth]["truth"], seeds)


def _error(record: Record | None, truth: str) -> str:
    if record is None:
        return NOTHING
    error = record["errors"][truth]
    if error["rmse"] is None:
        return f"diverged ({error['diverged']} of {len(record['values'])})"
    return _with_error(error["rmse"], error["standard_error"])


def _mean_error(record: Record | None, truth: str) -> str:
    if record is None or len(record["values"]) < SHOWN_MEAN:
        return NOTHING
    rmse, standard_error = _judged(record, truth, SHOWN_MEAN)
    return _with_error(rmse, standard_error) if math.isfinite(rmse) else "diverged"


def _bias(record: Record | None, truth: str) -> str:
    error = None if record is None else record["errors"][truth]
    if error is None or error["bias"] is None:
        return NOTHING
    spread = "" if error["spread"] is None else f" ± {number(error['spread'])}"
    return f"{number(error['bias'], sign=True)}{spread}"


def _value(policy: Record | None, what: str) -> str:
    if policy is None:
        return NOTHING
    mean, error = policy[what], policy[f"{what}_standard_error"]
    if what == "R":
        return f"{mean:.0f}" + ("" if error is None else f" ± {error:.0f}")
    return _with_error(mean, error)


def _checkpoint(point: Record | None) -> tuple[str, str]:
    if point is None:
        return NOTHING, NOTHING
    return f"{point['steps']:,}", f"{point['episode_return']:.0f} ± {point['standard_error']:.0f}"


def _with_error(mean: float, error: float | None) -> str:
    return plus_minus(mean, math.nan if error is None else error)


def _head(*columns: str) -> list[str]:
    return [_line(*columns), _line(*("---" for _ in columns))]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
