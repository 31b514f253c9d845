"""`kmifqe estimators` tells of every entry of the registry what a user must know to choose."""

from __future__ import annotations

import json
import re

from typer.testing import CliRunner

from kmifqe.cli.app import app
from kmifqe.estimators.registry import all_entries, make_estimator


def test_every_estimator_is_listed_with_what_it_needs(kmifqe_command):
    listed = json.loads(kmifqe_command("estimators", "--json").out)
    assert [each["name"] for each in listed] == [entry.name for entry in all_entries()]
    for each in listed:
        assert each["use_when"], each["name"]
        assert each["avoid_when"], each["name"]
        assert each["settings"] or each["name"] == "auto", each["name"]
    needs = {each["name"]: each["needs"] for each in listed}
    assert needs["fqe"] == []
    assert needs["wpdis"] == ["a behaviour density", "rows in time order"]
    assert needs["kmifqe"] == ["a deterministic target", "a behaviour density"]


def test_one_estimator_is_told_with_its_settings(kmifqe_command):
    out = kmifqe_command("estimators", "best-dice").out
    assert "exponent = 1.5" in out
    assert "docs/estimators/dice.md" in out
    assert kmifqe_command("estimators", "no-such").code == 2


def test_every_default_is_shown_as_it_can_be_set(kmifqe_command):
    for entry in (each for each in all_entries() if each.config is not None):
        shown = re.findall(
            r"^  (\w+) = ([^(\n]+)$", kmifqe_command("estimators", entry.name).out, re.MULTILINE
        )
        if shown:
            settings = [f"{field}={value}" for field, value in shown]
            estimator = make_estimator(entry.name, "fast", settings)
            assert all(getattr(estimator.config, field) == getattr(entry.config, field) for field, _ in shown)


def test_the_list_cuts_no_word_in_eighty_columns():
    shown = CliRunner().invoke(app, ["estimators"], env={"COLUMNS": "80", "TERM": "dumb"}).output
    assert "…" not in shown
    for entry in all_entries():
        for text in (entry.name, *entry.use_when.split()):
            assert text in shown
