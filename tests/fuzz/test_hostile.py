"""Every hostile file ever found is refused in a sentence or does no harm, in little memory, and touches nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz.hostile import CASES
from fuzz.run import Worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
MOST_MIB = 24  # of resident memory, while the bombs unpack to 32 MiB and more
# Read by HDF5 itself, in the child and within its limits: numbers like any others, though no honest ones.
HARMLESS = {
    "a gzip chunk that unpacks to 64 MiB",
    "a gzip chunk that unpacks to 4 bytes",
    "a chunk of 4 bytes said to be unpacked",
    "a chunk packed twice",
    "a policy weight that is a bomb",
}


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
    assert str(answer["kind"]).startswith("refused") or (answer["kind"] == "ok" and what in HARMLESS), answer
    assert answer["mib"] < MOST_MIB, answer
