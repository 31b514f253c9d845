import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.experiments.figures import CROSSES, FIG1A, FIG1B, FIG2, SHIFT, STATES, exact_q, shifted_log
from kmifqe.experiments.pendulum import GAMMA
from kmifqe.experiments.presets import PRESETS
from kmifqe.worlds.pendulum import value_of_states
from kmifqe.worlds.pendulum_dynamics import observe
from kmifqe.worlds.pendulum_policies import load_pendulum_actors, with_dummies


def test_the_exact_q_obeys_bellman_and_ignores_the_dummy():
    target = with_dummies(load_pendulum_actors()[0], 1)
    states = np.asarray(observe(jnp.array([state[1:] for state in STATES])))
    actions = target(states)
    here = exact_q(states, actions, target)
    np.testing.assert_allclose(here, value_of_states(states, target, GAMMA), atol=1e-5)
    np.testing.assert_array_equal(here, exact_q(states, actions + np.array([[0.0, 1.3]]), target))
    other_way = exact_q(states, -actions, target)
    assert (here - other_way)[1:].min() > 0.1  # there the torque matters, and the target's is the better one


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
@pytest.mark.parametrize("experiment", [FIG1A, FIG1B, FIG2, SHIFT], ids=lambda experiment: experiment.name)
def test_rows_are_there_once_and_name_files(experiment, preset):
    rows = experiment.rows(preset)
    assert rows
    assert len(set(rows)) == len(rows)
    assert all(row.replace("-", "").replace(".", "").isalnum() for row in rows)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_shift_rows_form_a_cross(preset):
    sizes = CROSSES[preset.name]
    logs = [shifted_log(row) for row in SHIFT.rows(preset)]
    assert all(log.width == sizes.usual_width or log.rows == sizes.usual_rows for log in logs)
    assert {log.width for log in logs} >= set(sizes.widths)
    assert {log.rows for log in logs} >= set(sizes.lengths)


def test_an_unknown_shift_row_is_refused():
    with pytest.raises(InputError, match="width-WIDTH-rows-ROWS"):
        shifted_log("hopper")
