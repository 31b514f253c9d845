"""Five faults planted in small problems, from a fit to the verdict: each is caught and named first or nearly so.

No threshold was set on these problems. The same faults over more worlds, sizes and dimensions, without a fit, are in
test_diagnostics_log.py and test_diagnostics_overlap.py.
"""

from dataclasses import replace

import numpy as np
import pytest

from trust.fitted import FEW, fqe_estimator, judged, kernel_estimator
from trust.planted import Shifted, clipped_log, ended_log, log_of, problem_of, world_of

SEED = 31


@pytest.fixture(scope="module")
def setting():
    world = world_of(SEED)
    return world, log_of(world, SEED)


def names(diagnosis, level=None):
    return [d.name for d in diagnosis.diagnostics if d.level == level or (level is None and d.level != "ok")]


def test_an_honest_easy_problem_is_trustworthy():
    world = world_of(31)
    diagnosis = judged(kernel_estimator(), problem_of(world, log_of(world, 31)))
    assert diagnosis.verdict.word == "trustworthy", diagnosis.verdict.reasons


def test_a_network_too_coarse_for_an_honest_log_is_not_trusted():
    """Here rewards late in an episode are hundreds of times those at its start: V is −2.4, V̂ half as much again."""
    world = world_of(32)
    diagnosis = judged(kernel_estimator(), problem_of(world, log_of(world, 32)))
    assert diagnosis.verdict.word != "trustworthy"
    assert "start_td" in names(diagnosis)


@pytest.mark.parametrize("fault", ["shifted", "wide"])
def test_a_wrong_behaviour_density(setting, fault):
    world, log = setting
    right = world.behavior
    told = {
        "shifted": Shifted(right, -0.6),
        "wide": replace(right, std=1.6 * right.std),
    }[fault]
    diagnosis = judged(kernel_estimator(), problem_of(world, log, told=told), steps=FEW)
    assert diagnosis.verdict.word == "do not use"
    assert "density_fit" in names(diagnosis, "bad")
    assert "the behaviour density does not fit the logged actions" in diagnosis.verdict.reasons[0]


def test_a_target_far_outside_the_log(setting):
    world, log = setting
    far = problem_of(world, log, gain=world.gain + 8 * np.sign(world.gain))
    diagnosis = judged(kernel_estimator(), far, steps=FEW)
    assert diagnosis.verdict.word == "do not use"
    assert {"distance", "rare_actions"} <= set(names(diagnosis, "bad"))
    assert any("the target acts outside what was logged" in reason for reason in diagnosis.verdict.reasons)


def test_a_diverging_fqe(setting):
    world = world_of(SEED, gamma=0.99, away=1.0)
    problem = problem_of(world, log_of(world, SEED), gain=world.gain + 2 * np.sign(world.gain))
    diagnosis = judged(fqe_estimator(tau=1.0, learning_rate=1e-2), problem)
    assert diagnosis.verdict.word == "do not use"
    assert "Q is diverging" in diagnosis.verdict.reasons[0]


def test_a_log_with_clipped_actions(setting):
    world, log = setting
    diagnosis = judged(kernel_estimator(), problem_of(world, clipped_log(log, 0.05)), steps=FEW)
    assert diagnosis.verdict.word != "trustworthy"
    assert "clipped_actions" in names(diagnosis)
    assert any("they were clipped" in reason for reason in diagnosis.verdict.reasons)


def test_a_log_whose_timeouts_are_marked_as_terminals(setting):
    world, log = setting
    diagnosis = judged(fqe_estimator(), problem_of(world, ended_log(log)), steps=FEW)
    assert diagnosis.verdict.word == "do not use"
    assert (
        "150 episodes of the longest length, 20 steps, are marked as terminated"
        in diagnosis.verdict.reasons[0]
    )
