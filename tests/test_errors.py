"""What a message may hold: every sign of every script, and nothing that a terminal obeys."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import kmifqe
from kmifqe.errors import printable
from kmifqe.io.policies.load import load_policy

SOURCE = Path(kmifqe.__file__).parent
WITH_FLAG = re.compile(r"--[a-z-]+ \([^)]*\)")  # --max-episode-steps (max_episode_steps=)
CALL = re.compile(r"\b[\w.]+\([^()]*(\([^()]*\))?[^()]*\)")  # load_policy(..., bounds=(low, high))


@pytest.mark.parametrize(
    "text",
    [
        "badpol💥 ❤️ naïve 政策",
        "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}",  # an astronaut
        "\U0001fae8",  # a face of Unicode 15, which Python 3.11 does not know
        "می\N{ZERO WIDTH NON-JOINER}خواهم",
    ],
)
def test_signs_of_any_script_stay(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    "letter", ["\x1b", "\x07", "\r", "\x9b", "\N{RIGHT-TO-LEFT OVERRIDE}", "\N{LINE SEPARATOR}", "\udc80"]
)
def test_what_a_terminal_obeys_is_a_question_mark(letter):
    assert printable(f"é{letter}é") == "é?é"
    assert printable(f"a{letter}b") == "a?b"


def test_a_joiner_that_joins_nothing_is_a_question_mark():
    assert printable("a\N{ZERO WIDTH JOINER}b") == "a?b"
    assert printable("é\N{ZERO WIDTH JOINER}") == "é?"


def sentences():
    """Return every message of an InputError in the package, with its place; what is filled in is "{}"."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InputError" and node.args:
                parts = (
                    each for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant | ast.JoinedStr)
                )
                for part in parts:
                    values = part.values if isinstance(part, ast.JoinedStr) else [part]
                    text = "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in values)
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", text


def test_an_error_names_the_flag_beside_the_parameter():
    """Whoever reads it may be at the command line, where no Python parameter can be given."""
    asked = {*inspect.signature(kmifqe.evaluate).parameters, *inspect.signature(load_policy).parameters}
    # "max_episode_steps is -1": what is wrong is there under its own name.
    underscored = "|".join(f"{name}(?! is)" for name in asked if "_" in name)
    named = re.compile(rf"\b(?:[a-z_]+=(?!=)|{underscored})")
    found = list(sentences())
    assert len(found) > 300
    wrong = [(place, text) for place, text in found if named.search(CALL.sub("", WITH_FLAG.sub("", text)))]
    assert wrong == []
