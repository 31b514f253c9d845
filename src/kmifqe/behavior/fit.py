"""Maximum-likelihood fit of the behaviour density: all component counts side by side, the best one kept."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from kmifqe.behavior.calibration import calibration
from kmifqe.behavior.fit_config import FitConfig, FitProgress
from kmifqe.behavior.fit_report import FitReport, episode_standard_error
from kmifqe.behavior.mixture import TanhMixture
from kmifqe.behavior.support import given_box, make_support, share_on_bound, support_box
from kmifqe.behavior.train import Rows, train_networks
from kmifqe.errors import InputError

FEWEST_ROWS = 20


def fit_behavior(
    states: np.ndarray,
    actions: np.ndarray,
    episode: np.ndarray,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    config: FitConfig = FitConfig(),  # noqa: B008 (frozen)
    progress: Callable[[FitProgress], None] | None = None,
) -> tuple[TanhMixture, FitReport]:
    """Return the density with the best held-out likelihood, and the report that says how good it is.

    `episode` numbers the episode of each row; whole episodes are held out. `low` and `high` bound the actions
    where known; logged actions beyond them widen the box (see `support_box`).
    """
    states, actions, episode = _checked(states, actions, episode)
    held = held_out_rows(episode, config.held_out, np.random.default_rng(config.seed))
    given = given_box(low, high, actions.shape[1])
    box = support_box(actions, given)
    support = make_support(actions[~held], *box, config.layer)
    state_mean, state_std = _state_scale(states[~held])
    latent = support.to_latent(actions)
    standardised = (np.asarray(states, np.float32) - state_mean) / state_std
    log_jacobian = float(latent.log_jacobian[held].sum(axis=1).mean())

    train, check = (
        Rows(*(jnp.asarray(array[rows]) for array in (standardised, latent.z, latent.side)))
        for rows in (~held, held)
    )
    trained = train_networks(train, check, jnp.asarray(support.edges), log_jacobian, config, progress)
    fits = [
        TanhMixture(trained.network(i, count, actions.shape[1]), support, state_mean, state_std)
        for i, count in enumerate(config.components)
    ]
    best = int(trained.held_out.mean(axis=1).argmax())
    errors = [
        episode_standard_error(fit.log_prob(states[held], actions[held]), episode[held]) for fit in fits
    ]
    report = FitReport(
        components=config.components,
        log_likelihood=trained.held_out + log_jacobian,
        standard_error=np.array(errors),
        chosen=config.components[best],
        held_out_rows=int(held.sum()),
        held_out_episodes=len(np.unique(episode[held])),
        train_rows=int((~held).sum()),
        steps=trained.steps,
        low=box[0],
        high=box[1],
        widened=(box[0] < (given or box)[0]) | (box[1] > (given or box)[1]),
        on_bound=share_on_bound(actions, *(given or box)),
        in_layer=(latent.side != 0).mean(axis=0),
        calibration=calibration(fits[best].pit(states[held], actions[held], config.seed)),
    )
    return fits[best], report


def held_out_rows(episode: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return which rows are held out, bool: random whole episodes until `share` of the rows is reached.

    At least one episode is held out and one kept. A log of one episode gives up its last rows instead.
    """
    _, index, lengths = np.unique(episode, return_inverse=True, return_counts=True)
    if len(lengths) == 1:
        held = np.zeros(len(episode), bool)
        held[-max(1, round(share * len(episode))) :] = True
        return held
    order = rng.permutation(len(lengths))
    enough = int(np.searchsorted(np.cumsum(lengths[order]), share * len(episode))) + 1
    return np.isin(index, order[: min(enough, len(lengths) - 1)])


def _state_scale(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and spread of each state column; a constant column keeps its unit."""
    mean, std = states.mean(axis=0, dtype=np.float64), states.std(axis=0, dtype=np.float64)
    std = np.where(std > 1e-6 * (1.0 + np.abs(mean)), std, 1.0)
    return mean.astype(np.float32), std.astype(np.float32)  # float32, lest a wide log be copied in float64


def _checked(
    states: np.ndarray, actions: np.ndarray, episode: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    states, actions, episode = np.asarray(states), np.asarray(actions), np.asarray(episode)
    for field, array, ndim in (("states", states, 2), ("actions", actions, 2), ("episode", episode, 1)):
        if array.ndim != ndim or len(array) != len(states):
            raise InputError(
                f"behaviour fit: {field} has shape {array.shape}; expected {ndim} axes and {len(states)} rows"
            )
        if not np.isfinite(array).all():
            raise InputError(f"behaviour fit: {field} holds NaN or infinity; expected finite numbers")
    if len(states) < FEWEST_ROWS:
        raise InputError(f"behaviour fit: {len(states)} rows; expected at least {FEWEST_ROWS}")
    return states, actions, episode
