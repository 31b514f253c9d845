import numpy as np
import pytest

from kmifqe.experiments.trials import jackknife, trial_errors, variance


def test_the_mean_squared_error_is_bias_squared_plus_the_spread():
    errors = np.array([[0.1], [0.4], [-0.2], [0.3]])
    told = trial_errors(errors)
    assert told["rmse"] ** 2 == pytest.approx(told["bias_squared"] + told["variance"] * 3 / 4)
    assert told["training_variance"] is None


def test_the_variance_of_a_trial_is_that_of_its_log_and_of_its_training():
    rng = np.random.default_rng(0)
    logs, seeds = 20_000, 3
    errors = 0.7 * rng.standard_normal((logs, 1)) + 0.5 * rng.standard_normal((logs, seeds))
    assert trial_errors(errors[:100])["training_variance"] == pytest.approx(0.25, abs=0.1)
    # Relative standard error of a variance from 20,000 logs: 1 %.
    assert variance(errors) == pytest.approx(0.49 + 0.25, rel=0.04)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    errors = np.array([[1.0, 2.0], [4.0, 5.0], [-3.0, 0.0], [2.0, 2.0]])
    means = errors.mean(axis=1)
    assert jackknife(lambda e: float(e.mean()), errors) == pytest.approx(means.std(ddof=1) / 2.0)


def test_one_trial_that_diverged_leaves_no_figure_that_would_flatter():
    told = trial_errors(np.array([[0.1], [np.nan], [0.2]]))
    assert told["diverged"] == 1
    assert {told[name] for name in ("rmse", "bias", "bias_squared", "variance", "standard_error")} == {None}


@pytest.mark.parametrize(("logs", "known"), [(1, ()), (2, ("variance",)), (3, ("variance", "rmse_error"))])
def test_what_too_few_logs_cannot_tell_is_left_open(logs, known):
    told = trial_errors(np.linspace(0.1, 0.3, logs)[:, None])
    assert told["rmse"] is not None
    assert tuple(name for name in ("variance", "rmse_error") if told[name] is not None) == known
