"""Every hostile file ever found is refused in a sentence, in little memory, and touches nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz.hostile import CASES
from fuzz.run import Worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
MOST_MIB = 24  # of resident memory, while the bombs unpack to 32 MiB and more


@pytest.mark.parametrize("what", CASES)
def test_a_hostile_file_is_refused(what: str, worker: Worker, sandbox: Path, tmp_path: Path) -> None:
    target, write = CASES[what]
    folder = sandbox / tmp_path.name
    folder.mkdir()
    try:
        path = write(folder)
    except OSError as error:
        pytest.skip(f"this HDF5 does not write such a file: {error}")
    answer = worker.load(path, target)
    assert str(answer["kind"]).startswith("refused"), answer
    assert answer["mib"] < MOST_MIB, answer
