"""The page as text: complete, closed to the network, and written whole; what a result says stays text."""

import base64
import hashlib
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from kmifqe.errors import InputError
from kmifqe.estimators.fit import Progress
from kmifqe.estimators.registry import entry_named
from kmifqe.report.page import render_page, write_page
from kmifqe.report.result import Result
from kmifqe.report.terminal import TerminalWatch, estimates_table
from kmifqe.trust.landscape import write_landscape
from kmifqe.trust.verdict import Verdict
from report.small import (
    small_check,
    small_estimate,
    small_landscape,
    small_question,
    small_result,
    small_run,
)

HOSTILE = "</script><script>alert(1)</script><!--<b>&\"'\u2028"


def page_of(folder, landscape=None, **changes):
    run = small_run(folder, landscape, **changes)
    return render_page([Result.load(run)], [run])


def text_of(page):
    """Return what a reader sees, on one line."""
    body = re.sub(r"<(script|style).*?</\1>", "", page[page.index("<body>") :], flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def identities(page):
    return re.findall(r'\bid="([^"]+)"', page)


def test_nothing_is_loaded_and_only_our_script_may_run(tmp_path):
    page = page_of(tmp_path, small_landscape())
    rules = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page).group(1))
    assert "default-src 'none'" in rules
    assert "unsafe" not in rules
    for kind in ("style", "script"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in rules
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'\b(src|href)="(?!#)|url\(|@import', outside)
    assert re.findall(r"https?://\S+?'", page) == ["http://www.w3.org/2000/svg'"]  # a name, never fetched
    assert not re.search(r'\sstyle="', outside)  # the rules forbid them


def test_every_part_is_there_and_linked(tmp_path):
    page = page_of(tmp_path, small_landscape())
    parts = ("estimators", "training", "checks", "weights", "landscape", "data", "settings")
    for part in (*(f"run0-{name}" for name in parts), "citing"):
        assert f'id="{part}"' in page
        assert f'href="#{part}"' in page
    assert len(identities(page)) == len(set(identities(page)))


def test_a_result_without_kernel_landscape_or_checks_has_no_empty_parts():
    page = render_page([small_result((small_estimate("fqe"),), checks=())])
    for part in ("checks", "weights", "landscape"):
        assert f"run0-{part}" not in page


def test_the_headline_has_value_interval_and_verdict():
    text = text_of(render_page([small_result()]))
    assert "The policy is worth −3.790 per step (90 % interval −3.950 to −3.620)." in text
    assert "As a discounted return: −37.90 (−39.50 to −36.20), with γ = 0.9." in text
    assert "Judged by KMIFQE from 2,000 logged steps in 100 episodes, 2 seeds of 200 steps each." in text
    assert "do not use the behaviour density does not fit few rows" in text
    assert "No interval was computed" not in text


@pytest.mark.parametrize(("truth", "verb"), [(-3.7, "contains"), (-3.5, "misses")])
def test_a_known_truth_is_compared_with_value_and_interval(truth, verb):
    text = text_of(render_page([small_result(references={"truth": truth})]))
    error = f"{-3.79 - truth:+.3f}".replace("-", "−")
    assert f"so the error is {error}; the interval {verb} it." in text


def test_a_missing_interval_and_a_missing_value_are_said():
    plain = (small_estimate("kmifqe"),)
    text = text_of(render_page([small_result(plain, intervals={"kmifqe": None})]))
    assert "The policy is worth −3.790 per step." in text
    assert "No interval was computed" in text
    lost = (small_estimate("kmifqe", values=(np.nan, np.nan)),)
    assert "There is no value: no seed of KMIFQE" in text_of(render_page([small_result(lost)]))


def test_minus_signs_are_true_and_hyphens_stay():
    verdict = Verdict("use with care", ("sr-dice says -2.3, (-1e-5) on 2026-01-02",))
    page = render_page([small_result((small_estimate("fqe"),), verdicts={"fqe": verdict})])
    assert "sr-dice says −2.3, (−1e-5) on 2026-01-02" in page


def test_the_worst_checks_come_first_and_passed_ones_are_folded():
    page = render_page([small_result()])
    places = [page.index(line) for line in ("does not fit</p>", "40 effective rows</p>", "1 check passed")]
    assert places == sorted(places)
    assert "2 of 3 checks ask for attention." in page
    fine = render_page([small_result(checks=(small_check("drift", "ok"),))])
    assert "All 1 checks passed." in fine
    assert "<details open>" in fine


def test_a_check_shows_value_threshold_reason_and_advice():
    text = text_of(render_page([small_result(checks=(small_check("effective_rows", "care"),))]))
    for part in ("41.5", "care below 100", "fewer rows decide little", "mend the effective_rows"):
        assert part in text


def test_label_and_colour_come_from_the_registry_and_strangers_are_neutral():
    stranger = replace(small_estimate("fqe"), estimator="my-own")
    page = render_page([small_result((small_estimate("fqe"), stranger))])
    entry = entry_named("fqe")
    assert f"--c-0: light-dark({entry.color}, {entry.dark_color});" in page
    assert "--c-1: var(--quiet);" in page
    looks = json.loads(re.search(r'id="looks">(.*?)</script>', page).group(1))
    assert looks == [
        ["fqe", {"label": entry.label, "color": "c-0"}],
        ["my-own", {"label": "my-own", "color": "c-1"}],
    ]


def test_the_command_can_be_pasted_into_a_shell():
    assert "kmifqe evaluate log.npz --policy actor.npz --out 'runs/a b'" in text_of(
        render_page([small_result()])
    )


def test_notes_about_the_log_and_what_a_command_adds_are_shown():
    text = text_of(render_page([small_result(extra={"demo": {"rows": 77}})]))
    for part in ("the log has a note", '"rows": 77'):
        assert part in text


def test_several_runs_are_ranked_and_told_apart():
    old = small_result(question=small_question(policy="old"))
    better = (small_estimate("kmifqe", values=(-1.0, -1.1)),)
    new = small_result(better, question=small_question(policy="new", gamma=0.5))
    page = render_page([old, new])
    table = page[page.index('id="comparison"') : page.index('role="tablist"')]
    assert table.index(">new<") < table.index(">old<")
    assert "different discounts:" in table
    assert len(identities(page)) == len(set(identities(page)))


def test_runs_of_one_policy_are_named_by_their_directories(tmp_path):
    page = render_page([small_result()] * 2, [tmp_path / "first", tmp_path / "second"])
    assert re.findall(r'data-tab="\d">(.*?)</button>', page) == ["first: actor.npz", "second: actor.npz"]


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match=r"the directory .* does not exist"):
        write_page([small_result()], tmp_path / "nowhere" / "report.html")
    with pytest.raises(InputError, match="at least one"):
        write_page([], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_landscape_of_another_run_is_left_out_and_named(tmp_path):
    page = page_of(tmp_path, small_landscape(), estimates=(small_estimate("kmifqe", values=(-9.0, -8.0)),))
    assert "data-explorer>" not in page
    assert "landscape.npz: it is of another run (kmifqe ended elsewhere)" in page


@pytest.mark.parametrize("broken", ["bytes", "no seeds", "text for seeds", "no points"])
def test_a_broken_landscape_costs_a_sentence(tmp_path, broken):
    landscape = small_landscape(points=0 if broken == "no points" else 3)
    if broken == "no seeds":
        first = {
            name: value[:0] if isinstance(value, np.ndarray) else value
            for name, value in vars(landscape.surfaces[0]).items()
        }
        first |= {name: getattr(landscape.surfaces[0], name) for name in ("shift", "scale")}
        first |= {name: tuple(part[:0] for part in first[name]) for name in ("weights", "biases")}
        landscape = replace(landscape, surfaces=(type(landscape.surfaces[0])(**first),))
    if broken == "text for seeds":
        landscape = replace(landscape, surfaces=(replace(landscape.surfaces[0], seeds=np.array(["a", "b"])),))
    write_landscape(tmp_path / "landscape.npz", landscape)
    if broken == "bytes":
        (tmp_path / "landscape.npz").write_bytes(b"")
    page = render_page([small_result()], [tmp_path])
    assert "data-explorer>" not in page
    assert re.search(r'<p class="callout">[^<]*landscape.npz: ', page)


def test_hostile_text_leaves_no_tag_and_no_data_block():
    honest = render_page([small_result()])
    named = dict.fromkeys(("policy", "data", "behavior"), HOSTILE)
    check = msgspec.structs.replace(
        small_check("drift", "bad"),
        **dict.fromkeys(("name", "estimator", "finding", "threshold", "reason", "advice"), HOSTILE),
    )
    estimates = tuple(
        replace(small_estimate(name), estimator=name + HOSTILE, device=HOSTILE, config={HOSTILE: [HOSTILE]})
        for name in ("kmifqe", "fqe", "sr-dice")
    )
    page = render_page(
        [
            small_result(
                estimates,
                question=small_question(**named, notes=(HOSTILE,)),
                checks=(check, *small_result().checks[1:]),
                verdicts={e.estimator: Verdict("do not use", (HOSTILE, HOSTILE)) for e in estimates},
                references={HOSTILE: -3.0, "truth": -3.7},
            )
        ]
    )

    def tags(page):
        return [
            name for name in re.findall(r"<(/?\w+)", page) if name in ("b", "script", "/script", "article")
        ]

    assert tags(page) == tags(honest)
    assert "<!--" not in page
    for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page):
        assert not set(block) & set("<>&\u2028")
        assert HOSTILE in json.dumps(json.loads(block), ensure_ascii=False).replace('\\"', '"')


def test_a_number_has_one_name_in_the_terminal_the_page_and_the_glossary(tmp_path):
    """An effective sample size was called ESS, an effective share, and rows' worth, in one output."""
    table = Console(width=200, file=io.StringIO())
    table.print(estimates_table([small_estimate("kmifqe", bootstrap=False)]))
    watched = Console(width=200, file=io.StringIO())
    values = np.array([1.0])
    watch = TerminalWatch(watched)
    watch.progress(Progress("kmifqe", 10, 20, 50.0, values, {"h": values, "ess": 12_320 * values}))
    assert "effective rows 12,320" in watched.file.getvalue()
    page = text_of(page_of(tmp_path))
    glossary = (Path(__file__).parents[2] / "docs/concepts/glossary.md").read_text(encoding="utf-8")
    for name in ("Effective rows", "Nearby rows"):
        assert f"**{name}.**" in glossary
    for text in (table.file.getvalue(), watched.file.getvalue(), page):
        assert "effective rows" in text.lower()
        assert not re.search(r"\bESS\b|sample size|effective share|rows' worth", text)
