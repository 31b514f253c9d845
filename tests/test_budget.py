"""The time budget: a first estimate, the largest fit that the time allows, and more time later."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import kmifqe
from heard import Heard
from kmifqe import budget
from kmifqe.budget import make_budget
from kmifqe.errors import InputError
from kmifqe.estimators.sizing import ProblemSize, fit_size, ladder
from kmifqe.report.result import Result
from kmifqe.store import Interrupted
from kmifqe.store.manifest import FINISHED


def a_log(n: int = 400) -> kmifqe.Transitions:
    rng = np.random.default_rng(0)
    return kmifqe.Transitions.from_arrays(
        rng.normal(size=(n, 2)),
        rng.normal(size=(n, 1)),
        rng.normal(size=n),
        np.zeros(n),
        np.arange(n) % 20 == 19,
    )


def policy(states: np.ndarray) -> np.ndarray:
    return 0.3 * states[:, :1]


@pytest.mark.parametrize("rows", [500, 30_000, 100_000, 1_000_000])
def test_a_ladder_begins_small_and_ends_with_the_whole_recipe(rows):
    size = ProblemSize(rows, 0.99)
    rungs = ladder(size, 10)
    assert rungs[0].networks == 4
    assert fit_size(rungs[0].size).hidden <= 64
    assert rungs[-1] == (size, 10)
    works = [rung.work for rung in rungs]
    assert works == sorted(works)
    assert len(set(rungs)) == len(rungs)


def test_one_network_has_a_ladder_of_one_rung_on_a_small_log():
    assert len(ladder(ProblemSize(500, 0.99), 1)) == 1


def quick(minutes: float | None, heard: Heard, **more: object) -> kmifqe.Result:
    settings = ["hidden=8", "batch=16"]
    return kmifqe.evaluate(
        a_log(), policy, estimators=["fqe"], settings=settings, minutes=minutes, seeds=6, watch=heard, **more
    )


def test_the_first_estimate_of_a_large_log_learns_from_some_of_its_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "SAMPLE_ROWS", 150)
    monkeypatch.setattr(budget, "SAMPLE_EPISODES", 5)
    monkeypatch.setattr(budget, "_training_seconds", lambda *_: 100.0)
    monkeypatch.setattr(budget, "FIRST_SECONDS", 0.0)
    heard, out = Heard(), tmp_path / "run"
    short = quick(0.1, heard, out=out)
    sample = budget.first_sample(a_log())
    assert sample.n_episodes == 7
    assert any("133 of 380 rows" in note for note in short.question.notes)
    assert short.comparison.logged.episodes == 7
    longer = quick(30, Heard(), out=out, resume=True)
    assert longer.comparison.logged.episodes == 20
    assert not longer.question.notes


def test_few_long_episodes_are_no_sample(monkeypatch):
    monkeypatch.setattr(budget, "SAMPLE_ROWS", 150)
    assert budget.first_sample(a_log()) is None


def test_the_whole_recipe_is_fitted_at_once_where_it_is_soon_done():
    heard = Heard()
    result = quick(None, heard)
    assert len(result.estimate.values) == 6
    assert not any("first estimate" in each for each in heard.sentences)


def test_what_was_not_reached_is_said_and_more_time_goes_on_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(budget, "_training_seconds", lambda *_: 100.0)
    heard, out = Heard(), tmp_path / "run"
    short = quick(0.1, heard, out=out)
    assert len(short.estimate.values) == 4
    assert any("a part of the recipe: 4 networks" in note for note in short.question.notes)
    assert any(
        "to go on: in Python: resume=True" in each for each in heard.sentences
    )  # a function has no name
    kept = {path.name for path in (out / FINISHED).iterdir()}
    longer = quick(30, Heard(), out=out, resume=True)
    assert len(longer.estimate.values) == 6
    assert not longer.question.notes
    assert {path.name for path in (out / FINISHED).iterdir()} > kept
    # The networks of the first estimate are the first of the whole recipe's, and the same bits would be a sign of
    # their being fitted once only: here the sizes are equal.
    np.testing.assert_allclose(longer.estimate.values[:4], short.estimate.values, rtol=1e-4)


def test_a_stop_after_the_first_estimate_keeps_it_and_measures_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "FIRST_SECONDS", 0.0)
    measured = []
    monkeypatch.setattr(budget, "_training_seconds", lambda *_: measured.append(1) or 100.0)
    heard, out = Heard(), tmp_path / "run"
    is_judged = lambda: any("first estimate" in each for each in heard.sentences)  # noqa: E731
    with pytest.raises(Interrupted) as stopped:
        quick(30, heard, out=out, stop_asked=is_judged)
    assert len(measured) == 1  # before the first estimate
    assert [each.estimator for each in stopped.value.finished] == ["fqe"]
    assert kmifqe.Result.load(out).value == stopped.value.finished[0].value


def test_a_run_of_files_says_the_command_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(budget, "_training_seconds", lambda *_: 100.0)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_policy_file.py").write_text("def act(states):\n    return 0.5 * states[:, :1]\n")
    heard, out, rng = Heard(), tmp_path / "a run", np.random.default_rng(0)
    np.savez(
        tmp_path / "log.npz",
        observations=rng.normal(size=(400, 2)),
        actions=rng.normal(size=(400, 1)),
        rewards=rng.normal(size=400),
        terminals=np.zeros(400, bool),
        timeouts=np.arange(400) % 20 == 19,
    )
    kmifqe.evaluate(
        tmp_path / "log.npz",
        "a_policy_file:act",
        estimators=["fqe"],
        settings=["hidden=8", "batch=16"],
        minutes=0.1,
        seeds=6,
        out=out,
        watch=heard,
    )
    assert any(f"kmifqe resume '{out}' --minutes" in each for each in heard.sentences)


@pytest.mark.parametrize(
    ("gained", "word", "goes_on", "networks"),
    [
        (0.1, "trustworthy", False, 4),
        (0.2, "trustworthy", False, 6),
        (0.1, "use with care", False, 6),
        (0.1, "trustworthy", True, 6),
        (None, "trustworthy", False, 6),
    ],
)
def test_it_stops_early_where_a_trustworthy_interval_would_hardly_be_narrower(
    monkeypatch, gained, word, goes_on, networks
):
    monkeypatch.setattr(budget, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(budget, "_training_seconds", lambda *_: 1.0)
    monkeypatch.setattr(budget, "narrowing", lambda *_: gained)
    problem = kmifqe.Problem.build(a_log(), policy, None, gamma=0.9)

    def judge(problem, rung, estimators, part, note):
        fit = SimpleNamespace(seconds=0.0)
        verdict = SimpleNamespace(word=word)
        result = SimpleNamespace(
            estimates=[fit], verdict=verdict, value=0.0, interval=None, networks=rung.networks
        )
        return result, problem

    ways = {"make": lambda size: [], "judge": judge, "watch": Heard()}
    found = budget.evaluate_within(budget.Budget(10.0), problem, None, 6, goes_on=goes_on, **ways)
    assert found.networks == networks


def test_a_resumed_run_goes_on_past_an_early_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(budget, "SETTLED", 2.0)
    monkeypatch.setattr(Result, "verdict", SimpleNamespace(word="trustworthy"))
    first = quick(10, Heard(), out=tmp_path / "run")
    assert len(first.estimate.values) == 4
    more = quick(10, Heard(), out=tmp_path / "run", resume=True)
    assert len(more.estimate.values) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minutes": 0.0}, "greater than 0"),
        ({"minutes": float("nan")}, "greater than 0"),
        ({"minutes": 5.0, "preset": "fast"}, "preset fast fixes"),
        ({"minutes": 5.0, "steps": 10}, "a number of steps fixes"),
        ({"minutes": 5.0, "estimators": ["sr-dice"]}, "the estimator sr-dice fixes"),
    ],
)
def test_minutes_that_make_no_sense_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        kmifqe.evaluate(a_log(), policy, **options)


def test_fixed_sizes_have_no_budget():
    assert make_budget(None, "fast", None, ["fqe"]) is None
    assert make_budget(None, "default", 100, ["fqe"]) is None
    assert make_budget(None, "default", None, ["auto"]) is not None
