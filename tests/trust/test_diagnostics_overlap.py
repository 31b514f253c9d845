"""Wrong densities and distant targets, planted in varied worlds: found there and not in the sound ones."""

from dataclasses import replace

import numpy as np
import pytest

from kmifqe.trust.checks.overlap import (
    density_facts,
    density_misfit,
    nearby_actions,
    overlap_diagnostics,
    overlap_facts,
)
from trust.planted import Shifted, log_of, problem_of, world_of

VARIED = [(21, 1, 60, 15), (22, 2, 150, 20), (23, 4, 300, 20)]  # seed, action dimensions, episodes, length
every_size = pytest.mark.parametrize("seed, d, episodes, length", VARIED)


def found(problem):
    near = nearby_actions(problem)
    facts = overlap_facts(problem, near) | density_facts(problem, near)
    return {d.name: d for d in overlap_diagnostics(facts, uses_density=True)}


@every_size
def test_a_right_density_and_a_near_target_raise_no_alarm(seed, d, episodes, length):
    world = world_of(seed, d)
    assert {x.level for x in found(problem_of(world, log_of(world, seed, episodes, length))).values()} == {
        "ok"
    }


@pytest.mark.parametrize("fault", ["shifted", "wide", "narrow"])
@every_size
def test_a_wrong_density_is_named(seed, d, episodes, length, fault):
    world = world_of(seed, d)
    right = world.behavior
    told = {
        "shifted": Shifted(right, 0.5),
        "wide": replace(right, std=1.4 * right.std),
        "narrow": replace(right, std=0.7 * right.std),
    }[fault]
    misfit = found(problem_of(world, log_of(world, seed, episodes, length), told=told))["density_fit"]
    assert misfit.level != "ok"
    assert misfit.line.startswith("the behaviour density does not fit the logged actions")


@every_size
def test_a_target_far_outside_the_log_is_named(seed, d, episodes, length):
    world = world_of(seed, d)
    far = world.gain + 8.0 * np.sign(world.gain)
    told = found(problem_of(world, log_of(world, seed, episodes, length), gain=far))
    assert (told["distance"].level, told["rare_actions"].level) == ("bad", "bad")
    assert "the target acts outside what was logged" in told["distance"].line


def test_an_error_within_its_standard_error_is_no_misfit():
    facts = {"reference_weights": [1.3, 0.9], "reference_errors": [0.08, 0.03], "reference_rows": [500, 500]}
    assert density_misfit(facts).value == 0
    facts["reference_errors"] = [0.07, 0.03]
    assert (density_misfit(facts).value, density_misfit(facts).level) == (pytest.approx(0.3), "bad")


def test_too_large_and_too_small_weights_count_alike():
    facts = {"reference_weights": [1.25, 0.5], "reference_errors": [0.01, 0.01], "reference_rows": [500, 500]}
    assert density_misfit(facts).value == pytest.approx(1.0)


def test_a_density_that_cannot_be_checked_asks_for_care():
    facts = {"reference_weights": [0.2], "reference_errors": [0.01], "reference_rows": [5]}
    assert (density_misfit(facts).level, density_misfit(facts).value) == ("care", None)
