from __future__ import annotations

from pathlib import Path

import pytest

from kmifqe.errors import InputError
from kmifqe.experiments.records import RESULTS, error_of, experiment_record, read_records, write_record
from kmifqe.experiments.render import MARKED, PIECES, fill_page, filled, missing_line, piece_text, render

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduction.md"


@pytest.fixture
def results(tmp_path):
    """Return a root with one record of Table 1."""
    values = [1.0, 1.5]
    record = experiment_record(
        "table1",
        "pendulum",
        "sr-dice",
        "smoke",
        settings={},
        wall_seconds=1.0,
        values=values,
        errors={"population": error_of(values, 1.0)},
        policies={},
    )
    write_record(record, tmp_path / "results")
    return tmp_path / "results"


def test_the_reproduction_page_says_what_the_committed_records_say():
    text = PAGE.read_text(encoding="utf-8")
    assert {found[2] for found in MARKED.finditer(text)} == {*PIECES, "missing"}
    assert filled(text, ROOT / RESULTS) == text, (
        "stale: kmifqe reproduce render --preset fast --page docs/reproduction.md"
    )


def test_committed_records_are_small_and_regenerable():
    for record in read_records(ROOT / RESULTS):
        assert record["command"].startswith(
            f"kmifqe reproduce {record['experiment']} --preset {record['preset']} "
        )
    assert all(path.stat().st_size < 50_000 for path in (ROOT / RESULTS).glob("*/*/*/*.json"))


def test_a_page_is_filled_between_its_markers_and_nowhere_else(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- records: errors smoke -->\nold\n<!-- end of records -->\nafter\n")
    fill_page(page, results)
    text = page.read_text()
    assert text.startswith("before\n<!-- records: errors smoke -->\n\n| row | against |")
    assert text.endswith("|\n\n<!-- end of records -->\nafter\n")
    assert "| pendulum | population | – |" in text
    assert "old" not in text
    fill_page(page, results)
    assert page.read_text() == text


def test_what_is_missing_is_named(results):
    line = missing_line(results, "smoke")
    assert line.startswith(
        "Not run yet with preset smoke: pendulum (kmifqe, kmifqe-identity, fqe); hopper (all"
    )
    assert missing_line(results, "fast").count("(all methods)") == 12
    assert piece_text(results, "likelihoods", "smoke") == (
        "No records of `kmifqe reproduce loglik --preset smoke` yet."
    )


def test_a_preset_without_records_and_an_unknown_table_are_refused(results, tmp_path):
    with pytest.raises(InputError, match="holds no experiment records"):
        render(results, tmp_path / "out", "fast")
    with pytest.raises(InputError, match="holds no experiment records"):
        render(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(InputError, match="'errata' is no table; expected one of errors"):
        piece_text(results, "errata", "smoke")
    with pytest.raises(InputError, match=r"nowhere\.md: cannot be read"):
        fill_page(tmp_path / "nowhere.md", results)


def test_tables_of_every_preset_found_are_written(results, tmp_path):
    assert render(results, tmp_path / "out") == [tmp_path / "out" / "smoke" / "tables.md"]
    assert "0.354 ± " in (tmp_path / "out" / "smoke" / "tables.md").read_text(encoding="utf-8")
