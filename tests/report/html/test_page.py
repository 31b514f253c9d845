"""The page as text: complete, closed to the network, and written whole."""

import base64
import hashlib
import re

import pytest

from kmifqe.errors import InputError
from kmifqe.report.html.compare import run_names
from kmifqe.report.html.page import report_page, write_report
from kmifqe.report.html.source import read_run
from report.html.small import small_check, small_estimate, small_landscape, small_run


def page_of(folder, landscape=None, **changes):
    return report_page([read_run(small_run(folder, landscape, **changes))])


def test_nothing_is_loaded_and_only_our_script_may_run(tmp_path):
    page = page_of(tmp_path, small_landscape())
    rules = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert "default-src &#x27;none&#x27;" in rules
    assert "unsafe" not in rules
    for kind in ("style", "script"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src &#x27;sha256-{digest}&#x27;" in rules
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
    identities = re.findall(r'\bid="([^"]+)"', page)
    assert len(identities) == len(set(identities))


def test_a_run_without_kernel_landscape_or_checks_has_no_empty_parts(tmp_path):
    page = page_of(tmp_path, estimates=[small_estimate("fqe")], diagnostics=None)
    for part in ("checks", "weights", "landscape"):
        assert f"run0-{part}" not in page


def test_the_worst_checks_come_first_and_passed_ones_are_folded(tmp_path):
    page = page_of(tmp_path)
    places = [page.index(line) for line in ("does not fit</p>", "as much as 40 rows</p>", "1 check passed")]
    assert places == sorted(places)
    assert "2 of 3 checks ask for attention." in page
    fine = page_of(tmp_path, diagnostics=[small_check("drift", "ok", "still")])
    assert "All 1 checks passed." in fine
    assert "<details open>" in fine


def test_the_command_can_be_pasted_into_a_shell(tmp_path):
    assert "kmifqe evaluate log.npz --policy actor.npz --out &#x27;runs/a b&#x27;" in page_of(tmp_path)


def test_several_runs_are_ranked_and_told_apart(tmp_path):
    better = small_estimate("kmifqe") | {"value": -1.0}
    runs = [
        read_run(small_run(tmp_path / "a", policy="old")),
        read_run(small_run(tmp_path / "b", policy="new", estimates=[better], gamma=0.5)),
    ]
    page = report_page(runs)
    table = page[page.index('id="comparison"') : page.index('role="tablist"')]
    assert table.index(">new<") < table.index(">old<")
    assert "different discounts" in table
    identities = re.findall(r'\bid="([^"]+)"', page)
    assert len(identities) == len(set(identities))


def test_runs_of_one_policy_are_named_by_their_directories(tmp_path):
    runs = [read_run(small_run(tmp_path / name)) for name in ("first", "second")]
    assert run_names(runs) == ["first: actor.npz", "second: actor.npz"]


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path):
    run = small_run(tmp_path / "run")
    with pytest.raises(InputError, match=r"the directory .* does not exist"):
        write_report([run], tmp_path / "nowhere" / "report.html")
    with pytest.raises(InputError, match="not found"):
        write_report([run, tmp_path / "missing"], tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
