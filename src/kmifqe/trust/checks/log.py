"""Checks of the log itself: ends that are none, clipped actions, rows or episodes that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kmifqe.mdp.problem import Problem
from kmifqe.trust.checks.base import Diagnostic, Limit, graded, percent

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
        **_atom_facts(np.asarray(problem.actions)),
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


def _atom_facts(actions: np.ndarray) -> dict[str, Any]:
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


# A spike of episode ends at the longest length is a time limit; natural ends thin out towards it.
SPIKE_SHARE = 0.01  # of the episodes: fewer ends at one length may be chance
SPIKE_FACTOR = 5.0  # times as many ends as at the lengths just below
SPIKE_EPISODES = 3

TIME_LIMIT = Limit(
    0.005,
    0.05,
    "an end that is none cuts off all later reward; with ends at a rate p a step a value loses about "
    "γp/(1 − γ + γp) of itself, and 5 % is more than most intervals are wide",
)
ATOMS = Limit(
    0.01,
    0.5,
    "an action that was clipped to a bound has a probability there, not a density: its weight is wrong by an "
    "unknown factor; 1 % of the rows can carry several per cent of the weight where the target uses the bound",
)
DROPPED = Limit(
    0.25, 0.9, "rows dropped at random cost precision only, but nothing says that a quarter is random"
)
EPISODES = Limit(
    30,
    5,
    "episodes are what the interval resamples: from fewer than 30 its ends are rough, from fewer than 5 a guess",
    below=True,
)


def log_diagnostics(facts: Mapping[str, Any], gamma: float, *, uses_density: bool) -> list[Diagnostic]:
    """Return the diagnostics of a log for an estimator that does or does not use the behaviour density."""
    found = [_time_limit(facts, gamma), _episodes(facts), _dropped(facts, in_sample=uses_density)]
    return [*found, _atoms(facts, uses_density=uses_density)]


def _time_limit(facts: Mapping[str, Any], gamma: float) -> Diagnostic:
    ended, longest = facts["episodes_at_longest_terminated"], facts["episode_longest"]
    spike = ended == facts["episodes_at_longest"] and ended >= max(
        SPIKE_EPISODES,
        SPIKE_SHARE * facts["episodes"],
        SPIKE_FACTOR * facts["episodes_per_length_below_longest"],
    )
    if not spike:
        line = "no sign that time limits were logged as terminations"
        return graded("time_limit", 0.0, TIME_LIMIT, line)
    rate = gamma * ended / facts["rows_used"]
    lost = rate / (1.0 - gamma + rate)
    line = (
        f"all {ended:,} episodes of the longest length, {longest:,} steps, are marked as terminated: if {longest:,} "
        f"is a time limit, mark them as timeouts; taken for ends, they hide about {percent(lost)} of the value"
    )
    return graded("time_limit", lost, TIME_LIMIT, line)


def _episodes(facts: Mapping[str, Any]) -> Diagnostic:
    count = facts["episodes"]
    line = f"the log holds {count:,} episode{'s' * (count != 1)}"
    if count < EPISODES.care:
        line += ": too few for their chance differences to average out"
    return graded("episodes", count, EPISODES, line, "{:.0f}".format)


def _dropped(facts: Mapping[str, Any], *, in_sample: bool) -> Diagnostic:
    kept = facts["rows_in_sample"] if in_sample else facts["rows_used"]
    dropped = facts["rows_logged"] - kept
    share = dropped / facts["rows_logged"]
    why = []
    if facts["rows_without_next_state"]:
        why.append(f"{facts['rows_without_next_state']:,} whose next state was not logged")
    if in_sample and facts["rows_without_next_action"]:
        why.append(f"{facts['rows_without_next_action']:,} at a cut, whose next action was not logged")
    line = f"{dropped:,} of {facts['rows_logged']:,} rows are not used" + (
        f": {', '.join(why)}" if why else ""
    )
    return graded("rows_dropped", share, DROPPED, line)


def _atoms(facts: Mapping[str, Any], *, uses_density: bool) -> Diagnostic:
    share = facts["atom_share"]
    dimensions = [str(j) for j, part in enumerate(facts["atom_shares"]) if part > 0]
    limit = (
        ATOMS if uses_density else Limit(float("inf"), float("inf"), "no density is used, so none is wrong")
    )
    line = "no logged actions sit together on a bound"
    if share > 0:
        line = (
            f"{percent(share)} of the logged actions sit exactly on a bound (dimension {', '.join(dimensions)}): "
            "they were clipped"
        )
        if uses_density:
            line += ", and a density of the unclipped actions gives them wrong weights"
    return graded("clipped_actions", share, limit, line)
