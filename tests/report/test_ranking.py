"""A ranking as a record, as tables, as a figure and as a page in a real browser."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from kmifqe.errors import InputError
from kmifqe.io.serialize import plain
from kmifqe.report.ranking import RankedPolicy, Ranking, write_csv, write_tex
from kmifqe.report.ranking_judged import advise
from kmifqe.report.ranking_page import render_ranking, save_ranking_figure, write_ranking_page
from report.chromium import Chromium, find_chromium
from report.small_ranking import small_ranking

HOSTILE = "</script><script>window.hacked=1</script>&%_$.zip"


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return small_ranking(apart="checkpoint-11.zip")


def test_the_record_is_read_back_as_itself_and_keeps_to_the_shipped_schema(ranking, tmp_path) -> None:
    path = ranking.save(tmp_path)
    assert Ranking.load(tmp_path) == ranking
    record = json.loads(path.read_text(encoding="utf-8"))
    shipped = json.loads((files("kmifqe.report") / "ranking.schema.json").read_text(encoding="utf-8"))
    assert plain(Ranking.json_schema()) == shipped
    jsonschema.validate(record, shipped)
    wanted = {"policy", "value", "low", "high", "verdict", "p_best", "p_better_than_logged"}
    assert wanted <= set(record["ranking"][0])
    values = [each["value"] for each in record["ranking"]]
    assert values == sorted(values, reverse=True)
    assert record["differences"]


def test_policies_that_are_not_to_be_used_stand_apart(ranking) -> None:
    assert [each.policy for each in ranking.not_ranked] == ["checkpoint-11.zip"]
    assert ranking.not_ranked[0].verdict == "do not use"
    named = {name for each in ranking.differences for name in (each.better, each.worse)}
    assert "checkpoint-11.zip" not in named
    assert ranking.ranking[0].policy == "checkpoint-10.zip"


def test_a_record_of_another_version_is_refused(tmp_path) -> None:
    (tmp_path / "ranking.json").write_text('{"schema": "kmifqe.ranking/0"}')
    with pytest.raises(InputError, match=r"kmifqe\.ranking/0"):
        Ranking.load(tmp_path)
    with pytest.raises(InputError, match="not found"):
        Ranking.load(tmp_path / "nowhere")


@pytest.mark.parametrize("damage", ["twice", "gone", "level", "huge"])
def test_a_record_whose_parts_do_not_go_together_is_refused(ranking, tmp_path, damage) -> None:
    record = json.loads(ranking.save(tmp_path).read_text(encoding="utf-8"))
    if damage == "twice":
        record["ranking"].append(record["ranking"][0])
    elif damage == "gone":
        del record["ranking"][0]
    elif damage == "level":
        record["level"] = 1.0
    else:
        record["ranking"][0]["high"] = 1e308
    (tmp_path / "ranking.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="damaged"):
        Ranking.load(tmp_path)


def test_paired_policies_are_told_apart_though_their_intervals_overlap(ranking) -> None:
    first, second = ranking.ranking[:2]
    assert second.high > first.low
    difference = ranking.between(second.policy, first.policy)
    assert difference.separated
    assert difference.simultaneous_low <= difference.low <= difference.value <= difference.high
    assert ranking.groups[0] == (first.policy,)
    assert first.p_best > 0.95


def test_the_advice_is_to_deploy_only_what_every_piece_of_evidence_speaks_for(ranking) -> None:
    best = ranking.ranking[0]
    trusted = plain(best) | {"verdict": "trustworthy", "p_better_than_logged": 0.99}
    rest = [plain(each) for each in ranking.ranking[1:]]

    def advice(first: dict, differences=ranking.differences):
        entries = [RankedPolicy(**each) for each in (first, *rest)]
        return advise(entries, differences, ranking.logged)

    assert advice(trusted).deploy == best.policy
    careful = advice(trusted | {"verdict": "use with care"})
    assert careful.deploy is None
    assert careful.try_next[0] == best.policy
    assert 2 <= len(careful.try_next) <= 3
    assert advice(trusted | {"p_better_than_logged": 0.5}).deploy is None
    alike = small_ranking({"a.zip": 0.5, "b.zip": 0.5})
    assert alike.advice.deploy is None
    assert set(alike.advice.try_next) == {"a.zip", "b.zip"}
    assert advise([], [], ranking.logged).try_next == ()


def test_tables_have_a_row_for_every_policy(ranking, tmp_path) -> None:
    write_csv(ranking, tmp_path / "ranking.csv")
    rows = list(csv.DictReader((tmp_path / "ranking.csv").open()))
    assert [row["policy"] for row in rows] == [each.policy for each in ranking.policies]
    assert [row["rank"] for row in rows] == [*map(str, range(1, 12)), ""]
    write_tex(small_ranking({HOSTILE: 1.0, "b": 0.0}), tmp_path / "ranking.tex")
    text = (tmp_path / "ranking.tex").read_text()
    assert r"\&\%\_\$.zip" in text
    assert text.count(r"\\") == 3


def test_the_figure_is_drawn(ranking, tmp_path) -> None:
    save_ranking_figure(ranking, tmp_path / "ranking.png")
    assert (tmp_path / "ranking.png").read_bytes()[:4] == b"\x89PNG"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    binary = find_chromium()
    if binary is None:
        pytest.skip("no chromium on this machine; tools/install_chromium.sh installs Debian's")
    with Chromium(binary) as running:
        yield running


def complaints(browser: Chromium) -> list[str]:
    kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    return [json.dumps(event) for event in browser.events if event["method"] in kinds]


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_a_phone_and_a_desktop(browser, ranking, tmp_path, width) -> None:
    page = write_ranking_page(ranking, tmp_path / "ranking.html")
    browser.size(width, 844, mobile=width < 600)
    browser.open(page)
    assert complaints(browser) == []
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js("document.querySelectorAll('.plot > svg').length") == 1
    assert browser.js("document.querySelectorAll('.plot .interval').length") == 11
    tall = browser.js("document.querySelector('.plot').clientHeight")
    assert tall > 500
    shown = browser.js("document.querySelector('#ranking tbody').innerText")
    assert "checkpoint-10.zip" in shown
    assert "checkpoint-11.zip" not in shown
    assert "checkpoint-11.zip" in browser.js("document.querySelector('#apart').innerText")


def test_hostile_names_are_shown_and_never_run(browser, tmp_path) -> None:
    made = small_ranking({HOSTILE: 1.0, "b": 0.0})
    browser.open(write_ranking_page(made, tmp_path / "ranking.html"))
    assert complaints(browser) == []
    assert browser.js("window.hacked === undefined")
    assert HOSTILE in browser.js("document.querySelector('#ranking tbody').innerText")


def test_a_ranking_without_any_usable_estimate_has_a_page(tmp_path: Path) -> None:
    made = small_ranking({"a.zip": 0.0, "b.zip": 1.0}, truth=False, apart="a.zip")
    assert len(made.ranking) == 1
    assert "Not ranked" in render_ranking(made)
