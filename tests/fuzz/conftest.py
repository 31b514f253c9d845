"""One watched process for all hostile files: a crash is then a failed test, not the end of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.hostile import CASES
from fuzz.hostile_archives import HONEST_PROGRAM
from fuzz.run import Worker
from fuzz.seeds import SEEDS


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work") / "sandbox"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory, sandbox: Path) -> Iterator[Worker]:
    """A worker that has loaded an honest file of every kind."""
    folder = tmp_path_factory.mktemp("seeds")
    honest = []
    for target in {target for target, _ in CASES.values()}:
        (folder / target).mkdir()
        made = [HONEST_PROGRAM] if target == "torchscript" else SEEDS[target](folder / target)
        honest += [(target, path) for path in made]
    started = Worker("npz", sandbox, [])
    for target, path in honest:
        answer = started.load(path, target)
        assert answer["kind"] in ("ok", "forbidden act"), (target, path.name, answer)  # imports come late
    yield started
    started.stop()
