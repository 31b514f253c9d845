"""The log's own returns: the unit and the zero that values are learned in, and what each logged episode was worth."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from kmifqe.mdp.transitions import Transitions

EPISODES = 2_000  # looked at, evenly chosen: a spread is then known to some per cent
LEAST = 1e-6  # of the rewards' size: a log of constant rewards has returns without any spread


def value_units(t: Transitions, gamma: float) -> tuple[float, float]:
    """Return (center, scale): values of the log's states are around `center` and differ by about `scale`.

    They are the mean and the standard deviation over logged rows of the normalised return that follows,
    (1 − γ) Σ γᵏ r, discounted by `gamma`. After an end the reward is 0. Where an episode of `t` is cut, or rows of it
    were lost, the mean reward stands for what was not seen.

    So r + c moves `center` by c where no episode ends, and c·r multiplies both by c: an estimator that learns
    (V − center)/scale is equivariant to shift and scale of the rewards.
    """
    mean = float(t.rewards.mean(dtype=np.float64))
    first = t.first_rows
    last = np.concatenate([first[1:], [len(t)]])
    chosen = np.unique(np.linspace(0, len(first) - 1, min(len(first), EPISODES)).astype(int))
    returns = [_returns_to_go(t, slice(first[e], last[e]), gamma, mean) for e in chosen]
    each = np.concatenate(returns)
    size = max(abs(mean), float(np.abs(t.rewards).max()), 1e-30)
    scale = float(each.std())
    # Constant rewards: any unit will do, but it must follow the rewards' scale.
    return mean + float(each.mean()), scale if scale > LEAST * size else size


def _returns_to_go(t: Transitions, rows: slice, gamma: float, mean: float) -> np.ndarray:
    """Return (1 − γ) Σ γᵏ (r − mean) from every row of one episode on; after a termination r is 0 for ever."""
    centred = (1.0 - gamma) * (t.rewards[rows].astype(np.float64) - mean)
    if t.terminated[rows.stop - 1]:
        centred[-1] -= gamma * mean
    return np.asarray(lfilter([1.0], [1.0, -gamma], centred[::-1])[::-1])


def episode_returns(t: Transitions, gamma: float) -> np.ndarray:
    """Return the normalised discounted return (1 − γ) Σ γᵏ r of every logged episode of `t`, (m,).

    After a termination the reward is 0. Where an episode was cut by a time limit, or rows of it were lost, what would
    have followed is taken to be worth the mean return that follows a logged row (`value_units`), discounted by
    `gamma` to the power of the rows that were seen.
    """
    terms, tails, after = _seen_and_tails(t, gamma)
    return terms + after * tails


def credited_returns(t: Transitions, gamma: float) -> np.ndarray:
    """Return `episode_returns` of `t`, each with its episode's part in what is taken to follow a cut, (m,).

    The mean is the same. But what follows a cut is the log's mean, which is uncertain too: here an episode whose
    rewards are higher than the others' is credited with raising it, so that the scatter of these numbers tells how
    well their mean is known. Where rewards are constant within episodes they are the episodes' rewards, however
    early the cut.
    """
    terms, tails, after = _seen_and_tails(t, gamma)
    lengths = np.diff([*t.first_rows, len(t)])
    rewards = np.add.reduceat(t.rewards.astype(np.float64), t.first_rows)
    raised = (rewards - rewards.sum() / lengths.sum() * lengths) / lengths.mean()
    return np.asarray(terms + after * tails + tails.mean() * raised)


def _seen_and_tails(t: Transitions, gamma: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return of every episode the part of its return that was seen, and the discount of the rest; and its value."""
    first = t.first_rows
    last = np.concatenate([first[1:], [len(t)]])
    after, _ = value_units(t, gamma)
    rows = np.arange(len(t))
    steps = rows - np.repeat(first, last - first)
    lost = np.flatnonzero(t.before_lost_rows)
    seen = last.copy()  # one past the last row that counts
    for row in lost[::-1]:
        seen[np.searchsorted(first, row, side="right") - 1] = row + 1
    counted = rows < np.repeat(seen, last - first)
    terms = np.where(counted, (1.0 - gamma) * gamma**steps * t.rewards.astype(np.float64), 0.0)
    tails = np.where(t.terminated[seen - 1], 0.0, gamma ** (seen - first))
    return np.asarray(np.add.reduceat(terms, first)), tails, after
