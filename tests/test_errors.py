"""What a message may hold: every sign of every script, and nothing that a terminal obeys."""

import pytest

from kmifqe.errors import printable


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
