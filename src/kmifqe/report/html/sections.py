"""The parts of one run's report that are text and tables; figures are places that the scripts fill."""

from __future__ import annotations

from kmifqe.report.html import words
from kmifqe.report.html.markup import Html, join, tag
from kmifqe.report.html.payload import references
from kmifqe.report.html.source import LEVELS, Check, Run, Told
from kmifqe.report.html.words import name_of, show

CHECK_TITLES = {  # where a check's name, underscores away, would not tell what it is about
    "start_td": "TD error along logged episodes",
    "held_out_td": "TD error on held-out episodes",
    "density_fit": "fit of the behaviour density",
    "clipped_low": "weights at the lower clip",
    "clipped_high": "weights at the upper clip",
    "kernel_outside": "kernel outside the action range",
    "distance": "distance from the logged actions",
    "drift": "drift of the value",
    "metric": "condition of the metric",
    "ran_away": "seeds that ran away",
}
LEVEL_WORDS = {"ok": "fine", "care": "care", "bad": "bad"}
KNOWN = tuple(words.NAMES)
KERNEL_FIGURES = {  # chart -> its name, and how to read it
    "bandwidth": (
        "Bandwidth over training",
        "The kernel's width around the target's action, in half action ranges. Good: it settles. Bad: it sits "
        "on a bound of its range, or still drifts at the end.",
    ),
    "ess": (
        "Effective share of rows over training",
        "How many equally weighted rows the weights amount to, as a share of all. Bad: so few that a handful "
        "of rows decides the value.",
    ),
    "weights": (
        "Histogram of importance weights",
        "Weights of all rows before the clip, on a logarithmic axis; dashed: the clip. Rows at the left count "
        "for next to nothing. Bad: much mass beyond the upper clip, or all of it at the left edge.",
    ),
    "overlap": (
        "Overlap of target and logged actions",
        "Distance from what the log does in the same state; 1 is a logged action's usual one. Good: the target's "
        "actions lie among the logged ones. Bad: they lie to the right, where nothing was tried.",
    ),
}


def section(identity: str, title: str, *children: object, lead: str | None = None) -> Html:
    """Return a part of the page under its heading."""
    heading = tag("h2", title, id=f"{identity}-title")
    leading = None if lead is None else tag("p", lead, class_="lead")
    return tag("section", heading, leading, *children, id=identity, aria_labelledby=f"{identity}-title")


def figure(chart: str, label: str, caption: object, *, controls: object = None, size: str = "") -> Html:
    """Return a place for a chart: its controls, the plot, a line that reads out, and how to read it."""
    return tag(
        "figure",
        tag("div", controls, class_="controls", data_controls=chart),
        tag("div", class_=f"plot {size}".strip(), data_chart=chart, data_label=label),
        tag("output", " ", class_="readout", data_readout=chart),
        tag("figcaption", caption),
        class_="card",
    )


def swatch(estimator: str) -> Html:
    """Return an estimator's name behind its colour; the colour comes with a shape in every chart."""
    return tag(
        "span", tag("i", class_=f"swatch {color_class(estimator)}", aria_hidden="true"), name_of(estimator)
    )


def color_class(estimator: str) -> str:
    """Return the class that colours an estimator; a name of one's own never becomes a class."""
    return f"c-{estimator}" if estimator in KNOWN else "c-other"


def headline_section(run: Run, prefix: str) -> Html:
    """Return the answer: value, interval, verdict and its reasons, and what is missing."""
    truth = next((found["value"] for found in references(run) if found["label"] == "truth"), None)
    sentences = [words.discounted(run), None if truth is None else words.truth_words(run, truth)]
    return tag(
        "section",
        tag("p", join("Policy ", tag("strong", run.policy)), class_="eyebrow"),
        tag("h2", words.headline(run), id=f"{prefix}answer-title", class_="headline"),
        tag("p", *[join(sentence, " ") for sentence in sentences if sentence], class_="lead"),
        _verdict(run),
        *[tag("p", sentence, class_="callout") for sentence in words.missing_trust(run)],
        tag("p", words.provenance(run), class_="quiet"),
        class_="answer card",
        id=f"{prefix}answer",
        aria_labelledby=f"{prefix}answer-title",
    )


def _verdict(run: Run) -> Html | None:
    if run.verdict is None:
        return None
    level = words.VERDICTS.get(run.verdict, "care")
    reasons = [tag("li", words.typeset(reason)) for reason in run.reasons]
    return tag(
        "div",
        tag("p", tag("span", run.verdict, class_=f"badge big {level}"), class_="verdict-word"),
        tag("ol", *reasons, class_="reasons") if reasons else None,
        class_="verdict",
    )


def estimators_section(run: Run, prefix: str) -> Html:
    """Return all estimators side by side: a figure of values and intervals, and the table."""
    told = run.estimates
    heads = ("Estimator", "V̂", "Interval", "Spread over seeds", "Discounted return", "Steps", "Seeds", "Time")
    rows = [tag("tr", *_estimate_cells(each, heads)) for each in told]
    table = tag(
        "table",
        tag("caption", "Values are per step, normalised: (1 − γ) times the discounted return."),
        tag("thead", tag("tr", *[tag("th", head, scope="col") for head in heads])),
        tag("tbody", *rows),
    )
    # Newer records say the same, and more, among the checks.
    said = [] if run.checks else [(each, note) for each in told for note in each.notes]
    notes = [tag("li", swatch(each.estimator), ": ", words.typeset(note)) for each, note in said]
    return section(
        f"{prefix}estimators",
        "Estimators side by side",
        figure(
            "values",
            "Value and interval of every estimator",
            "Dot: mean over seeds. Thick bar: the interval. Small ticks: single seeds. Estimators that rest on "
            "different assumptions and agree are worth more than one alone; intervals that do not overlap mean "
            "that at least one of them is wrong.",
            size=f"rows-{min(len(told), 8)}",
        ),
        tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Table of estimators"),
        tag("ul", *notes, class_="notes") if notes else None,
    )


def _estimate_cells(told: Told, heads: tuple[str, ...]) -> list[Html]:
    horizon = 1.0 / (1.0 - told.gamma)
    diverged = sum(value is None for value in told.values)
    cells = (
        tag("strong", show(told.value)),
        "–" if told.interval is None else f"{words.interval_of(told)} ({words.level_of(told)})",
        "–" if told.spread is None else f"± {show(told.spread, told.value)}",
        show(None if told.value is None else told.value * horizon, decimals=2),
        f"{told.steps:,}",
        f"{len(told.seeds)}" + (f", {diverged} diverged" if diverged else ""),
        "–" if told.seconds is None else f"{told.seconds:,.0f} s",
    )
    first = tag("th", swatch(told.estimator), scope="row")
    return [first, *[tag("td", cell, data_head=head) for head, cell in zip(heads[1:], cells)]]


def trajectories_section(prefix: str) -> Html:
    """Return V̂ against training steps."""
    return section(
        f"{prefix}training",
        "How the value settled",
        figure(
            "trajectory",
            "Trajectories of the value over training; arrow keys move the read-out",
            "Thick line: mean over seeds; thin lines: single seeds. Good: flat over the last quarter, seeds "
            "together. Bad: still climbing or falling at the end (it needs more steps), or seeds that part.",
            size="tall",
        ),
    )


def checks_section(run: Run, prefix: str) -> Html | None:
    """Return every diagnostic, the worst first; those that passed are folded up."""
    if not run.checks:
        return None
    raised = sorted(
        (check for check in run.checks if check.level != "ok"),
        key=lambda check: (LEVELS.index(check.level), check.about not in ("", run.main.estimator)),
    )
    passed = [check for check in run.checks if check.level == "ok"]
    count = f"{len(raised)} of {len(run.checks)} checks ask for attention."
    if not raised:
        count = f"All {len(passed)} checks passed."
    folded = tag(
        "details",
        tag("summary", f"{len(passed)} check{'s' if len(passed) != 1 else ''} passed"),
        tag("ul", *[_check(check) for check in passed], class_="checks"),
        open=not raised,
    )
    return section(
        f"{prefix}checks",
        "Can this be believed?",
        tag("ul", *[_check(check) for check in raised], class_="checks") if raised else None,
        folded if passed else None,
        lead=count,
    )


def _check(check: Check) -> Html:
    return tag(
        "li",
        tag("span", LEVEL_WORDS[check.level], class_=f"badge {check.level}"),
        tag(
            "div",
            tag("h3", CHECK_TITLES.get(check.name, check.name.replace("_", " ")), _about(check)),
            tag("p", words.typeset(check.line)),
            tag("p", words.typeset(check.reason), class_="quiet") if check.reason else None,
        ),
        tag(
            "div",
            tag("strong", check.value),
            tag("span", _threshold(check), class_="quiet"),
            class_="measured",
        ),
        class_=f"check {check.level}",
    )


def _about(check: Check) -> Html | None:
    return tag("span", name_of(check.about), class_="about") if check.about else None


def _threshold(check: Check) -> str | None:
    return None if check.threshold in ("", "–") else check.threshold


def weights_section(run: Run, payload: dict[str, object], prefix: str) -> Html | None:
    """Return importance weights, bandwidth, effective rows and overlap, as far as the run has them."""
    kernel = any("h" in told.series for told in run.estimates)
    has = {"bandwidth": kernel, "ess": kernel, "weights": payload["weights"], "overlap": payload["overlap"]}
    figures = [
        figure(name, f"{label}; arrow keys move the read-out", caption)
        for name, (label, caption) in KERNEL_FIGURES.items()
        if has[name]
    ]
    if not figures:
        return None
    title = "Weights, bandwidth and overlap" if kernel else "Overlap"
    return section(f"{prefix}weights", title, tag("div", *figures, class_="grid"))
