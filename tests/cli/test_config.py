"""`--config FILE`: the same options as on the command line, which wins; and what a wrong file says."""

from __future__ import annotations

import inspect
from enum import Enum
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest
import typer

import kmifqe
import kmifqe.api
from kmifqe.cli.app import app
from kmifqe.cli.config import read_config
from kmifqe.errors import InputError

FILE = """
data = "log.npz"
policy = "actor.npz"
gamma = 0.5
level = 0.9
seeds = 3
estimator = ["fqe", "sr-dice"]
set = ["hidden=16"]
bootstrap = false
no-cache = true
accept = ["unexplained_ends"]
"""


@pytest.fixture
def asked(monkeypatch):
    """What the library was asked for, in a dict; nothing is evaluated."""
    found = {}

    def evaluate(**options):
        found.update(options)
        raise InputError("asked")

    monkeypatch.setattr(kmifqe.api, "evaluate", evaluate)
    return found


def test_a_file_says_what_the_command_line_says_and_the_command_line_wins(
    kmifqe_command, tmp_path, monkeypatch, asked
):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(FILE, encoding="utf-8")
    ignored = ("watch", "stop_asked", "command", "on_progress")
    written = (
        "log.npz --policy actor.npz --gamma 0.5 --level 0.9 --seeds 3 -e fqe -e sr-dice --set hidden=16 "
        "--no-bootstrap --no-cache --accept unexplained_ends"
    )
    assert kmifqe_command("evaluate", *written.split()).err.endswith("asked\n")
    by_words = {name: value for name, value in asked.items() if name not in ignored}
    asked.clear()
    assert kmifqe_command("evaluate", "--config", "run.toml").err.endswith("asked\n")
    assert {name: value for name, value in asked.items() if name not in ignored} == by_words
    assert by_words["bootstrap"] is False
    asked.clear()
    kmifqe_command(
        "evaluate", "other.npz", "--gamma", "0.7", "-e", "fqe", "--config", "run.toml", "--bootstrap"
    )
    changed = {name: value for name, value in asked.items() if by_words.get(name, value) != value}
    assert {name: changed[name] for name in ("data", "gamma", "estimators", "bootstrap")} == {
        "data": "other.npz",
        "gamma": 0.7,
        "estimators": ["fqe"],
        "bootstrap": True,
    }
    assert asked["seeds"] == 3


@pytest.mark.parametrize(
    "text, named",
    [
        ("sed = 1", "sed"),
        ("config = 'other.toml'", "config"),
        ("seeds = '3'", "seeds"),
        ("seeds = 0", "seeds"),
        ("seeds = 1.5", "seeds"),
        (f"seeds = {10**30}", "seeds"),
        ("bootstrap = 'no'", "bootstrap"),
        ("gamma = true", "gamma"),
        ("fail-on = 'perhaps'", "fail-on"),
        ("policy = [1]", "policy"),
        ("set = {hidden = 16}", "set"),
        ("out = 2026-01-01", "out"),
        ("gamma = [", "TOML"),
        ("gamma = 0.5\ngamma = 0.6", "TOML"),
        (f"seeds = {'9' * 5000}", "TOML"),
        ("a = " + "[" * 20_000, "TOML"),
        ("é = 1".encode("latin-1"), "TOML"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_its_name_and_the_key(kmifqe_command, tmp_path, text, named):
    path = tmp_path / "run.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    outcome = kmifqe_command("evaluate", "log.npz", "--policy", "actor.npz", "--config", path)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith(f"error: {path}: ")
    assert named in outcome.err


@pytest.mark.parametrize("name", ["nothing.toml", "."])
def test_no_file_is_one_sentence(kmifqe_command, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    outcome = kmifqe_command("evaluate", "log.npz", "--policy", "actor.npz", "--config", name)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


def commands(command=None, path="kmifqe"):
    """Yield every command that has options, with its words."""
    command = typer.main.get_command(app) if command is None else command
    children = getattr(command, "commands", {})
    if not children and any(
        each.param_type_name == "option" and each.name != "help" for each in command.params
    ):
        yield path, command
    for name, child in children.items():
        yield from commands(child, f"{path} {name}")


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_with_options_takes_a_file(path):
    assert any("--config" in each.opts for each in COMMANDS[path].params)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_can_be_given_in_a_file(path, tmp_path):
    command = COMMANDS[path]
    hints = get_type_hints(inspect.unwrap(command.callback))
    context = command.make_context(path, [], resilient_parsing=True)
    for parameter in command.params:
        if parameter.is_eager:
            continue
        kinds = [each for each in get_args(hints[parameter.name]) if each is not type(None)]
        kind = hints[parameter.name] if get_origin(hints[parameter.name]) is list or not kinds else kinds[0]
        inner = get_args(kind)[0] if get_origin(kind) is list else kind
        if issubclass(inner, Enum):
            value = f"'{next(iter(inner)).value}'"
        else:
            value = {bool: "true", int: "2", float: "0.5", str: "'.'", Path: "'.'"}[inner]
        key = next((name for name in parameter.opts if name.startswith("--")), "").removeprefix("--")
        key = key or "".join(filter(str.islower, parameter.metavar.lower()))
        file = tmp_path / "options.toml"
        file.write_text(f"{key} = {value}")
        (found,) = read_config(file, context)
        assert found == parameter.name


def test_a_file_that_the_parser_would_take_minutes_for_is_refused(kmifqe_command, tmp_path):
    path = tmp_path / "dots.toml"
    path.write_text(".".join("a" * 50_000) + " = 1")
    outcome = kmifqe_command("evaluate", "--config", path)
    assert outcome.code == 2
    assert "dots.toml" in outcome.err
