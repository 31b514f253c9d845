"""Tables and figures from the records alone: into a folder, or between the markers of a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from kmifqe.errors import InputError
from kmifqe.experiments.paper_tables import (
    bias_table,
    conditions_line,
    error_table,
    likelihood_table,
    means_table,
    policies_table,
    score_line,
    values_table,
)
from kmifqe.experiments.policies import shipped_training
from kmifqe.experiments.presets import PRESETS, preset_named
from kmifqe.experiments.records import Record, read_records
from kmifqe.experiments.rows import row_named, table_rows
from kmifqe.io.files import disk_sentence, whole_file

# What a page can ask for: name -> the experiment whose records it needs, and how they become text.
PIECES: dict[str, tuple[str, Callable[[Sequence[Record]], str]]] = {
    "errors": ("table1", error_table),
    "bias": ("table1", bias_table),
    "score": ("table1", score_line),
    "means": ("table1", means_table),
    "values": ("table1", values_table),
    "conditions": ("table1", conditions_line),
    "likelihoods": ("loglik", likelihood_table),
    "policies": ("policies", policies_table),
}
HEADINGS = {
    "conditions": "",
    "errors": "RMSE over seeds, ± one standard error",
    "score": "",
    "means": "RMSE of means of four seeds, ± one standard error",
    "bias": "Mean V̂ − V over seeds, ± the seeds' standard deviation",
    "values": "R and V of the policies, ± one standard error",
    "likelihoods": "Held-out log-likelihood of the fitted behaviour, nats a row",
    "policies": "Trained policies",
}
TABLES = "tables.md"
MARKED = re.compile(r"(<!-- records: (\w+) (\w+) -->\n).*?(<!-- end of records -->)", re.DOTALL)


def render(root: Path, out: Path, preset: str | None = None) -> list[Path]:
    """Write the tables and figures of the records under `root` into `out`; return the files written.

    With `preset`, only of its records; otherwise of every preset that has some, each in a folder of its own.
    """
    if preset is None:
        found = [name for name in PRESETS if (root / name).is_dir()]
        if not found:
            raise InputError(
                f"{root}: holds no experiment records; expected PRESET/EXPERIMENT/ROW/METHOD.json"
            )
        return [path for name in found for path in render(root, out / name, name)]
    records = read_records(root, preset=preset)
    if not records:
        raise InputError(f"{root / preset}: holds no experiment records; run kmifqe reproduce first")
    with disk_sentence(out):
        out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / TABLES) as partial:
        partial.write_text(tables_text(root, preset), encoding="utf-8")
    from kmifqe.experiments.paper_figures import save_paper_figures

    return [out / TABLES, *save_paper_figures(records, out)]


def tables_text(root: Path, preset: str) -> str:
    """Return every table of a preset's records, as Markdown."""
    parts = [f"# Preset {preset}"]
    for name, heading in HEADINGS.items():
        if read_records(root, PIECES[name][0], preset):
            parts += [f"## {heading}"] if heading else []
            parts.append(piece_text(root, name, preset))
    return "\n\n".join([*parts, missing_line(root, preset)]) + "\n"


def piece_text(root: Path, name: str, preset: str) -> str:
    """Return one table or sentence from the records; where there are none, a sentence that says so."""
    if name == "missing":
        return missing_line(root, preset)
    if name not in PIECES:
        raise InputError(f"{name!r} is no table; expected one of {', '.join((*PIECES, 'missing'))}")
    experiment, make = PIECES[name]
    records = read_records(root, experiment, preset_named(preset).name)
    if not records and name == "policies":
        records = shipped_training()  # what was not trained anew is what the package brings
    if not records:
        return f"No records of `kmifqe reproduce {experiment} --preset {preset}` yet."
    return make(records)


def missing_line(root: Path, preset: str) -> str:
    """Return which records of Table 1 a preset still lacks, in one sentence."""
    there = {(record["row"], record["method"]) for record in read_records(root, "table1", preset)}
    size = preset_named(preset)
    expected = {row: size.methods_of(row_named(row).recipe) for row in table_rows(size)}
    lacking = {row: [m for m in methods if (row, m) not in there] for row, methods in expected.items()}
    lacking = {row: methods for row, methods in lacking.items() if methods}
    if not lacking:
        return f"Every row and method of Table 1 was run with preset {preset}."
    words = (
        f"{row} ({'all methods' if len(methods) == len(expected[row]) else ', '.join(methods)})"
        for row, methods in lacking.items()
    )
    return f"Not run yet with preset {preset}: {'; '.join(words)}."


def filled(text: str, root: Path) -> str:
    """Return a page's text with what stands between its markers replaced by what the records say.

    A marker pair is `<!-- records: TABLE PRESET -->` and `<!-- end of records -->`.
    """
    return MARKED.sub(lambda found: f"{found[1]}\n{piece_text(root, found[2], found[3])}\n\n{found[4]}", text)


def fill_page(page: Path, root: Path) -> None:
    """Rewrite the tables of a page from the records."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{page}: cannot be read ({error.strerror})") from error
    with whole_file(page) as partial:
        partial.write_text(filled(text, root), encoding="utf-8")
