"""Problems on MuJoCo tasks: which pairs there are, what a blend of two actors does, and what is kept in files."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
import pytest

from experiments.small_actors import tiny_actor
from kmifqe.experiments.policies import load_shipped_actors
from kmifqe.experiments.problems_base import Sources
from kmifqe.experiments.problems_family import build
from kmifqe.experiments.problems_gym import SHIPPED, TASKS, Blend, GymProblem, gym_family
from kmifqe.io.logs.load import load_dataset

ALL = gym_family(tuple(TASKS), truth_episodes=10, seed=3)


def gym_problem(**changes) -> GymProblem:
    given = {
        "task": "hopper",
        "target": "target",
        "behavior": "behavior",
        "share": 0.25,
        "noise": 0.3,
        "transitions": 300,
        "truth_episodes": 2,
        "gamma": 0.95,
        "seed": 1,
        "half": "report",
    }
    return GymProblem(**(given | changes))


def test_no_pair_of_actors_is_in_both_halves() -> None:
    found = defaultdict(set)
    for item in ALL:
        found[item.task, item.target, item.behavior].add(item.half)
    assert all(len(half) == 1 for half in found.values())
    for task in TASKS:
        halves = [half for (which, *_), (half,) in found.items() if which == task]
        assert abs(halves.count("choose") - halves.count("report")) <= 1


def test_where_episodes_can_end_the_problems_of_a_pair_share_a_log() -> None:
    logs = defaultdict(set)
    for item in ALL:
        logs[item.task, item.target, item.behavior].add((item.noise, item.transitions, item.seed))
    for (task, *_), found in logs.items():
        assert len(found) == (1 if TASKS[task].ends else TASKS[task].per_pair)


def test_a_target_a_share_of_the_way_to_another_actor_acts_so() -> None:
    actors = load_shipped_actors("hopper")
    states = np.random.default_rng(0).standard_normal((5, 11)).astype(np.float32)
    near = Blend(actors.behavior, actors.target, 0.25)
    np.testing.assert_allclose(
        near(states), 0.75 * actors.behavior(states) + 0.25 * actors.target(states), rtol=1e-6
    )


def test_without_a_folder_only_problems_of_shipped_actors_can_be_run(tmp_path) -> None:
    pytest.importorskip("mujoco")
    for sources in (Sources(tmp_path), Sources(tmp_path, tmp_path)):  # no folder, and one without the actors
        can_run = {item for item in ALL if item.missing(sources) is None}
        shipped = {item for item in ALL if item.target in SHIPPED and item.behavior in SHIPPED}
        assert can_run == shipped
    assert shipped


def test_an_actor_of_the_users_folder_is_read_from_there(tmp_path) -> None:
    pytest.importorskip("mujoco")
    actor = tiny_actor()
    arrays = {f"w{i}": w for i, w in enumerate(actor.weights)} | {
        f"b{i}": b for i, b in enumerate(actor.biases)
    }
    np.savez(
        tmp_path / "sac-Hopper-v3.npz",
        **arrays,
        n_layers=len(actor.weights),
        hidden=actor.hidden,
        output=actor.output,
        low=actor.low,
        high=actor.high,
    )
    item = gym_problem(target="sac", behavior="sac", share=1.0, transitions=40)
    sources = Sources(tmp_path / "records", tmp_path)
    assert item.missing(sources) is None
    item.make("log", sources)
    assert len(load_dataset(item.file("log", sources))) == 40


def test_a_problem_has_the_log_and_the_truth_that_its_files_keep(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    sources, item = Sources(tmp_path), gym_problem()
    for part in item.parts():
        item.make(part, sources)
    files = {part: item.file(part, sources) for part in item.parts()}
    before = {path: path.stat().st_mtime_ns for path in files.values()}
    built = build(item, sources)
    assert {path: path.stat().st_mtime_ns for path in files.values()} == before
    assert built.facts.kind == "hopper"
    log = load_dataset(files["log"])
    np.testing.assert_array_equal(built.transitions.actions, log.actions)
    # The density told is that of the logger: its value at the logged actions is what the log carries.
    assert built.problem.log_mu is not None
    rows = np.flatnonzero(log.has_next_action)
    np.testing.assert_allclose(
        built.problem.log_mu[: built.problem.counts.nonterminal], log.log_mu[rows + 1], rtol=1e-3, atol=1e-3
    )
    other_gamma = msgspec.structs.replace(item, gamma=0.99)
    assert other_gamma.file("truth", sources) == files["truth"]
    assert build(other_gamma, sources).facts.truth > built.facts.truth > 0
