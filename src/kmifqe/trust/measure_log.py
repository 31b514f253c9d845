"""What the log itself shows: its rows, its episodes' lengths and ends, its actions' bounds, its rewards."""

from __future__ import annotations

from typing import Any

import numpy as np

from kmifqe.problem import Problem

ATOM_ROWS = 5  # rows that must share one extreme value before it is called a bound that actions sit on
WINDOW = 0.1  # of the longest length: how far below it other episode ends are counted for comparison


def log_facts(problem: Problem) -> dict[str, Any]:
    """Return counts and shares that need no estimate, under names that begin with what they are about."""
    c = problem.counts
    rewards = np.asarray(problem.rewards, np.float64)
    return {
        "rows_logged": c.logged,
        "rows_used": c.used,
        "rows_in_sample": c.in_sample,
        "rows_without_next_state": c.without_next_state,
        "rows_without_next_action": c.without_next_action,
        "episodes": c.episodes,
        **_ends(problem),
        **_atoms(np.asarray(problem.actions)),
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "reward_low": float(rewards.min()),
        "reward_high": float(rewards.max()),
        "return_std": float(discounted_returns(problem).std()),
    }


def _ends(problem: Problem) -> dict[str, Any]:
    """Return how many episodes terminated, and how the longest ones ended."""
    lengths, terminated = episode_lengths(problem)
    longest = int(lengths.max())
    at_longest = lengths == longest
    below = (lengths < longest) & (lengths >= (1.0 - WINDOW) * longest - 1.0)
    lengths_below = max(1, longest - int(np.ceil((1.0 - WINDOW) * longest - 1.0)))
    return {
        "episode_longest": longest,
        "episodes_terminated": int(terminated.sum()),
        "episodes_at_longest": int(at_longest.sum()),
        "episodes_at_longest_terminated": int((at_longest & terminated).sum()),
        "episodes_per_length_below_longest": float(below.sum() / lengths_below),
    }


def episode_lengths(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return every episode's length in logged steps, and whether it terminated.

    A cut episode's last row may be missing from the problem (its next state was not logged): it is counted.
    """
    episode = np.asarray(problem.episode)
    count, c = problem.counts.episodes, problem.counts
    lengths = np.bincount(episode, minlength=count)
    terminated = np.zeros(count, bool)
    terminated[episode[c.going_on : c.in_sample]] = True
    has_last_row = terminated.copy()
    has_last_row[episode[c.in_sample :]] = True
    return lengths + ~has_last_row, terminated


def discounted_returns(problem: Problem) -> np.ndarray:
    """Return (1 − γ) Σ γᵗ r_t of every logged episode as far as it goes: single draws of a value like V̂'s."""
    gamma, (order, episode, time) = float(problem.gamma), in_time_order(problem)
    rewards = np.asarray(problem.rewards, np.float64)[order]
    return (1.0 - gamma) * np.bincount(episode, gamma**time * rewards, problem.counts.episodes)


def in_time_order(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows episode after episode, each in time order, with their episodes and steps since it began."""
    order = np.argsort(
        np.asarray(problem.episode), kind="stable"
    )  # within an episode they are in order already
    episode = np.asarray(problem.episode)[order]
    return order, episode, np.arange(len(order)) - np.searchsorted(episode, episode)


def _atoms(actions: np.ndarray) -> dict[str, Any]:
    """Return the share of rows with an action exactly on an extreme that others share, in all and by dimension."""
    on_bound = (_on_shared_extreme(column) for column in actions.T)
    flags = np.stack(list(on_bound), axis=1)
    return {"atom_share": float(flags.any(axis=1).mean()), "atom_shares": flags.mean(axis=0).tolist()}


def _on_shared_extreme(column: np.ndarray) -> np.ndarray:
    flags = np.zeros(len(column), bool)
    if column.min() == column.max():
        return flags  # an action that never varies is another matter: nothing was clipped
    for extreme in (column.min(), column.max()):
        here = column == extreme
        if here.sum() >= ATOM_ROWS:
            flags |= here
    return flags
