from dataclasses import replace

import numpy as np
import pytest

from kmifqe.trust.checks.consistency import _compared, td_facts
from trust.fitted import sound_fit


def test_without_a_bootstrap_nothing_is_held_out():
    estimator, estimate, problem = sound_fit()
    assert td_facts(estimator, replace(estimate, bootstrap=False), problem) == {}


def test_an_estimate_read_back_has_no_q_to_look_at():
    estimator, estimate, problem = sound_fit()
    assert td_facts(estimator, replace(estimate, final_state=None), problem) == {}


def test_a_small_network_on_many_rows_does_as_well_on_episodes_it_hardly_saw():
    facts = td_facts(*sound_fit())
    assert facts["td_rms_held_out"] / facts["td_rms_trained"] < 1.5
    assert facts["td_mean_held_out_error"] > 0


def test_means_are_weighted_and_errors_clustered_by_episode():
    episode = np.repeat(np.arange(6), 4)
    held_out = episode < 3
    errors = np.where(held_out, 2.0 + (episode - 1.0), 5.0)  # episode means 1, 2, 3
    trained, held, mean, error = _compared(errors, np.ones(24), held_out, episode)
    assert (trained, mean) == (5.0, 2.0)
    assert held == pytest.approx(np.sqrt((1 + 4 + 9) / 3))
    assert error == pytest.approx(np.sqrt(2) / 3)  # √Σ(mean_e − mean)²/3 of episodes of one length
    weights = np.where(episode == 0, 1.0, 0.0)
    assert _compared(errors, weights + 1e-12, held_out, episode)[2] == pytest.approx(1.0)
