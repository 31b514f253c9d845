"""Faults planted in small problems, from a fit to the verdict: each is caught and named first or nearly so.

No threshold was set on these problems. The same faults over more worlds, sizes and dimensions, without a fit, are in
checks/test_log.py and checks/test_overlap.py.
"""

from dataclasses import replace

import numpy as np
import pytest

from kmifqe.experiments.planted import (
    Shifted,
    clipped_log,
    ended_log,
    log_of,
    problem_of,
    reset_log,
    reward_shift_log,
    shuffled_log,
    world_of,
)
from kmifqe.trust.verdict import judge_run
from trust.fitted import FEW, fqe_estimator, judged, kernel_estimator

SEED = 31


@pytest.fixture(scope="module")
def setting():
    world = world_of(SEED)
    return world, log_of(world, SEED)


def names(judgement, level=None):
    return [c.name for c in judgement.checks if c.level == level or (level is None and c.level != "ok")]


@pytest.fixture(autouse=True)
def _every_fault_comes_with_advice(monkeypatch):
    """Whatever a planted fault raises, in any test of this file, says what to do about it."""
    seen = []
    monkeypatch.setattr(
        "trust.fitted.judge_run", lambda estimates: seen.append(judge_run(estimates)) or seen[-1]
    )
    yield
    raised = [c for judgement in seen for c in judgement.checks if c.level != "ok"]
    assert all(c.advice.endswith(".") for c in raised), [c.name for c in raised if not c.advice]


def test_an_honest_easy_problem_is_trustworthy():
    world = world_of(31)
    judgement = judged(kernel_estimator(), problem_of(world, log_of(world, 31)))
    assert judgement.verdict.word == "trustworthy", judgement.verdict.reasons


def test_a_network_too_coarse_for_an_honest_log_is_not_trusted():
    """Here rewards late in an episode are hundreds of times those at its start: V is −2.4, V̂ half as much again."""
    world = world_of(32)
    judgement = judged(kernel_estimator(), problem_of(world, log_of(world, 32)))
    assert judgement.verdict.word != "trustworthy"
    assert "start_td" in names(judgement)


@pytest.mark.parametrize("fault", ["shifted", "wide"])
def test_a_wrong_behaviour_density(setting, fault):
    world, log = setting
    right = world.behavior
    told = {
        "shifted": Shifted(right.gain, right.std, -0.6),
        "wide": replace(right, std=1.6 * right.std),
    }[fault]
    judgement = judged(kernel_estimator(), problem_of(world, log, told=told), steps=FEW)
    assert judgement.verdict.word == "do not use"
    assert "density_fit" in names(judgement, "bad")
    assert "The behaviour density does not fit the logged actions" in judgement.verdict.reasons[0]


def test_a_target_far_outside_the_log(setting):
    world, log = setting
    far = problem_of(world, log, gain=world.gain + 8 * np.sign(world.gain))
    judgement = judged(kernel_estimator(), far, steps=FEW)
    assert judgement.verdict.word == "do not use"
    assert {"distance", "rare_actions"} <= set(names(judgement, "bad"))
    assert any("the target acts outside what was logged" in reason for reason in judgement.verdict.reasons)


def test_a_diverging_fqe(setting):
    world = world_of(SEED, gamma=0.99, away=1.0)
    problem = problem_of(world, log_of(world, SEED), gain=world.gain + 2 * np.sign(world.gain))
    judgement = judged(fqe_estimator(tau=1.0, learning_rate=1e-2), problem)
    assert judgement.verdict.word == "do not use"
    assert "Q is diverging" in judgement.verdict.reasons[0]


def test_a_log_with_clipped_actions(setting):
    world, log = setting
    judgement = judged(kernel_estimator(), problem_of(world, clipped_log(log, 0.05)), steps=FEW)
    assert judgement.verdict.word != "trustworthy"
    assert "clipped_actions" in names(judgement)
    assert any("they were clipped" in reason for reason in judgement.verdict.reasons)


def test_a_log_whose_timeouts_are_marked_as_terminals(setting):
    world, log = setting
    judgement = judged(fqe_estimator(), problem_of(world, ended_log(log)), steps=FEW)
    assert judgement.verdict.word == "do not use"
    assert (
        "150 episodes of the longest length, 20 steps, are marked as terminated"
        in judgement.verdict.reasons[0]
    )


@pytest.mark.parametrize(
    "plant, name, word",
    [
        (shuffled_log, "row_order", "do not use"),
        (reset_log, "reset_states", "do not use"),
        (reward_shift_log, "reward_shift", "use with care"),
    ],
)
def test_a_log_that_was_written_wrongly(setting, plant, name, word):
    world, log = setting
    judgement = judged(fqe_estimator(), problem_of(world, plant(log)), steps=FEW)
    (found,) = [check for check in judgement.checks if check.name == name]
    assert found.level == {"do not use": "bad", "use with care": "care"}[word]
    assert judgement.verdict.word in (word, "do not use")


def test_half_of_the_timeouts_marked_as_terminals(setting):
    """Honest labels on the other half do not clear them."""
    world, log = setting
    judgement = judged(fqe_estimator(), problem_of(world, ended_log(log, share=0.5)), steps=FEW)
    assert judgement.verdict.word == "do not use"
    assert "time_limit" in names(judgement, "bad")
