"""`kmifqe.rank`: one log, many policies, the same ranking however often it was stopped."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from estimators.small import logged, lqr_problem, make_world, quick
from heard import Heard
from kmifqe import Ranking, budget, rank
from kmifqe.budget import size_within
from kmifqe.errors import InputError
from kmifqe.estimators import fit, make_estimator
from kmifqe.estimators.sizing import ProblemSize, fit_size, size_of
from kmifqe.io.serialize import plain
from kmifqe.ranking.case import name_policies
from kmifqe.ranking.networks import joined
from kmifqe.store import Interrupted
from kmifqe.trust.verdict import ORDER
from kmifqe.worlds.stochastic_lqr import stochastic_target

GAINS = {"far.zip": -0.6, "near.zip": 0.3, "middle.zip": 0.0}
GAMMA = 0.8
QUICK = {
    "seeds": 4,
    "rough": 2,
    "steps": 1500,
    "gamma": GAMMA,
    "estimators": [quick("fqe", decay_steps=1500)],
}


def policies() -> dict:
    return {name: (lambda states, gain=gain: -gain * states) for name, gain in GAINS.items()}


def truths() -> dict[str, float]:
    world = make_world(GAMMA)
    first = logged(GAMMA)[1].states[logged(GAMMA)[1].first_rows]
    return {name: replace(world, gain=np.array([[gain]])).value_from(first) for name, gain in GAINS.items()}


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return rank(logged(GAMMA)[1], policies(), truth=truths(), **QUICK)


def without_time(ranking: Ranking) -> dict:
    return {name: value for name, value in plain(ranking).items() if name != "provenance"}


def test_policies_come_in_the_order_of_their_true_values(ranking) -> None:
    true = truths()
    by_truth = sorted(true, key=lambda name: -true[name])
    assert [each.policy for each in ranking.policies if each.verdict != "do not use"] == [
        name for name in by_truth if name in {each.policy for each in ranking.ranking}
    ]
    assert ranking.scores["fqe"].rank_correlation.value == pytest.approx(1.0)
    assert ranking.scores["fqe"].regret_1.value == 0.0


def test_contenders_get_all_networks_and_the_others_the_first_of_them(ranking) -> None:
    networks = {each.policy: each.networks for each in ranking.policies}
    assert networks["near.zip"] == 4
    assert set(networks.values()) <= {2, 4}
    assert all(len(each.estimates["fqe"].networks) == each.networks for each in ranking.policies)


def test_a_stopped_ranking_goes_on_to_the_same_end(ranking, tmp_path) -> None:
    """Stopped again and again: in a fit, between fits, among the first networks and among the later ones."""
    asked = 0

    def stops_now() -> bool:
        nonlocal asked
        asked += 1
        return asked > 60 and asked % 60 < 3

    stopped = 0
    options = {"out": tmp_path / "run", "resume": True, "save_seconds": 0.0, "truth": truths(), **QUICK}
    for _ in range(40):
        try:
            again = rank(logged(GAMMA)[1], policies(), stop_asked=stops_now, **options)
            break
        except Interrupted:
            stopped += 1
    assert stopped > 2
    np.testing.assert_allclose(
        [each.value for each in again.policies], [each.value for each in ranking.policies], rtol=1e-6
    )
    assert [each.policy for each in again.policies] == [each.policy for each in ranking.policies]
    assert without_time(Ranking.load(tmp_path / "run")) == without_time(again)
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"ranking.json", "ranking.csv", "ranking.tex", "ranking.png", "ranking.html"} <= written
    assert not (tmp_path / "run" / "checkpoints").exists()
    once_more = rank(logged(GAMMA)[1], policies(), **options)  # nothing is left to be done
    assert without_time(once_more) == without_time(again)
    others = policies() | {"near.zip": lambda states: 0.1 * states}
    with pytest.raises(InputError, match="other data"):
        rank(logged(GAMMA)[1], others, **options)


def test_policies_that_draw_their_actions_are_ranked_by_an_estimator_that_follows_episodes() -> None:
    world = make_world(0.5)
    log = world.collect(0, 400, 8)
    targets = {gain: stochastic_target(replace(world, gain=np.array([[gain]])), 0.4) for gain in (0.3, 0.1)}
    found = rank(
        log,
        {str(gain): policy for gain, (policy, _) in targets.items()},
        stochastic=True,
        gamma=0.5,
        seeds=4,
        estimators=["pdis"],
    )
    assert len(found.ranking) == len(targets)
    for each in found.ranking:
        assert each.low < targets[float(each.policy)][1] < each.high
    assert any("draws its actions" in note for note in found.question.notes)


def test_an_estimator_for_the_other_kind_of_target_is_refused_before_anything_is_read() -> None:
    for name, stochastic in (("kmifqe", True), ("in-sample", False), ("mis", False)):
        with pytest.raises(InputError, match=f"{name} judges .* targets only"):
            rank("no such log", policies(), estimators=[name], stochastic=stochastic)


def test_policies_that_act_alike_are_named_in_the_record() -> None:
    known = policies()
    name, policy = next(iter(known.items()))
    found = rank(logged(GAMMA)[1], known | {"its twin": policy}, **QUICK)
    said = [note for note in found.question.notes if "act alike" in note]
    assert len(said) == 1
    assert name in said[0]
    assert "its twin" in said[0]


def test_time_that_is_left_decides_how_many_networks_follow(tmp_path) -> None:
    hurried = rank(logged(GAMMA)[1], policies(), minutes=1e-6, **QUICK)
    assert {each.networks for each in hurried.policies} == {2}


class Machine:
    """A machine on which a fit by 40,000 rows' recipe lasts as long as told, and a larger one ten times that."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.timed = seconds, []

    def __call__(self, estimator, problem, plan):
        self.timed.append(plan)
        small = estimator.config.hidden == fit_size(ProblemSize(40_000, GAMMA)).hidden
        return SimpleNamespace(seconds=self.seconds * (1.0 if small else 10.0))


@pytest.mark.parametrize(("seconds", "rows"), [(1.0, 50_000), (30.0, 40_000), (1e6, 40_000)])
def test_the_time_decides_how_large_the_networks_of_all_policies_are(monkeypatch, seconds, rows) -> None:
    machine, heard = Machine(seconds), Heard()
    monkeypatch.setattr(budget, "make_forecast", machine)
    monkeypatch.setattr(budget, "policies_at_once", lambda estimator, problem, plan, policies: policies)
    problem = lqr_problem()[0]
    monkeypatch.setattr(budget, "size_of", lambda problem: ProblemSize(50_000, GAMMA))
    make = lambda size: [make_estimator("fqe", size=size)]  # noqa: E731
    assert size_within(4.0, problem, 3, 2, make, heard).recipe_rows == rows
    assert {len(plan.seeds) for plan in machine.timed} == {6}  # two networks each of three policies at once
    said = " ".join(heard.sentences)
    assert ("not reached" in said) == (rows < 50_000)
    assert ("longer than the 4 minutes" in said) == (seconds > 1e5)


def test_a_ranking_that_is_resumed_keeps_the_size_of_its_networks(tmp_path, monkeypatch) -> None:
    sizes = iter(
        [400, 1_000_000]
    )  # of the recipes that the time allows: it is measured, and differs from run to run
    monkeypatch.setattr(
        "kmifqe.ranking.size_within",
        lambda minutes, problem, *_: size_of(problem).with_recipe(next(sizes)),
    )
    options = {
        "gamma": GAMMA,
        "estimators": ["fqe"],
        "settings": ["batch=16"],
        "seeds": 2,
        "rough": 2,
        "minutes": 5.0,
        "out": tmp_path / "run",
    }
    log = logged(GAMMA)[1]
    first = rank(log, policies(), **options)
    assert any("the whole recipe for this log" in note for note in first.question.notes)
    again = rank(log, policies(), resume=True, **options)
    assert without_time(again) == without_time(first)
    assert next(sizes) == 1_000_000


def test_joined_networks_are_those_of_both() -> None:

    problem = lqr_problem()[0]
    first, more = (fit(quick("fqe"), problem, seeds=s, steps=20, record_every=10) for s in ([0, 1], [2]))
    both = joined(first, more)
    assert both.seeds == (0, 1, 2)
    np.testing.assert_array_equal(both.values, [*first.values, *more.values])
    assert both.trajectory.shape == (2, 3)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["a/x.zip", "b/y.zip"], ["x.zip", "y.zip"]),
        (["a/x.zip", "b/x.zip"], ["a/x.zip", "b/x.zip"]),
        (["a/x.zip", "b/x.zip", "b/y.zip"], ["a/x.zip", "b/x.zip", "y.zip"]),
        (["x.zip", "b/x.zip"], ["x.zip", "b/x.zip"]),
        ({"one": "a/x.zip", "two": "a/x.zip"}, ["one", "two"]),
    ],
)
def test_policies_are_called_by_as_much_of_their_path_as_tells_them_apart(given, named) -> None:
    assert list(name_policies(given)) == named


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        (["a.zip", "a.zip"], "given twice"),
        (["a.zip"], "expected at least two"),
        ([], "expected at least two"),
        ("a.zip", "expected a list"),
    ],
)
def test_what_cannot_be_ranked_is_refused(given, fragment) -> None:
    with pytest.raises(InputError, match=fragment):
        name_policies(given)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"seeds": 1}, "expected at least 2"),
        ({"minutes": 0.0}, "minutes"),
        ({"truth": {"near.zip": 1.0}}, "truth lacks the policy far.zip"),
        ({"level": 2.0}, "level is 2.0"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_read(changes, fragment) -> None:
    with pytest.raises(InputError, match=fragment):
        rank("no such log", policies(), **(QUICK | changes))


def test_an_accepted_check_asks_for_care_no_longer() -> None:
    def care(accept: tuple[str, ...]) -> dict[str, str]:
        options = QUICK | {"steps": 100, "seeds": 2, "estimators": [quick("fqe", decay_steps=100)]}
        found = rank(logged(GAMMA)[1], policies(), accept=accept, **options)
        assert tuple(found.question.accepted) == accept
        return {each.policy: each.verdict for each in found.policies}

    with pytest.raises(InputError, match="no_such_check"):
        care(("no_such_check",))
    words = ["trustworthy", "use with care", "do not use"]
    strict, answered = care(()), care(tuple(sorted(ORDER)))
    assert all(words.index(answered[name]) <= words.index(strict[name]) for name in strict)
    assert "use with care" not in answered.values()
