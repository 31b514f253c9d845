"""Experiment records -> Markdown tables, our numbers above the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kmifqe.report.terminal import number, plus_minus

Printed = tuple[float, float]  # mean, one standard error

# Table 1: RMSE over 10 seeds, by row and method.
METHODS = ("kmifqe", "kmifqe-identity", "sr-dice", "fqe")
_TABLE1: dict[str, tuple[Printed, Printed, Printed, Printed]] = {
    "pendulum": ((0.115, 0.018), (0.250, 0.032), (1.641, 0.426), (8.126, 2.962)),
    "hopper": ((0.023, 0.006), (0.034, 0.009), (0.129, 0.023), (0.083, 0.011)),
    "halfcheetah": ((2.080, 0.010), (2.549, 0.017), (2.784, 0.030), (1.637, 0.051)),
    "walker2d": ((0.032, 0.008), (0.048, 0.009), (0.273, 0.054), (241.319, 49.248)),
    "ant": ((1.800, 0.013), (2.255, 0.014), (1.996, 0.030), (3.219, 0.736)),
    "humanoid": ((0.246, 0.010), (0.293, 0.021), (1.285, 0.050), (8.860, 8.196)),
    "hopper-medium-expert": ((0.019, 0.003), (0.020, 0.005), (0.045, 0.007), (0.033, 0.010)),
    "halfcheetah-medium-expert": ((0.418, 0.016), (0.457, 0.007), (0.239, 0.025), (0.080, 0.007)),
    "walker2d-medium-expert": ((0.036, 0.006), (0.038, 0.006), (0.115, 0.017), (1.051, 0.633)),
    "hopper-medium-replay": ((0.536, 0.099), (0.517, 0.120), (0.849, 0.052), (0.561, 0.118)),
    "halfcheetah-medium-replay": ((4.698, 0.044), (4.765, 0.026), (5.048, 0.090), (6.394, 1.769)),
    "walker2d-medium-replay": ((1.364, 0.052), (1.360, 0.025), (1.523, 0.061), (86.315, 29.206)),
}
TABLE1 = {row: dict(zip(METHODS, printed)) for row, printed in _TABLE1.items()}

# Appendix: undiscounted return R and normalised value V of behaviour mean, behaviour and target. The text gives
# V = −3.791 for Pendulum's target, the table −3.971; R of the MuJoCo behaviours is not printed.
POLICY_VALUES: dict[str, dict[str, float]] = {
    "pendulum": {"V(μ)": -5.080, "V(π̃)": -3.971},
    "hopper": {"R(μ̃)": 2054, "R(π̃)": 2600, "V(μ̃)": 2.553, "V(μ)": 2.506, "V(π̃)": 2.571},
    "halfcheetah": {"R(μ̃)": 7591, "R(π̃)": 10495, "V(μ̃)": 5.716, "V(μ)": 4.211, "V(π̃)": 7.267},
    "walker2d": {"R(μ̃)": 3032, "R(π̃)": 4173, "V(μ̃)": 2.595, "V(μ)": 2.605, "V(π̃)": 2.693},
    "ant": {"R(μ̃)": 3737, "R(π̃)": 5035, "V(μ̃)": 3.439, "V(μ)": 1.886, "V(π̃)": 4.396},
    "humanoid": {"R(μ̃)": 3912, "R(π̃)": 5303, "V(μ̃)": 4.848, "V(μ)": 4.396, "V(π̃)": 5.211},
}

# Appendix: held-out log-likelihood of the fitted behaviour, by number of components.
COMPONENTS = (10, 20, 30, 40)
_LIKELIHOODS: dict[str, tuple[Printed, Printed, Printed, Printed]] = {
    "hopper-medium-expert": ((2.089, 0.002), (2.114, 0.002), (2.123, 0.003), (2.125, 0.002)),
    "halfcheetah-medium-expert": ((6.581, 0.003), (6.591, 0.003), (6.583, 0.003), (6.578, 0.003)),
    "walker2d-medium-expert": ((5.610, 0.002), (5.626, 0.005), (5.630, 0.005), (5.629, 0.005)),
    "hopper-medium-replay": ((0.767, 0.006), (0.787, 0.007), (0.797, 0.006), (0.800, 0.005)),
    "halfcheetah-medium-replay": ((5.315, 0.012), (5.303, 0.012), (5.281, 0.016), (5.271, 0.014)),
    "walker2d-medium-replay": ((2.508, 0.007), (2.492, 0.013), (2.480, 0.016), (2.472, 0.011)),
}
LIKELIHOODS = {row: dict(zip(COMPONENTS, printed)) for row, printed in _LIKELIHOODS.items()}


def error_of_mean(values: Sequence[float] | np.ndarray, truth: float, count: int) -> tuple[float, float]:
    """Return the RMSE of the mean of `count` of these seeds, over every choice of so many, and its standard error.

    With the errors' mean e and variance s² (n − 1): RMSE² = e² − s²/n + s²/count, which is unbiased for the squared
    error of a mean of `count` seeds. `count` = 1 is the RMSE over seeds. The standard error is the jackknife's, of
    the square, carried through the root.
    """
    errors = np.asarray(values, np.float64) - truth
    n = len(errors)
    if not 1 <= count <= n:
        raise ValueError(f"count is {count}; expected 1 to {n}, the number of seeds")
    if not np.isfinite(errors).all():
        return math.inf, 0.0  # as in Table 1: an average over the other seeds would flatter the method
    rmse = math.sqrt(_squared(errors, count))
    if n == 1 or rmse == 0.0:
        return rmse, 0.0
    without = np.array([_squared(np.delete(errors, i), count) for i in range(n)])
    return rmse, math.sqrt((n - 1) * float(np.var(without))) / (2.0 * rmse)


def _squared(errors: np.ndarray, count: int) -> float:
    n = len(errors)
    variance = float(np.var(errors, ddof=1)) if n > 1 else 0.0
    return float(np.mean(errors)) ** 2 + variance * (1.0 / count - 1.0 / n)


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
