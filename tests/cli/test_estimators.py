"""`kmifqe estimators` tells of every entry of the registry what a user must know to choose."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from kmifqe.cli.app import app
from kmifqe.estimators.registry import all_entries


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


def test_a_setting_that_follows_from_the_log_has_no_number_of_its_own(kmifqe_command):
    for name, follows in (("fqe", True), ("fqe-paper", False)):
        assert ("hidden = 256" not in kmifqe_command("estimators", name).out) is follows


def test_the_list_cuts_no_word_in_eighty_columns():
    shown = CliRunner().invoke(app, ["estimators"], env={"COLUMNS": "80", "TERM": "dumb"}).output
    assert "…" not in shown
    for entry in all_entries():
        for text in (entry.name, *entry.use_when.split()):
            assert text in shown
