from __future__ import annotations

import os
import sys

import jax
import jax.numpy as jnp
import pytest

from experiments import toy_experiment
from kmifqe.errors import InputError
from kmifqe.experiments import drive
from kmifqe.experiments.context import Context, Experiment
from kmifqe.experiments.drive import EXPERIMENTS, experiments_of, run_experiments
from kmifqe.experiments.presets import preset_named
from kmifqe.report.watch import Watch


class Hears(Watch):
    def __init__(self, said):
        self.say = said.append


@pytest.fixture
def said():
    return []


@pytest.fixture
def context(tmp_path, said):
    return Context(preset_named("smoke"), tmp_path / "results", tmp_path / "work", watch=Hears(said))


@pytest.fixture
def toy(monkeypatch):
    toy = Experiment("table1", toy_experiment.rows, toy_experiment.run, prepare=toy_experiment.prepare)
    monkeypatch.setitem(EXPERIMENTS, "table1", toy)
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
    assert experiments_of("all", context) == tuple(EXPERIMENTS)
    fast = Context(preset_named("fast"), context.results, context.work)
    assert experiments_of("all", fast) == tuple(e for e in EXPERIMENTS if e != "policies")
    with pytest.raises(InputError, match="experiment 'table2' is unknown; expected one of policies, data"):
        experiments_of("table2", context)


def test_a_folder_that_cannot_be_made_is_said_before_the_work(context, said, toy):
    context.results.write_text("a file")
    with pytest.raises(InputError, match="results: cannot be written"):
        run_experiments("table1", context)
    assert said == []


@pytest.fixture
def compilations():
    """Return a function that runs a compiled program and tells how often it was traced."""
    traced = []

    @jax.jit
    def program(x):
        traced.append(x)
        return 2 * x

    def run():
        program(jnp.float32(1.0))
        return len(traced)

    return run


@pytest.mark.parametrize("limit, expected", [("65530", 1), ("9", 2)])
def test_programs_are_dropped_only_near_the_systems_limit(
    tmp_path, monkeypatch, compilations, limit, expected
):
    (tmp_path / "maps").write_text("a map\n" * 4)
    (tmp_path / "limit").write_text(f"{limit}\n")
    monkeypatch.setattr(drive, "MAPS", tmp_path / "maps")
    monkeypatch.setattr(drive, "LIMIT", tmp_path / "limit")
    assert compilations() == 1
    drive.drop_programs_if_many()
    assert compilations() == expected


def test_a_system_without_the_limit_keeps_its_programs(tmp_path, monkeypatch, compilations):
    monkeypatch.setattr(drive, "MAPS", tmp_path / "none")
    assert compilations() == 1
    drive.drop_programs_if_many()
    assert compilations() == 1


def test_a_method_that_the_experiment_does_not_have_is_refused(context, said):
    asked = Context(context.preset, context.results, context.work, method="fqe", watch=Hears(said))
    with pytest.raises(
        InputError, match="method 'fqe' is unknown; expected one of kmifqe-paper, kmifqe-ident"
    ):
        run_experiments("fig1a", asked)
    assert not context.results.exists()
