from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats

from kmifqe.behavior import FitConfig, TanhMixture, fit, fit_behavior
from kmifqe.behavior.fit import held_out_rows
from kmifqe.errors import InputError
from kmifqe.worlds.pendulum import collect
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors

SMALL = FitConfig(components=(4, 8), hidden=(64, 64), batch=256, steps=500, check_every=50)
TINY = FitConfig(components=(2, 3), hidden=(8,), batch=32, steps=20, check_every=10, restarts=2)
BOX = (np.array([-1.0, -1.0]), np.array([1.0, 1.0]))


def bimodal(rng, n):
    """A known density: two modes that move smoothly with the state, in a dependent pair of tanh'd actions.

    Returns states, actions, and the true log-density of each row.
    """
    states = rng.uniform(-1.0, 1.0, (n, 1))
    mode = np.where(rng.random(n) < 0.35, -1.0, 1.0)
    centre = np.stack([0.6 * mode + 0.4 * np.sin(2 * states[:, 0]), 0.5 * mode * states[:, 0]], axis=1)
    u = centre + np.array([0.25, 0.4]) * rng.normal(size=(n, 2))
    terms = []
    for sign, weight in ((-1.0, 0.35), (1.0, 0.65)):
        mean = np.stack([0.6 * sign + 0.4 * np.sin(2 * states[:, 0]), 0.5 * sign * states[:, 0]], axis=1)
        terms.append(np.log(weight) + stats.norm.logpdf(u, mean, [0.25, 0.4]).sum(axis=1))
    log_prob = np.logaddexp(*terms) - np.log(1.0 - np.tanh(u) ** 2).sum(axis=1)
    return states.astype(np.float32), np.tanh(u).astype(np.float32), log_prob


@pytest.fixture(scope="module")
def fitted():
    states, actions, _ = bimodal(np.random.default_rng(0), 12_000)
    episode = np.repeat(np.arange(120), 100)
    seen = []
    mixture, report = fit_behavior(states, actions, episode, *BOX, config=SMALL, progress=seen.append)
    return mixture, report, seen


def test_fresh_draws_are_as_likely_as_under_the_truth_to_a_twentieth_of_a_nat(fitted):
    states, actions, log_prob = bimodal(np.random.default_rng(1), 8000)
    gap = log_prob - fitted[0].log_prob(states, actions)
    assert -4 * gap.std() / np.sqrt(len(gap)) < gap.mean() < 0.05


def test_the_fit_is_calibrated_and_says_so(fitted):
    _, report, _ = fitted
    assert not report.calibration.miscalibrated.any()
    assert (report.on_bound == 0).all()
    assert not report.widened.any()


def test_the_report_holds_the_table_and_the_choice_is_its_best(fitted):
    mixture, report, _ = fitted
    assert report.log_likelihood.shape == (2, 1)
    assert report.chosen == report.components[int(report.log_likelihood.mean(axis=1).argmax())]
    assert mixture.components == report.chosen
    assert (report.standard_error > 0).all()
    assert (report.held_out_rows, report.held_out_episodes, report.train_rows) == (1200, 12, 10_800)


def test_the_tables_figure_is_the_densitys_own(fitted):
    mixture, report, _ = fitted
    states, actions, _ = bimodal(np.random.default_rng(0), 12_000)
    held = held_out_rows(np.repeat(np.arange(120), 100), 0.1, np.random.default_rng(SMALL.seed))
    figure = report.log_likelihood[report.components.index(report.chosen), 0]
    assert mixture.log_prob(states[held], actions[held]).mean() == pytest.approx(figure, abs=1e-4)


def test_progress_never_falls_and_counts_the_steps(fitted):
    _, report, seen = fitted
    best = np.array([progress.held_out for progress in seen])
    assert (np.diff(best, axis=0) >= 0).all()
    assert seen[-1].step == report.steps <= seen[-1].steps == 500


def test_pendulums_known_mixture_is_recovered_to_a_twentieth_of_a_nat():
    _, mean = load_pendulum_actors()
    behavior = PendulumBehavior(mean, n_dummies=1)
    log = collect(0, behavior, 20_000)
    box = (np.full(2, -2.0), np.full(2, 2.0))
    config = FitConfig(components=(10,), hidden=(64, 64), batch=256, steps=600, learning_rate=3e-3)
    mixture, report = fit_behavior(log.states, log.actions, log.episode, *box, config=config)
    held = held_out_rows(log.episode, 0.1, np.random.default_rng(config.seed))
    gap = log.log_mu[held].sum(axis=1) - mixture.log_prob(log.states[held], log.actions[held])
    assert gap.mean() < 0.05
    np.testing.assert_array_equal(report.widened, [True, False])  # Gaussian draws as drawn; a uniform dummy


def test_clipped_actions_keep_their_probability_in_the_layer():
    rng = np.random.default_rng(2)
    states = rng.normal(size=(6000, 1)).astype(np.float32)
    actions = np.clip(0.8 + 0.5 * rng.normal(size=(6000, 1)), -1.0, 1.0).astype(np.float32)
    config = FitConfig(components=(5,), hidden=(32,), batch=256, steps=300, learning_rate=5e-3)
    mixture, report = fit_behavior(states, actions, np.repeat(np.arange(60), 100), [-1.0], [1.0], config)
    on_upper_bound = stats.norm.sf(1.0, 0.8, 0.5)
    density = np.exp(mixture.log_prob(states[:200], np.ones((200, 1))))
    assert density.mean() * config.layer == pytest.approx(on_upper_bound, abs=0.04)
    assert report.on_bound[0] == pytest.approx(on_upper_bound, abs=0.03)
    assert "sit exactly on a bound" in report.warnings[0]
    assert not report.calibration.miscalibrated.any()


def test_the_same_seed_gives_the_same_fit_and_another_does_not():
    states, actions, _ = bimodal(np.random.default_rng(3), 400)
    episode = np.repeat(np.arange(20), 20)
    first, again, other = (
        fit_behavior(states, actions, episode, *BOX, config=config)[0].log_prob(states, actions)
        for config in (TINY, TINY, FitConfig(**{**vars(TINY), "seed": 1}))
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_a_fit_that_may_not_take_long_ends_its_schedule_sooner(monkeypatch):
    """With no time at all it has the least steps, and its schedule ends there; with enough it is the same fit."""
    monkeypatch.setattr(fit, "LEAST_STEPS", 40)
    rates = []
    schedule = fit._cosine
    monkeypatch.setattr(
        fit, "_cosine", lambda rate, steps, most: rates.append(most) or schedule(rate, steps, most)
    )
    states, actions, _ = bimodal(np.random.default_rng(3), 400)
    episode = np.repeat(np.arange(20), 20)
    long = replace(TINY, steps=400, patience=100)
    whole, hurried, slow = (
        fit_behavior(states, actions, episode, *BOX, config=replace(long, seconds=seconds))
        for seconds in (None, 1e-9, 1e9)
    )
    assert (whole[1].steps, hurried[1].steps, slow[1].steps) == (400, 40, 400)
    assert rates[40:44] == [400, 400, 40, 40]
    np.testing.assert_array_equal(whole[1].log_likelihood, slow[1].log_likelihood)


def test_restarts_fill_the_table():
    states, actions, _ = bimodal(np.random.default_rng(4), 400)
    _, report = fit_behavior(states, actions, np.repeat(np.arange(20), 20), *BOX, config=TINY)
    assert report.log_likelihood.shape == (2, 2)
    assert report.log_likelihood[0, 0] != report.log_likelihood[0, 1]


def test_a_constant_state_column_and_a_constant_action_give_a_finite_density():
    states = np.full((400, 1), 3.0)
    actions = np.stack([np.random.default_rng(5).uniform(-1, 1, 400), np.full(400, 0.5)], axis=1)
    mixture, report = fit_behavior(states, actions, np.repeat(np.arange(20), 20), config=TINY)
    assert isinstance(mixture, TanhMixture)
    assert np.isfinite(mixture.log_prob(states, actions)).all()
    assert np.isfinite(report.log_likelihood).all()


@pytest.mark.parametrize("lengths", [[10] * 30, [1, 500, 2, 90], [5, 5]])
def test_whole_episodes_are_held_out_and_some_are_kept(lengths):
    episode = np.repeat(np.arange(len(lengths)), lengths)
    held = held_out_rows(episode, 0.1, np.random.default_rng(0))
    assert not set(episode[held]) & set(episode[~held])
    assert held.any()
    assert (~held).any()


def test_a_single_episode_gives_up_its_last_rows():
    held = held_out_rows(np.zeros(50), 0.1, np.random.default_rng(0))
    np.testing.assert_array_equal(np.flatnonzero(held), np.arange(45, 50))


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda s, a, e: (s[:5], a[:5], e[:5]), "5 rows; expected at least 20"),
        (lambda s, a, e: (s, a[:-1], e), "actions has shape"),
        (lambda s, a, e: (s, a, e[:, None]), "episode has shape"),
        (lambda s, a, e: (s * np.nan, a, e), "states holds NaN"),
    ],
)
def test_wrong_arrays_are_named(spoil, named):
    arrays = np.zeros((40, 2)), np.zeros((40, 1)), np.zeros(40)
    with pytest.raises(InputError, match=named):
        fit_behavior(*spoil(*arrays))


def test_a_fit_leaves_the_global_precision_alone():
    assert jax.numpy.zeros(1).dtype == np.float32
