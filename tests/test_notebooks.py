"""The site's notebooks run from their first cell to the last, and show what their code makes."""

import importlib.util
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NEEDS = {"own_arrays": ["pandas"], "sb3_agent": ["torch"], "checkpoints": ["pandas"], "hopeless": ["pandas"]}


@pytest.fixture(scope="module")
def runner():
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "tools" / "run_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder for compiled programs: two notebooks judge logs of one shape, so the second compiles little."""
    return tmp_path_factory.mktemp("programs")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_its_code_makes(path, runner, programs, tmp_path, monkeypatch):
    for package in NEEDS[path.stem]:
        pytest.importorskip(package)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(programs))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    notebook = nbformat.read(path, as_version=4)
    shown = notebook.metadata.get("code_sha256")
    assert shown == runner.code_digest(notebook), f"run: python tools/run_notebooks.py {path.stem}"
    assert path.stat().st_size < 200_000
    runner.execute(notebook, tmp_path)


def test_each_kind_of_verdict_is_where_the_prose_says_it_is():
    said = {path.stem: path.read_text(encoding="utf-8") for path in NOTEBOOKS}
    assert said["hopeless"].count("; do not use)") == 2
    assert said["hopeless"].count("; trustworthy)") == 1
    assert "the policy is better" in said["own_arrays"]
