"""Every Python block of the README and the docs runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from report.chromium import Chromium, find_chromium

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}#{i}")
    for page in PAGES
    if page.name != "start.md"  # its blocks build on each other: they run in order, below
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs", "exec"), {"__name__": "docs"})


def test_readme_shows_a_short_example():
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    assert len([line for line in block.group(1).splitlines() if line.strip()]) <= 16


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder for compiled programs: README and Start judge logs of one shape, so the second compiles nothing."""
    return tmp_path_factory.mktemp("programs")


@pytest.mark.parametrize("name", ["README.md", "docs/start.md"])
def test_shell_blocks_run_in_an_empty_directory(name, tmp_path, programs):
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"```(sh|python)\n(.*?)```", text, re.DOTALL)
    if name == "README.md":
        blocks = [block for block in blocks if block[0] == "sh"]  # its Python stands alone, and is run above
    assert sum(kind == "sh" for kind, _ in blocks)
    (tmp_path / "bin").mkdir()
    (tmp_path / "empty").mkdir()
    command = tmp_path / "bin" / "kmifqe"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kmifqe "$@"\n')
    command.chmod(0o755)
    paths = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "JAX_COMPILATION_CACHE_DIR": str(programs),
    }
    for kind, block in blocks:
        shell = ["sh", "-e", "-c", block] if kind == "sh" else [sys.executable, "-c", block]
        done = subprocess.run(
            shell, cwd=tmp_path / "empty", env=os.environ | paths, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    runs = list((tmp_path / "empty" / "runs").glob("*/report.html"))
    assert len(runs) == 1


def build_site(config, site):
    """Run what `make docs` runs. Without --quiet: MkDocs counts only the warnings that it shows."""
    pytest.importorskip("mkdocs")
    command = ["mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(site)]
    variables = {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=os.environ | variables, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built once."""
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build_site(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_needs_no_network_and_its_links_lead_somewhere(site):
    commands = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    assert "kmifqe dataset inspect" in commands
    assert "--max-episode-steps" in commands
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)', text)
        assert not loaded, f"{page.name} loads {loaded[0]} from the network"
        for target in re.findall(r'<(?:script|link|img|a)\s[^>]*?(?:src|href)="([^":#?]+)["#?]', text):
            if page.name != "404.html":  # its links begin at the root of wherever the site lies
                assert (page.parent / unquote(target)).exists(), f"{page.name} links to {target}"


def test_equations_are_typeset_when_the_site_is_built(site):
    found = 0
    for page in (site / "estimators").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "arithmatex" not in text
        for equation in re.findall(r"<math.*?</math>", text, re.DOTALL):
            # An ampersand or a backslash inside an equation is LaTeX that was not understood.
            assert not re.search(r"\\|&(?:amp|#x26|#x0*5C);", equation, re.IGNORECASE), equation
            found += 1
    assert found > 20


def test_a_site_opened_from_the_disk_can_be_searched(site):
    binary = find_chromium()
    if binary is None:
        pytest.skip("no chromium on this machine; tools/install_chromium.sh installs Debian's")
    with Chromium(binary) as browser:
        browser.call("Page.navigate", url=(site / "index.html").as_uri())
        browser.until("document.readyState === 'complete'")
        browser.js(
            "(() => { const field = document.querySelector('.md-search__input'); field.focus();"
            " field.value = 'bandwidth'; field.dispatchEvent(new Event('keyup', {bubbles: true})); })()"
        )
        browser.until("document.querySelector('.md-search-result__item')")
        found = browser.js("document.querySelector('.md-search-result__list').textContent")
        assert "andwidth" in found
        assert not [event for event in browser.events if event["method"] == "Runtime.exceptionThrown"]


def test_nothing_is_wider_than_a_phone_on_the_pages_with_equations(site):
    binary = find_chromium()
    if binary is None:
        pytest.skip("no chromium on this machine; tools/install_chromium.sh installs Debian's")
    with Chromium(binary) as browser:
        browser.size(390, 844, mobile=True)
        for page in [site / "concepts" / "method.html", *sorted((site / "estimators").glob("*.html"))]:
            browser.call("Page.navigate", url=page.as_uri())
            browser.until("document.readyState === 'complete'")
            assert browser.js("document.documentElement.scrollWidth") == 390, page.name


def test_a_broken_link_anchor_or_picture_fails_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\nhooks: []\nextra_css: []\nnav: null\n"
    )
    page = "# Page\n\n[no page](none.md), [no anchor](index.md#none), ![no picture](none.png)\n"
    (tmp_path / "docs" / "index.md").write_text(page)
    done = build_site(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert done.stderr.count("WARNING") == 3


def test_anchors_that_the_readme_links_to_exist():
    slugify = pytest.importorskip("markdown.extensions.toc").slugify
    linked = re.findall(r"\]\((docs/[^)#]+)#([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert linked
    for target, anchor in linked:
        headings = re.findall(r"^#+ (.*)$", (ROOT / target).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {slugify(heading, "-") for heading in headings}, f"{target} has no #{anchor}"


def test_the_readme_says_of_table_1_what_its_records_show():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "evidence" / "reproduction.md").read_text(encoding="utf-8")
    found = {
        name: re.search(rf"<!-- records: {name} -->(.*?)<!-- end of records -->", page, re.DOTALL).group(1)
        for name in ("score small", "errors fast")
    }
    level = re.search(r"from it, on (\d+) of (\d+) rows", found["score small"]).groups()
    assert level == re.search(r"of it, on (\d+) of (\d+) rows", readme).groups()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in found["errors fast"].split("\n")
        if "|" in line
    ]
    methods = ["KMIFQE-paper", "FQE-paper", "SR-DICE"]
    nearest = []
    for row in rows:
        if row[1] == "population":
            errors = {method: float(row[rows[0].index(method)].split()[0]) for method in methods}
            nearest.append(min(errors, key=errors.__getitem__))
    said = re.search(
        r"KMIFQE is the nearest of three on (\d+) of (\d+), FQE on (\d+), SR-DICE on (\d+)", readme
    )
    assert [int(each) for each in said.groups()] == [
        nearest.count(methods[0]),
        len(nearest),
        *map(nearest.count, methods[1:]),
    ]


def test_every_reason_has_a_section_that_says_what_to_do():
    from kmifqe.trust.checks.base import ORDER

    text = (ROOT / "docs" / "guides" / "reasons.md").read_text(encoding="utf-8")
    sections = {
        name
        for line in re.findall(r"^### (.*)$", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", line)
    }
    assert set(ORDER) <= sections
