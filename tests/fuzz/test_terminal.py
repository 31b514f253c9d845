"""A file's own words on the terminal: shown as they are spelled, never obeyed."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fuzz.seeds import make_log, write_npz_actor
from kmifqe.cli import main
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.save import save_dataset

MARKUP = ("[bold]x", "[red]<script>alert(1)<!--", "[link=https://example.org]x")
ESCAPES = "\x1b[31mred\x1b]0;owned\x07"


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object
) -> tuple[str, str]:
    """Return what `kmifqe WORDS` writes to stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["kmifqe", *map(str, words)])
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "dumb")
    with suppress(SystemExit):
        main()
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.mark.parametrize("name", MARKUP)
def test_markup_in_a_name_is_shown(name, tmp_path, monkeypatch, capsys):
    path = tmp_path / f"{name.replace('/', '')}.npz"
    save_dataset(make_log(), path)
    out, _ = run(capsys, monkeypatch, "dataset", "inspect", path)
    assert path.name in out.replace("\n", "")  # a table's title is wrapped


def test_a_log_named_by_escapes_is_shown_without_them(tmp_path, monkeypatch, capsys):
    path = tmp_path / f"{ESCAPES}.npz"
    save_dataset(make_log(), path)
    assert load_dataset(path).name.isprintable()
    out, _ = run(capsys, monkeypatch, "dataset", "inspect", path)
    assert "\x1b" not in out
    assert "?[31mred?]0;owned?" in out.replace("\n", "")


@pytest.mark.parametrize("word", [*MARKUP, ESCAPES])
def test_a_field_of_that_name_is_shown_in_the_error(word: str, tmp_path: Path, monkeypatch, capsys):
    np.savez(tmp_path / "log.npz", **{word: np.zeros(3)})
    _, error = run(capsys, monkeypatch, "dataset", "inspect", tmp_path / "log.npz")
    assert "\x1b" not in error
    assert word.replace("\x1b", "?").replace("\x07", "?")[:40] in error


@pytest.mark.parametrize("word", [*MARKUP, ESCAPES])
def test_a_policy_that_says_so_is_shown_in_the_error(word: str, tmp_path: Path, monkeypatch, capsys):
    save_dataset(make_log(), tmp_path / "log.npz")
    with np.load(write_npz_actor(tmp_path)[0]) as actor:
        np.savez(tmp_path / "policy.npz", **{**actor, "hidden": np.array(word)})
    words = ("evaluate", tmp_path / "log.npz", "--policy", tmp_path / "policy.npz", "--behavior", "logged")
    _, error = run(capsys, monkeypatch, *words, "--out", tmp_path / "out")
    assert "\x1b" not in error
    assert word.replace("\x1b", "?").replace("\x07", "?") in error
