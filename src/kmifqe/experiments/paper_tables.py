"""Experiment records -> Markdown tables, our numbers above the paper's, in a folder or between a page's markers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kmifqe.errors import InputError
from kmifqe.experiments.policies import shipped_training
from kmifqe.experiments.presets import METHODS, REGENERATED, TASKS, preset_named, row_named, table_rows
from kmifqe.experiments.ranking_tables import ranking_scores_table
from kmifqe.experiments.records import (
    LikelihoodRecord,
    PolicyValue,
    TableRecord,
    error_of_mean,
    read_records,
    refuse_others,
)
from kmifqe.io.files import disk_sentence, read_file, whole_file
from kmifqe.report.terminal import number, plus_minus

Printed = tuple[float, float]  # mean, one standard error

# Table 1: RMSE over 10 seeds, by row and method.
PAPER_METHODS = ("kmifqe-paper", "kmifqe-identity", "sr-dice", "fqe-paper")
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
TABLE1 = {row: dict(zip(PAPER_METHODS, printed)) for row, printed in _TABLE1.items()}

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

OURS = ("kmifqe", "auto")
WORST_RATIO = 1.5  # of auto's error to that of the row's best method: what auto should stay below
JUDGED = tuple(
    name for name, method in METHODS.items() if method.is_default
)  # they have interval and verdict
LABELS = [method.label for method in METHODS.values()]
TRUTHS = {"logged_first_states": "logged first states", "population": "population"}
POLICIES = {"target": "π̃", "behavior_mean": "μ̃", "behavior": "μ"}
NOTHING = "–"
MEANS = (2, 4, 10)  # how many seeds a user may average over
SHOWN_MEAN = 4  # the one with a table of its own
TABLES = "tables.md"
MARKED = re.compile(r"(<!-- records: (\w+) (\w+) -->\n).*?(<!-- end of records -->)", re.DOTALL)

Records = Sequence[TableRecord]


def error_table(records: Records) -> str:
    """Return Table 1: RMSE over seeds ± one standard error by row, truth and method, the paper's below ours."""
    lines = []
    for row, truth, found in _compared(records):
        lines.append((row, TRUTHS[truth], *_by_method(found, _error, truth)))
        printed = TABLE1.get(_paper_row(row))
        if printed is not None and truth == "population":
            source = "paper" if row in TABLE1 else "paper, D4RL"
            lines.append(("", source, *_by_method(printed, lambda numbers: plus_minus(*numbers))))
    return _table(("row", "against", *LABELS), lines)


def bias_table(records: Records) -> str:
    """Return mean V̂ − V over seeds (± the seeds' standard deviation) by row, truth and method."""
    lines = []
    for row, truth, found in _compared(records):
        value = next(iter(found.values())).errors[truth]["truth"]
        lines.append((row, number(value), TRUTHS[truth], *_by_method(found, _bias, truth)))
    return _table(("row", "V", "against", *LABELS), lines)


def means_table(records: Records) -> str:
    """Return the RMSE of means of four seeds ± one standard error, by row, truth and method."""
    compared = _compared(records)
    lines = [(row, TRUTHS[truth], *_by_method(found, _mean_error, truth)) for row, truth, found in compared]
    return _table(("row", "against", *LABELS), lines)


def score_line(records: Records) -> str:
    """Return on how many rows what users get is as good as the best method, and how far auto is from it.

    As good: the RMSE of KMIFQE or of auto is at most that of the row's best method plus one standard error of their
    difference. Pendulum counts once, against the logged first states. Means are of as many networks for every method.
    """
    good, lost, ratios = _score(records, 1)
    rows = len(good) + len(lost)
    if not rows:
        return "No row has been run with all methods."
    behind = f" Behind: {', '.join(lost)}." if lost else ""
    seeds = min(len(record.values) for record in records)
    means = [f"{len(_score(records, count)[0])} over {count}" for count in MEANS if count <= seeds]
    read = f" Read as means over networks, every method alike: {', '.join(means)}." if means else ""
    worst = max(ratios, key=ratios.__getitem__)
    over = [f"{row} ({ratio:.2f})" for row, ratio in ratios.items() if ratio > WORST_RATIO]
    further = f"; more than {WORST_RATIO} times on {', '.join(over)}" if over else ""
    return (
        f"KMIFQE or auto is the best method, or within one standard error of the difference from it, on "
        f"{len(good)} of {rows} rows.{behind}{read} auto's RMSE is at most {ratios[worst]:.2f} times the best "
        f"method's ({worst}){further}."
    )


def _score(records: Records, seeds: int) -> tuple[list[str], list[str], dict[str, float]]:
    """Return the rows where ours is as good as the best method, the other rows, and auto's ratio by row.

    `records` are Table 1's; rows that lack a method are left out. `seeds` is how many networks a mean is over. The
    ratio is that of auto's RMSE to the best method's.
    """
    good: list[str] = []
    lost: list[str] = []
    ratios: dict[str, float] = {}
    for row, truth, found in _compared(records):
        if row in ratios or not METHODS.keys() <= found.keys():
            continue
        errors = {method: _rmse(record, truth, seeds) for method, record in found.items()}
        ours, best = min(errors[method] for method in OURS), min(errors.values())
        (good if ours[0] <= best[0] + math.hypot(ours[1], best[1]) else lost).append(row)
        ratios[row] = errors["auto"][0] / best[0]
    return good, lost, ratios


def judged_table(records: Records) -> str:
    """Return what `evaluate` would say of each row: V, value, interval and verdict of what users get."""
    lines: list[tuple[str, ...]] = []
    for row, truth, found in _compared(records):
        said = {method: record for method, record in found.items() if record.verdict}
        if not said or (lines and lines[-1][0] == row):
            continue
        cells = [_judged(said[method]) if method in said else NOTHING for method in JUDGED]
        lines.append((row, number(next(iter(said.values())).errors[truth]["truth"]), *cells))
    return _table(("row", "V", *(METHODS[method].label for method in JUDGED)), lines)


def _judged(record: TableRecord) -> str:
    finite = record.values[np.isfinite(record.values)]
    value = number(float(finite.mean())) if len(finite) else NOTHING
    low, high = (number(end) for end in record.interval) if record.interval else (NOTHING, NOTHING)
    return f"{value} ({low} … {high}), {record.verdict}"


def values_table(records: Records) -> str:
    """Return R and V of target, behaviour mean and behaviour by row, with standard errors; the paper's below."""
    columns = [(what, name) for what in "RV" for name in POLICIES]
    symbols = [f"{what}({POLICIES[name]})" for what, name in columns]
    lines = []
    for row, (record, *_) in _by_row(records).items():
        episodes = record.policies["target"].episodes if "target" in record.policies else 0
        cells = [_value(record.policies.get(name), what) for what, name in columns]
        lines.append((row, f"{episodes:,} episodes", *cells))
        if row in POLICY_VALUES:
            printed = [(symbol, POLICY_VALUES[row].get(symbol)) for symbol in symbols]
            cells = [NOTHING if x is None else number(x, decimals=3 * (s[0] == "V")) for s, x in printed]
            lines.append(("", "paper", *cells))
    return _table(("row", "", *symbols), lines)


def likelihood_table(records: Sequence[LikelihoodRecord]) -> str:
    """Return held-out log-likelihoods ± one standard error by row and component count, the chosen in bold."""
    counts = sorted({entry["components"] for record in records for entry in record.table})
    lines = []
    for row, (record, *_) in _by_row(records).items():
        cells = dict.fromkeys(counts, NOTHING)
        for entry in record.table:
            cell = _with_error(entry["log_likelihood"], entry["standard_error"])
            cells[entry["components"]] = f"**{cell}**" if entry["components"] == record.chosen else cell
        lines.append((row, f"{record.held_out_episodes:,} episodes held out", *cells.values()))
        printed = LIKELIHOODS.get(_paper_row(row))
        if printed:
            likely = [plus_minus(*printed[count]) if count in printed else NOTHING for count in counts]
            lines.append(("", "paper, D4RL", *likely))
    return _table(("row", "", *map(str, counts)), lines)


def policies_table(choices: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what training reached by task: steps and return of target and behaviour mean, and the latter's level."""
    lines = []
    for task, choice in ((task, choices[task]) for task in TASKS if task in choices):
        level = NOTHING if choice["behavior_level"] is None else f"{choice['behavior_level']:.0%}"
        lines.append((task, *_checkpoint(choice["target"]), *_checkpoint(choice["behavior"]), level))
    columns = ("target at step", "R(target)", "behaviour at step", "R(behaviour)", "level")
    return _table(("task", *columns), lines)


def conditions_line(records: Records) -> str:
    """Return on which devices, with which versions and how long the records were made, and on which logs."""
    devices = sorted({record.device for record in records})
    versions = sorted({f"kmifqe {r.versions['kmifqe']}, jax {r.versions['jax']}" for r in records})
    dates = sorted(record.created[:10] for record in records)
    hours = sum(record.wall_seconds for record in records) / 3600.0
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        f"{len(records)} records, {span}; {' and '.join(devices)}; {'; '.join(versions)}; "
        f"{hours:.2f} hours of running in all.{_other_logs(records)}"
    )


def _other_logs(records: Records) -> str:
    """Return a sentence on methods whose rows or truth are not those of most others of their row; "" without any.

    A seed gives one MuJoCo log on one kind of processor: records that were made apart may differ in it.
    """
    apart = []
    for row, found in _by_row(records).items():
        logs = [(record.counts, record.truth) for record in found]
        others = [r.method for r, log in zip(found, logs) if log != max(logs, key=logs.count)]
        apart += [f"{row} ({', '.join(others)})"] if others else []
    return f" By its rows or truth, another log of the same seed: {'; '.join(apart)}." if apart else ""


class Piece(NamedTuple):
    """A table or sentence that a page can ask for."""

    experiment: str  # whose records it needs
    heading: str  # "": a sentence, without one
    text: Callable[[Any], str]


PIECES = {
    "conditions": Piece("table1", "", conditions_line),
    "errors": Piece("table1", "RMSE over seeds, ± one standard error", error_table),
    "score": Piece("table1", "", score_line),
    "judged": Piece("table1", "What `kmifqe evaluate` says: value, 95 % interval, verdict", judged_table),
    "means": Piece("table1", "RMSE of means of four seeds, ± one standard error", means_table),
    "bias": Piece("table1", "Mean V̂ − V over seeds, ± the seeds' standard deviation", bias_table),
    "values": Piece("table1", "R and V of the policies, ± one standard error", values_table),
    "likelihoods": Piece(
        "loglik", "Held-out log-likelihood of the fitted behaviour, nats a row", likelihood_table
    ),
    "policies": Piece(
        "policies", "Trained policies", lambda found: policies_table({r.row: r.choice for r in found})
    ),
    "ranking": Piece(
        "ranking", "Choosing among policies: DOPE's scores, 90 % intervals", ranking_scores_table
    ),
}


def render(root: Path, out: Path, preset: str) -> list[Path]:
    """Write the tables and figures of the records of a `preset` under `root` into `out`; return the files written."""
    records = read_records(root, preset=preset)
    if not records:
        raise InputError(f"{root / preset}: holds no experiment records; run kmifqe reproduce first")
    from kmifqe.experiments.paper_figures import FIGURES, save_paper_figures

    refuse_others(out / TABLES, *(out / f"{name}.png" for name in FIGURES))
    with disk_sentence(out):
        out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / TABLES) as partial:
        partial.write_text(_tables_text(root, preset), encoding="utf-8")
    return [out / TABLES, *save_paper_figures(records, out)]


def _tables_text(root: Path, preset: str) -> str:
    """Return every table of a preset's records, as Markdown."""
    parts = [f"# Preset {preset}"]
    for name, piece in PIECES.items():
        if read_records(root, piece.experiment, preset):
            parts += [f"## {piece.heading}"] if piece.heading else []
            parts.append(piece_text(root, name, preset))
    return "\n\n".join([*parts, missing_line(root, preset)]) + "\n"


def piece_text(root: Path, name: str, preset: str) -> str:
    """Return one table or sentence from the records; where there are none, a sentence that says so.

    `root` is the root of the records, `name` one of PIECES or "missing", and `preset` whose records are read.
    """
    if name == "missing":
        return missing_line(root, preset)
    if name not in PIECES:
        raise InputError(f"{name!r} is no table; expected one of {', '.join((*PIECES, 'missing'))}")
    piece = PIECES[name]
    records = read_records(root, piece.experiment, preset_named(preset).name)
    if records:
        return piece.text(records)
    if name == "policies":  # what was not trained anew is what the package brings
        return policies_table({task: record["choice"] for task, record in shipped_training().items()})
    return f"No records of `kmifqe reproduce {piece.experiment} --preset {preset}` yet."


def missing_line(root: Path, preset: str) -> str:
    """Return which records of Table 1 a preset still lacks, in one sentence."""
    there = {(record.row, record.method) for record in read_records(root, "table1", preset)}
    size, lacking = preset_named(preset), []
    for row in table_rows(size):
        methods = size.methods_of(row_named(row).recipe)
        missing = [method for method in methods if (row, method) not in there]
        if missing:
            every = len(missing) == len(methods)
            lacking.append(f"{row} ({'all methods' if every else ', '.join(missing)})")
    if not lacking:
        return f"Every row and method of Table 1 was run with preset {preset}."
    return f"Not run yet with preset {preset}: {'; '.join(lacking)}."


def filled(text: str, root: Path) -> str:
    """Return a page's text with what stands between its markers replaced by what the records say.

    A marker pair is `<!-- records: TABLE PRESET -->` and `<!-- end of records -->`.
    """
    return MARKED.sub(lambda found: f"{found[1]}\n{piece_text(root, found[2], found[3])}\n\n{found[4]}", text)


def fill_page(page: Path, root: Path) -> None:
    """Rewrite the tables of a page from the records."""
    try:
        text = read_file(page).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{page}: is no text ({error}); expected a page in Markdown") from error
    with whole_file(page) as partial:
        partial.write_text(filled(text, root), encoding="utf-8")


def _compared(records: Records) -> Iterator[tuple[str, str, dict[str, TableRecord]]]:
    """Yield (row, truth, method -> record) in the paper's order, the exact truth first."""
    for row, found in _by_row(records).items():
        for truth in TRUTHS:
            known = {record.method: record for record in found if truth in record.errors}
            if known:
                yield row, truth, known


def _by_row(records: Sequence[Any]) -> dict[str, list[Any]]:
    """Return row -> its records, rows in the paper's order, others after them."""
    order = {row: place for place, row in enumerate(TABLE1)}
    rows = {record.row: order.get(_paper_row(record.row), len(order)) for record in records}
    in_order = sorted(rows, key=lambda row: (rows[row], row))
    return {row: [record for record in records if record.row == row] for row in in_order}


def _paper_row(row: str) -> str:
    """Return the row of the paper that ours stands beside: a regenerated one beside the D4RL file's."""
    return row.removesuffix(REGENERATED)


def _by_method(found: Mapping[str, Any], cell: Callable[..., str], *arguments: str) -> list[str]:
    return [cell(found[method], *arguments) if method in found else NOTHING for method in METHODS]


def _rmse(record: TableRecord, truth: str, seeds: int) -> tuple[float, float]:
    """Return RMSE and standard error of means over so many seeds; a method that diverged comes last."""
    return error_of_mean(record.values, record.errors[truth]["truth"], seeds)


def _error(record: TableRecord, truth: str) -> str:
    error = record.errors[truth]
    if error["rmse"] is None:
        return f"diverged ({error['diverged']} of {len(record.values)})"
    return _with_error(error["rmse"], error["standard_error"])


def _mean_error(record: TableRecord, truth: str) -> str:
    if len(record.values) < SHOWN_MEAN:
        return NOTHING
    rmse, standard_error = _rmse(record, truth, SHOWN_MEAN)
    return _with_error(rmse, standard_error) if math.isfinite(rmse) else "diverged"


def _bias(record: TableRecord, truth: str) -> str:
    error = record.errors[truth]
    if error["bias"] is None:
        return NOTHING
    spread = "" if error["spread"] is None else f" ± {number(error['spread'])}"
    return f"{number(error['bias'], sign=True)}{spread}"


def _value(policy: PolicyValue | None, what: str) -> str:
    if policy is None:
        return NOTHING
    if what == "V":
        return _with_error(policy.V, policy.V_standard_error)
    return f"{policy.R:.0f}" + (
        "" if policy.R_standard_error is None else f" ± {policy.R_standard_error:.0f}"
    )


def _checkpoint(point: Mapping[str, Any] | None) -> tuple[str, str]:
    if point is None:
        return NOTHING, NOTHING
    return f"{point['steps']:,}", f"{point['episode_return']:.0f} ± {point['standard_error']:.0f}"


def _with_error(mean: float, error: float | None) -> str:
    return plus_minus(mean, math.nan if error is None else error)


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *lines))
