"""Settings that every test shares."""

import os
import sys
from collections.abc import Iterator
from importlib.metadata import version

import pytest

# Most tests wait for XLA to compile small programs, not for the programs: unoptimised code halves the suite's
# time, and fusions emitted the older way halve it again. Matrix products are library calls and do not change.
FLAGS = ["--xla_backend_optimization_level=0"]
if version("jax").startswith("0.10."):  # tried there; XLA aborts on a flag that it does not know
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")  # commands under test write nothing into a home
os.environ.setdefault("KMIFQE_CACHE_GIB", "0")  # and keep no logs there

# A file is one worker's: one of few, long tests that begins last leaves the other workers idle meanwhile.
LONG_FILES = ("test_kill.py", "test_reproduce.py", "test_kmifqe.py", "test_sr_dice.py", "test_evaluate.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; `--no-loadscope-reorder` keeps them there."""
    place = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG_FILES)))


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Forget compiled programs between files where they are many: beyond the system's memory maps XLA crashes."""
    yield
    if "jax" in sys.modules:
        from kmifqe.experiments.drive import drop_programs_if_many

        drop_programs_if_many()
