"""The parts of one run's report behind the answer: the log, the settings, the Q-landscape's place, how to cite."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from kmifqe.report.html.markup import Html, tag
from kmifqe.report.html.sections import section, swatch
from kmifqe.report.html.source import Run, Told, finite
from kmifqe.report.html.words import name_of, show

ROWS = (
    ("logged", "Logged rows"),
    ("used", "Used by FQE and SR-DICE"),
    ("in_sample", "Used by KMIFQE"),
    ("without_next_state", "Dropped: no next state was logged"),
    ("without_next_action", "Without a next action: not for KMIFQE"),
    ("terminated", "Rows that end in a terminal state"),
    ("episodes", "Episodes"),
)
MEASURED = (
    ("episode_longest", "Longest episode, steps"),
    ("reward_mean", "Mean reward"),
    ("reward_std", "Standard deviation of rewards"),
    ("reward_low", "Smallest reward"),
    ("reward_high", "Largest reward"),
)
WIDE = 24  # letters: a longer fact has a line of its own
PAPER = """@inproceedings{lee2024kernel,
  title     = {Kernel Metric Learning for In-Sample Off-Policy Evaluation of Deterministic {RL} Policies},
  author    = {Lee, Haanvid and Guntara, Tri Wahyu and Lee, Jongmin and Noh, Yung-Kyun and Kim, Kee-Eung},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2024}
}"""
SOFTWARE = """@software{{kmifqe,
  title   = {{kmifqe: off-policy evaluation of deterministic, continuous-action policies}},
  version = {{{version}}},
  note    = {{An independent implementation of Lee et al. (ICLR 2024)}}
}}"""


def explorer_section(run: Run, payload: dict[str, Any], prefix: str) -> Html | None:
    """Return the place of the Q-landscape explorer, or why there is none."""
    title = "The Q-landscape around the target's action"
    if run.landscape_note is not None:
        return section(f"{prefix}landscape", title, tag("p", run.landscape_note, class_="callout"))
    if payload["landscape"] is None or not payload["landscape"]["surfaces"]:
        return None
    left_out = [name_of(name) for name in payload["landscape"]["left_out"]]
    return section(
        f"{prefix}landscape",
        title,
        tag("div", class_="explorer card", data_explorer=True),
        tag("p", f"Too large to embed: {', '.join(left_out)}.", class_="quiet") if left_out else None,
        lead="Q as each estimator learned it, at one logged state, over two dimensions of the action; the others "
        "stay at the target's.",
    )


def data_section(run: Run, prefix: str) -> Html:
    """Return what was read, and what became of its rows."""
    counts = run.record.get("rows") if isinstance(run.record.get("rows"), dict) else {}
    facts: list[tuple[str, object]] = [
        ("Log", run.text("data")),
        ("Target policy", run.policy),
        ("Behaviour density", run.text("behavior")),
        ("Discount γ", show(finite(run.record.get("gamma")), decimals=4)),
    ]
    assert isinstance(counts, dict)
    facts += [
        (label, f"{number:,.0f}") for name, label in ROWS if (number := finite(counts.get(name))) is not None
    ]
    facts += [
        (label, show(number) if "reward" in name else f"{number:,.0f}")
        for name, label in MEASURED
        if (number := finite(run.main.measurements.get(name))) is not None
    ]
    fitted = run.record.get("behavior_fit")
    return section(
        f"{prefix}data",
        "The log",
        _facts(facts),
        _folded("How the behaviour density was fitted", fitted) if fitted else None,
    )


def settings_section(run: Run, prefix: str) -> Html:
    """Return every setting of every estimator, versions, device, and the command to run again."""
    versions = run.record.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    command = run.record.get("command")
    line = "kmifqe " + shlex.join(map(str, command)) if isinstance(command, list) else run.text("command")
    facts = [
        ("Run directory", str(run.path)),
        ("Written", run.text("created").replace("T", " ")),
        ("Device", run.text("device")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or "not recorded"),
        ("Record", run.text("schema")),
    ]
    extra = {name: run.record[name] for name in ("demo",) if name in run.record}
    return section(
        f"{prefix}settings",
        "Settings and versions",
        tag("p", "The command that made this run:"),
        _copyable(line),
        _facts(facts),
        _settings_table(run),
        *[_folded(f"Settings of the {name}", value) for name, value in extra.items()],
    )


def citing_section(version: str) -> Html:
    """Return whom to cite."""
    return section(
        "citing",
        "How to cite",
        tag("p", "The method:"),
        _copyable(PAPER),
        tag("p", "This software:"),
        _copyable(SOFTWARE.format(version=version)),
    )


def _settings_table(run: Run) -> Html:
    names = list(dict.fromkeys(name for told in run.estimates for name in told.config))
    head = [tag("th", "Setting", scope="col")]
    head += [tag("th", swatch(told.estimator), scope="col") for told in run.estimates]

    def cell(name: str, told: Told) -> Html:
        setting = _setting(told.config[name]) if name in told.config else ""
        return tag("td", setting, data_head=name_of(told.estimator))

    rows = [
        tag("tr", tag("th", tag("code", name), scope="row"), *[cell(name, told) for told in run.estimates])
        for name in names
    ]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="settings")
    scroll = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Table of settings")
    return tag("details", tag("summary", "Every setting of every estimator"), scroll)


def _setting(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_setting(each) for each in value)
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}".replace("-", "−")
    return str(value)


def _facts(facts: Iterable[tuple[str, object]]) -> Html:
    rows = [
        tag("div", tag("dt", name), tag("dd", value), class_="wide" if len(str(value)) > WIDE else None)
        for name, value in facts
    ]
    return tag("dl", *rows, class_="facts")


def _folded(title: str, value: object) -> Html:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return tag("details", tag("summary", title), tag("pre", text, tabindex="0"))


def _copyable(text: str) -> Html:
    button = tag("button", "Copy", type="button", class_="copy", data_copy=True)
    return tag("div", tag("pre", tag("code", text), tabindex="0"), button, class_="copyable")
