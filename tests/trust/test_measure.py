import json
from dataclasses import replace

import numpy as np
import pytest

from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks.diagnose import diagnose, measure
from trust.fitted import fqe_estimator, sound_fit


def test_measurements_survive_json_and_name_every_part():
    facts = measure(*sound_fit())
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert {"episodes", "distance_outside", "reference_weights", "raw_mean_weight"} <= facts.keys()
    assert {"metric_condition_quantiles", "td_rms_held_out", "start_td"} <= facts.keys()


def test_an_estimate_without_a_final_state_still_has_its_log_measured():
    estimator, estimate, problem = sound_fit()
    facts = measure(estimator, replace(estimate, final_state=None), problem)
    assert "distance_outside" in facts
    assert "raw_mean_weight" not in facts


def test_an_estimator_without_weights_has_none_measured():
    _, estimate, problem = sound_fit()
    facts = measure(fqe_estimator(), replace(estimate, final_state=None), problem)
    assert "distance_outside" in facts
    assert not [name for name in facts if "weight" in name]


def test_rows_in_host_memory_measure_the_same():
    estimator, estimate, problem = sound_fit()
    here, there = measure(estimator, estimate, problem), measure(estimator, estimate, problem.on_host())
    assert here.keys() == there.keys()
    for name, value in here.items():
        np.testing.assert_allclose(there[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 30])
@pytest.mark.parametrize("gamma", [0.0, 0.999])
def test_the_smallest_logs_can_be_measured_and_diagnosed(rows, terminal, gamma):
    """Constant actions, constant rewards, one episode: whatever can be divided by is 0."""
    _, estimate, _ = sound_fit()
    ends = np.arange(rows) == rows - 1
    states = np.ones((rows, 2))
    flags = (ends, ~ends & ends) if terminal else (~ends & ends, ends)
    log = Transitions.from_arrays(states, np.zeros((rows, 1)), np.zeros(rows), *flags, states)
    problem = Problem.build(log, lambda s: np.zeros((len(s), 1)), None, gamma)
    facts = measure(fqe_estimator(), replace(estimate, final_state=None), problem)
    json.dumps(facts, allow_nan=False)
    fqe = replace(estimate, estimator="fqe", config={"tau": 0.1})
    assert {d.name for d in diagnose(fqe, facts) if d.level == "bad"} >= {"episodes", "interval_width"}
