"""Run directories to one HTML file that needs nothing else: no network, no font, no library."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

from kmifqe.io.files import whole_file
from kmifqe.report.html.appendix import citing_section, data_section, explorer_section, settings_section
from kmifqe.report.html.compare import comparison_section
from kmifqe.report.html.markup import Html, json_script, tag
from kmifqe.report.html.payload import NETWORK_BYTES, run_payload
from kmifqe.report.html.sections import (
    checks_section,
    estimators_section,
    headline_section,
    trajectories_section,
    weights_section,
)
from kmifqe.report.html.source import Run, read_run

REPORT = "report.html"
SCRIPTS = ("dom.js", "axes.js", "charts.js", "network.js", "contours.js", "explorer.js", "page.js")
NAVIGATION = (
    ("estimators", "Estimators"),
    ("training", "Training"),
    ("checks", "Checks"),
    ("weights", "Weights"),
    ("landscape", "Q-landscape"),
    ("data", "Log"),
    ("settings", "Settings"),
)


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the report of run directories (several are compared) to `out`, whole or not at all; return `out`."""
    page = report_page([read_run(path) for path in runs])
    with whole_file(out) as partial:
        partial.write_text(page, encoding="utf-8")
    return out


def report_page(runs: Sequence[Run]) -> str:
    """Return the page as text."""
    style, script = _asset("page.css"), _script()
    heading = "Policy evaluation" if len(runs) == 1 else f"{len(runs)} policies compared"
    title = f"{runs[0].policy}: what is it worth?" if len(runs) == 1 else heading
    articles = [_article(run, i, len(runs)) for i, run in enumerate(runs)]
    return Template(_asset("page.html")).substitute(
        policy=_content_policy(style, script),
        title=tag("title", f"{title} – kmifqe"),
        style=f"<style>{style}</style>",
        script=f"<script>{script}</script>",
        heading=tag("h1", heading),
        comparison=comparison_section(runs) if len(runs) > 1 else "",
        articles="".join(articles),
        citing=citing_section(version("kmifqe")),
        version=tag("span", f"kmifqe {version('kmifqe')}"),
    )


def _article(run: Run, i: int, count: int) -> Html:
    """Return one run's report, with the numbers its charts are drawn from."""
    prefix, payload = f"run{i}-", run_payload(run, NETWORK_BYTES // count)
    parts = {
        "estimators": estimators_section(run, prefix),
        "training": trajectories_section(prefix),
        "checks": checks_section(run, prefix),
        "weights": weights_section(run, payload, prefix),
        "landscape": explorer_section(run, payload, prefix),
        "data": data_section(run, prefix),
        "settings": settings_section(run, prefix),
    }
    links = [
        tag("a", label, href=f"#{prefix}{name}") for name, label in NAVIGATION if parts[name] is not None
    ]
    return tag(
        "article",
        headline_section(run, prefix),
        tag("nav", *links, tag("a", "Cite", href="#citing"), aria_label="Parts of this report"),
        *parts.values(),
        json_script(f"{prefix}numbers", payload),
        id=f"run{i}",
        class_="run",
        data_run=i,
        aria_label=run.policy,
    )


def _asset(name: str) -> str:
    return files("kmifqe.report.html").joinpath("assets", name).read_text(encoding="utf-8")


def _script() -> str:
    return "'use strict';\n(() => {\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();\n"


def _content_policy(style: str, script: str) -> Html:
    """Return the rule by which a browser runs this page's script and style and nothing else, and loads nothing."""

    def fingerprint(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    rules = f"default-src 'none'; style-src {fingerprint(style)}; script-src {fingerprint(script)}"
    return tag(
        "meta", http_equiv="Content-Security-Policy", content=f"{rules}; base-uri 'none'; form-action 'none'"
    )
