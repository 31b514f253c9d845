"""Active choice: Gaussian conditioning in closed form, and fewer episodes than trying all policies alike."""

from itertools import pairwise

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.trust.active import RULES, acquire, choose, paired_covariance, posterior

MEAN = np.array([1.0, 1.2, 0.7])
COVARIANCE = np.array([[0.5, 0.3, 0.1], [0.3, 0.4, 0.1], [0.1, 0.1, 0.6]])


def test_the_posterior_is_that_of_gaussian_conditioning_in_precision_form() -> None:
    returns = [(1.5, 0.9, 1.4), (), (0.2, 0.5)]
    found = posterior(MEAN, COVARIANCE, returns, return_std=0.8)
    counts, sums = np.array([3.0, 0.0, 2.0]), np.array([sum(each) for each in returns])
    within = sum(np.var(each) * len(each) for each in returns if each)
    noise = (5 * 0.8**2 + within) / (5 + 2 + 1)
    precision = np.linalg.inv(COVARIANCE) + np.diag(counts / noise)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=1e-9)
    mean = np.linalg.solve(precision, np.linalg.solve(COVARIANCE, MEAN) + sums / noise)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9)
    assert found.noise_std == pytest.approx(np.sqrt(noise))


def test_without_episodes_the_posterior_is_the_prior_and_more_episodes_shrink_it() -> None:
    stds = [posterior(MEAN, COVARIANCE, [(1.0,) * n, (), ()], 0.8).std for n in (0, 1, 4, 100, 100_000)]
    np.testing.assert_allclose(stds[0], np.sqrt(np.diag(COVARIANCE)))
    assert all((later < earlier).all() for earlier, later in pairwise(stds))
    assert stds[-1][0] < 0.01
    # What is left of the second is what the first does not explain of it.
    assert stds[-1][1] ** 2 == pytest.approx(0.4 - 0.3**2 / 0.5, rel=1e-3)


def test_paired_covariances_are_found_again_from_variances_of_differences() -> None:
    variances = np.diag(COVARIANCE)
    differences = np.add.outer(variances, variances) - 2 * COVARIANCE
    np.testing.assert_allclose(paired_covariance(variances, differences), COVARIANCE, atol=1e-12)


def test_unknown_policies_and_rules_are_refused() -> None:
    with pytest.raises(InputError, match="that is ranked"):
        choose(["a", "b"], MEAN[:2], COVARIANCE[:2, :2], {"c": [1.0]}, 1.0)
    with pytest.raises(InputError, match="rule"):
        choose(["a", "b"], MEAN[:2], COVARIANCE[:2, :2], {}, 1.0, rule="best")


def regrets(rule: str | None, worlds: int, budget: int) -> np.ndarray:
    """Return what the policy chosen after `budget` episodes lacks to the best, in each world; None: all alike."""
    rng = np.random.default_rng(0)
    covariance = 0.3 * np.eye(6) + 0.7  # what policies have wrong alike says nothing of which is best
    found = []
    for _ in range(worlds):
        mean = 0.5 * rng.standard_normal(6)
        truth = mean + np.linalg.cholesky(covariance) @ rng.standard_normal(6)
        noise = rng.standard_normal((budget, 6))
        returns: list[list[float]] = [[] for _ in range(6)]
        known = posterior(mean, covariance, returns, 1.0)
        for episode in range(budget):
            tried = episode % 6 if rule is None else acquire(known, rule, seed=episode)
            returns[tried].append(truth[tried] + noise[episode, tried])
            known = posterior(mean, covariance, returns, 1.0)
        found.append(truth.max() - truth[known.mean.argmax()])
    return np.array(found)


@pytest.mark.parametrize("rule", RULES)
def test_a_better_policy_is_found_than_by_trying_all_alike(rule) -> None:
    gain = regrets(None, 300, 12) - regrets(rule, 300, 12)
    assert gain.mean() > 3 * gain.std(ddof=1) / np.sqrt(len(gain))
