from __future__ import annotations

import os
import sys

import pytest

from experiments import toy_experiment
from kmifqe.errors import InputError
from kmifqe.experiments import drive
from kmifqe.experiments.context import Context
from kmifqe.experiments.drive import EXPERIMENTS, experiments_of, run_experiments
from kmifqe.experiments.presets import preset_named


@pytest.fixture
def said():
    return []


@pytest.fixture
def context(tmp_path, said):
    return Context(preset_named("smoke"), tmp_path / "results", tmp_path / "work", say=said.append)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(drive, "_module", lambda name: toy_experiment)
    # A spawned process must find the module by its name too.
    paths = os.pathsep.join([p for p in sys.path if p])
    monkeypatch.setenv("PYTHONPATH", paths)


def test_the_next_rows_are_prepared_by_one_other_process_in_order(context, said, toy):
    run_experiments("table1", context)
    rows, makers = zip(*(words.split() for words in said))
    assert rows == ("a", "b", "c")
    assert makers[0] == "nobody"
    assert makers[1] == makers[2] != str(os.getpid())


def test_without_prefetch_nothing_is_prepared_elsewhere(context, said, toy):
    run_experiments("table1", context, prefetch=False)
    assert said == ["a nobody", "b nobody", "c nobody"]


def test_only_one_row(context, said, toy):
    run_experiments("table1", context, "b")
    assert said == ["b nobody"]
    with pytest.raises(InputError, match="table1 has no row 'z' in preset smoke; it has a, b, c"):
        run_experiments("table1", context, "z")


def test_all_is_everything_and_trains_only_where_the_preset_says_so(context):
    assert experiments_of("all", context) == EXPERIMENTS
    fast = Context(preset_named("fast"), context.results, context.work)
    assert experiments_of("all", fast) == tuple(e for e in EXPERIMENTS if e != "policies")
    with pytest.raises(InputError, match="experiment 'table2' is unknown; expected one of policies, data"):
        experiments_of("table2", context)


def test_a_folder_that_cannot_be_made_is_said_before_the_work(context, said, toy):
    context.results.write_text("a file")
    with pytest.raises(InputError, match="results: cannot be written"):
        run_experiments("table1", context)
    assert said == []
