"""The report in a real browser: it loads alone, every control works, and its Q is the network's Q."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest

from kmifqe.maths.mlp import QParams, apply_layers, q_value
from kmifqe.report.page import write_page
from kmifqe.report.result import Provenance
from kmifqe.trust.landscape import Landscape, write_landscape
from kmifqe.trust.verdict import Verdict
from report.chromium import Chromium, find_chromium
from report.small import small_check, small_estimate, small_landscape, small_question, small_result

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>&\u2028'\""
DRAWN = "document.querySelector('.panels').getAttribute('aria-busy') === 'false'"
PRESSED = "[...document.querySelectorAll('button[aria-pressed]')].map(b => b.getAttribute('aria-pressed'))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    binary = find_chromium()
    if binary is None:
        pytest.skip("no chromium on this machine; tools/install_chromium.sh installs Debian's")
    with Chromium(binary) as running:
        yield running


@pytest.fixture(scope="module")
def landscape() -> Landscape:
    return small_landscape()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, landscape: Landscape) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_landscape(folder / "landscape.npz", landscape)
    return write_page([small_result()], folder / "report.html", folders=[folder])


@pytest.fixture
def opened(browser: Chromium, page: Path) -> Chromium:
    """Return the browser with the page at its top, in light colours on a desktop."""
    browser.prefer("light")
    browser.size(1200, 900)
    browser.open(page)
    return browser


def complaints(browser: Chromium) -> list[str]:
    """Return what the console, exceptions or the browser's log said since the page was opened."""
    kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    return [json.dumps(event) for event in browser.events if event["method"] in kinds]


def show_explorer(browser: Chromium) -> None:
    browser.js("document.querySelector('[data-explorer]').scrollIntoView({behavior: 'instant'})")
    browser.until(DRAWN)


def test_it_loads_alone_without_a_complaint_and_nothing_moves(opened, page):
    shown = "document.querySelectorAll('.plot > svg').length"
    assert opened.js(shown) == opened.js("document.querySelectorAll('.plot').length") == 6
    show_explorer(opened)
    moved = (
        "new Promise(tell => { let sum = 0; new PerformanceObserver(list => list.getEntries().forEach(e => "
        "{ sum += e.value; })).observe({type: 'layout-shift', buffered: true}); setTimeout(() => tell(sum), 50); })"
    )
    assert opened.js(moved) < 0.01
    assert complaints(opened) == []
    asked = [
        e["params"]["request"]["url"] for e in opened.events if e["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [page.resolve().as_uri()]


def test_the_rules_forbid_the_network_and_foreign_scripts(opened):
    blocked = opened.js("fetch('data:text/plain,x').then(() => 'loaded', () => 'refused')")
    assert blocked == "refused"
    opened.js(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    assert opened.js("window.ran === undefined")


def test_q_in_the_page_is_q_in_jax(opened, landscape):
    rng = np.random.default_rng(1)
    actions = rng.uniform(-1.5, 1.5, (20, 2)).astype(np.float32)
    source = "\n".join(
        files("kmifqe.report").joinpath("page_assets", name).read_text() for name in ("dom.js", "network.js")
    )
    for k, surface in enumerate(landscape.surfaces):
        for seed in range(2):
            told = opened.js(
                f"(() => {{ {source}\n"
                "const l = JSON.parse(document.getElementById('run0-numbers').textContent).landscape;"
                f"const s = l.surfaces[{k}], n = new Network(s, s.seeds[{seed}], l.points.length, 2);"
                f"return l.points.map((_, p) => {json.dumps(actions.tolist())}.map(a => n.q(p, a))); }})()"
            )
            for point, state in enumerate(landscape.points.states):
                states = np.broadcast_to(state, (len(actions), len(state)))
                cut = np.clip(actions, -1.0, 1.0) if surface.cut_actions else actions
                x = (np.concatenate([states, cut], axis=1) - surface.shift) / surface.scale
                layers = [(w[seed], b[seed]) for w, b in zip(surface.weights, surface.biases)]
                if surface.hidden == "tanh":
                    (w1, b1), (w2, b2), (w3, b3) = layers
                    q = jax.vmap(q_value, (None, 0))(QParams(w1, b1, w2, b2, w3[:, 0], b3[0]), x)
                else:
                    q = apply_layers(layers, x)[:, 0]
                np.testing.assert_allclose(told[point], np.asarray(q) * surface.unit[seed], atol=1e-4)


def test_the_ellipse_is_where_the_kernel_has_one_bandwidth(opened, landscape):
    source = files("kmifqe.report").joinpath("page_assets", "contours.js").read_text()
    for A in landscape.surfaces[0].metrics[0]:
        entries = [float(A[0, 0]), float(A[0, 1]), float(A[1, 1])]
        told = opened.js(f"(() => {{ const clamp = 0; {source}\nreturn ellipse({entries}, 0.3); }})()")
        z = np.array(told["points"])
        np.testing.assert_allclose(np.einsum("ni,ij,nj->n", z, A, z), 0.3**2, rtol=1e-4)
        ends = np.array(told["axes"])
        np.testing.assert_allclose(ends[0] @ ends[1], 0.0, atol=1e-6)
        np.testing.assert_allclose(ends[0] @ A @ ends[1], 0.0, atol=1e-5)


def test_every_toggle_works_by_mouse_and_by_key(opened):
    show_explorer(opened)
    opened.js(
        "document.querySelectorAll('button[aria-pressed]').forEach((b, i) => { b.dataset.number = i; })"
    )
    before = opened.js(PRESSED)
    assert len(before) >= 12
    for i in range(len(before)):
        opened.click(f'[data-number="{i}"]')
    assert opened.js(PRESSED) == ["true" if was == "false" else "false" for was in before]
    for i in range(len(before)):
        opened.js(f"document.querySelector('[data-number=\"{i}\"]').focus()")
        opened.key(" ")
    assert opened.js(PRESSED) == before
    assert complaints(opened) == []


def test_a_hidden_estimator_leaves_chart_and_read_out(opened):
    lines = "document.querySelectorAll('[data-chart=trajectory] .thick').length"
    readout = "document.querySelector('[data-readout=trajectory]').textContent"
    assert opened.js(lines) == 3
    opened.click("[data-controls=trajectory] .toggle:nth-child(2)")
    assert opened.js(lines) == 2
    assert "· FQE" not in opened.js(readout)


@pytest.mark.parametrize("chart", ["trajectory", "bandwidth", "ess", "weights", "overlap"])
def test_charts_are_read_out_by_mouse_and_by_key(opened, chart):
    readout = f"document.querySelector('[data-readout={chart}]').textContent"
    picture = f"[data-chart={chart}] svg"
    opened.hover(picture, at=(0.3, 0.5))
    by_mouse = opened.js(readout)
    opened.js(f"document.querySelector('{picture}').focus()")
    opened.key("Home")
    first = opened.js(readout)
    opened.key("ArrowRight")
    second = opened.js(readout)
    assert len({by_mouse, first, second}) == 3 if chart != "ess" else first != second
    assert opened.js(f"document.querySelector('{picture}').getAttribute('aria-valuetext')") == second


def test_the_explorer_follows_its_selects_and_its_probe(opened):
    show_explorer(opened)
    picture = "document.querySelector('.panel canvas').toDataURL()"
    readout = "document.querySelector('.explorer .readout').textContent"
    seen = [opened.js(picture)]
    for i in range(4):  # state, across, up, seed
        opened.js(f"document.querySelectorAll('.explorer select')[{i}].focus()")
        opened.key("ArrowDown")
        opened.until(DRAWN)
        seen.append(opened.js(picture))
    assert all(now != before for before, now in pairwise(seen))
    assert seen[3] == seen[1]  # the third swapped the axes back
    told = opened.js(readout)
    assert "KMIFQE Q" in told
    assert "(0.0 bandwidths away)" in told
    opened.js("document.querySelector('.map svg').focus()")
    opened.key("ArrowRight")
    assert opened.js(readout) != told
    opened.key("Home")
    assert opened.js(readout) == told
    opened.hover(".map svg", at=(0.3, 0.3))
    assert opened.js(readout) != told


def test_one_dimension_is_a_curve(opened, browser, tmp_path):
    show_explorer(opened)
    up = "document.querySelectorAll('.explorer select')[2]"
    opened.js(f"{up}.value = ''; {up}.dispatchEvent(new Event('change'))")
    opened.until("document.querySelectorAll('.map svg.curve .thick').length === 2")
    write_landscape(tmp_path / "landscape.npz", small_landscape(action_dim=1))
    browser.open(write_page([small_result()], tmp_path / "report.html", folders=[tmp_path]))
    show_explorer(browser)
    assert browser.js("document.querySelectorAll('.map svg.curve .thick').length") == 2
    assert browser.js("document.querySelectorAll('.map .bell').length") == 1
    assert complaints(browser) == []


def test_light_and_dark_follow_the_system_and_the_button(opened):
    def brightness() -> int:
        color: str = opened.js("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(","))

    assert brightness() > 600
    opened.prefer("dark")
    assert brightness() < 150
    opened.click("#theme")
    assert brightness() > 600
    opened.js("document.getElementById('theme').focus()")
    opened.key("Enter")
    assert brightness() < 150
    assert opened.js("document.getElementById('theme').getAttribute('aria-pressed')") == "true"


def test_a_phone_needs_no_sideways_scroll(opened, page):
    opened.size(360, 740, mobile=True)
    opened.open(page)
    show_explorer(opened)
    opened.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert opened.js("document.documentElement.scrollWidth") == 360
    assert opened.js("document.documentElement.clientWidth") == 360


# Pairs of labels in the charts that touch, and reference lines that cross a row's name.
TOUCHING = """[...document.querySelectorAll('.plot svg')].flatMap((chart) => {
  const of = (selector) => [...chart.querySelectorAll(selector)];
  const touch = (a, b) => { const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
    return p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2; };
  const texts = of('text'), names = of('.row-name'), lines = of('line.reference');
  const pairs = [...texts.flatMap((a, i) => texts.slice(i + 1).map((b) => [a, b])),
    ...names.flatMap((a) => lines.map((b) => [a, b]))];
  return pairs.filter(([a, b]) => touch(a, b)).map(([a, b]) => `${a.textContent} | ${b.textContent || 'line'}`);
})"""


def test_on_a_phone_no_label_lies_on_another_or_under_a_line(browser, tmp_path):
    references = {"truth": -3.7, "behaviour": -3.72}  # side by side: their names have room in two tiers only
    write_page([small_result(references=references)], tmp_path / "report.html")
    browser.size(390, 844, mobile=True)
    browser.open(tmp_path / "report.html")
    assert browser.js("document.querySelectorAll('.plot svg .reference-name').length") >= 2
    assert browser.js(TOUCHING) == []
    ends = browser.js("[...document.querySelectorAll('nav a')].map(a => a.getBoundingClientRect().right)")
    assert max(ends) <= 390  # every part can be reached without a swipe that nothing hints at


def test_printing_draws_and_unfolds_everything(opened):
    assert opened.js("document.querySelector('.panel canvas')") is None  # not scrolled to yet
    pdf = opened.pdf()
    assert pdf.startswith(b"%PDF-")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/") > 2
    assert opened.js("document.querySelectorAll('.panel canvas').length") == 2
    assert opened.js("document.querySelectorAll('details[open]').length") == 0  # folded again
    assert complaints(opened) == []


def test_everything_that_can_be_used_has_a_name(opened):
    show_explorer(opened)
    nodes = opened.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "combobox", "slider", "application", "image", "tab", "link", "region", "navigation")
    used = [n for n in nodes if n["role"]["value"] in roles and not n["ignored"]]
    assert {"button", "combobox", "slider", "application", "link"} <= {n["role"]["value"] for n in used}
    assert [n["role"]["value"] for n in used if not n.get("name", {}).get("value", "").strip()] == []
    headings = [n for n in nodes if n["role"]["value"] == "heading"]
    assert (
        sum(p["value"]["value"] == 1 for n in headings for p in n["properties"] if p["name"] == "level") == 1
    )


def test_hostile_words_are_shown_and_never_run(browser, tmp_path):
    estimate = small_estimate("kmifqe", config={HOSTILE: HOSTILE})
    other = replace(small_estimate("fqe"), estimator=HOSTILE)
    check = msgspec.structs.replace(
        small_check("drift", "bad"),
        **dict.fromkeys(("name", "estimator", "finding", "threshold", "reason", "advice"), HOSTILE),
    )
    result = small_result(
        (estimate, other),
        question=small_question(policy=HOSTILE, data=HOSTILE, behavior=HOSTILE, notes=(HOSTILE,)),
        provenance=Provenance(HOSTILE, {HOSTILE: HOSTILE}, HOSTILE, (HOSTILE,)),
        checks=(check,),
        verdicts={name: Verdict("do not use", (HOSTILE,)) for name in ("kmifqe", HOSTILE)},
        references={HOSTILE: -3.0},
        extra={HOSTILE: HOSTILE},
    )
    browser.open(write_page([result, result], tmp_path / "report.html"))
    assert browser.js("window.hacked === undefined")
    assert browser.js("document.querySelectorAll('img').length") == 0
    assert browser.js("document.querySelector('.eyebrow strong').textContent") == HOSTILE
    assert browser.js("document.title").startswith("2 policies")
    assert HOSTILE in browser.js(
        "document.querySelector('[data-chart=trajectory]').closest('figure').textContent"
    )
    assert complaints(browser) == []


def test_lost_values_are_drawn_as_nothing(browser, tmp_path):
    lost = small_estimate("fqe", values=(np.nan, np.nan))
    result = small_result((lost,), checks=(), references={})
    browser.open(write_page([result], tmp_path / "report.html"))
    assert "There is no value" in browser.js("document.querySelector('.headline').textContent")
    assert complaints(browser) == []


def test_several_runs_are_turned_over_by_tabs(browser, tmp_path, landscape):
    write_landscape(tmp_path / "landscape.npz", landscape)
    runs = [small_result(question=small_question(policy=name)) for name in ("old", "new")]
    browser.open(write_page(runs, tmp_path / "report.html", folders=[tmp_path] * 2))
    shown = "[...document.querySelectorAll('.run')].map(r => !r.hidden)"
    assert browser.js(shown) == [True, False]
    browser.js("document.querySelector('[role=tab]').focus()")
    browser.key("ArrowRight")
    assert browser.js(shown) == [False, True]
    browser.until("document.querySelectorAll('#run1 .plot > svg').length === 6")
    browser.click("[data-tab='0']")
    assert browser.js(shown) == [True, False]
    assert complaints(browser) == []
