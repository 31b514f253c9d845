"""The root command: its version, its help and completion, which load neither JAX nor scipy."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import kmifqe

SCRIPT = """
import sys
from kmifqe.cli import main
sys.argv = ["kmifqe", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
loaded = {"jax", "scipy", "matplotlib", "gymnasium", "pandas"} & set(sys.modules)
assert not loaded, loaded
"""


def quick(*arguments: str, **environment: str) -> str:
    """Return what the command prints; refuse one that loads anything slow."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**os.environ, "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_version_is_the_packages() -> None:
    assert quick("--version") == f"kmifqe {kmifqe.__version__}\n"


def test_help_names_the_version_and_the_completion() -> None:
    told = quick("--help")
    assert all(option in told for option in ("--version", "--install-completion", "--show-completion"))


@pytest.mark.parametrize(
    "typed, offered", [("kmifqe eval", "evaluate"), ("kmifqe evaluate log.npz --conf", "--config")]
)
def test_a_shell_completes_commands_and_options(typed: str, offered: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    assert offered in quick(_KMIFQE_COMPLETE="complete_bash", **words).split()


def test_help_says_what_an_option_takes_and_that_a_switch_takes_nothing() -> None:
    told = quick("dataset", "inspect", "--help")
    assert re.search(r"--json +Print", told)
    assert re.search(r"--gamma +FLOAT +Discount", told)
    assert re.search(r"--max-episode-steps +INTEGER \[x>=0\] +The", told)


def test_help_fills_the_lines_of_a_paragraph() -> None:
    told = quick("cache", "list", "--help")
    assert "The variable KMIFQE_CACHE_GIB sets" in " ".join(told.split())
    assert not re.search(r"^ KMIFQE_CACHE_GIB *$", told, re.MULTILINE)
