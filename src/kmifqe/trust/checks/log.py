"""Checks of the log: false ends, clipped actions, missing rows and episodes; and of V̂ against the log's rewards."""

from __future__ import annotations

import msgspec
import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.io.format import digits, percent
from kmifqe.mdp.problem import Problem, RowCounts
from kmifqe.trust.checks.base import Check, Thresholds, unjudged

# A spike of episode ends at the longest length is a time limit; natural ends thin out towards it.
SPIKE_SHARE = 0.01  # of the episodes: fewer ends at one length may be chance
SPIKE_FACTOR = 5.0  # times as many ends as at the lengths just below
SPIKE_EPISODES = 3
WINDOW = 0.1  # of the longest length: how far below it other episode ends are counted for comparison
ATOM_ROWS = 5  # rows that must share one extreme value before it is called a bound that actions sit on

TIME_LIMIT = Thresholds(
    0.005,
    0.05,
    "an end that is none cuts off all later reward; with ends at a rate p a step a value loses about "
    "γp/(1 − γ + γp) of itself, and 5 % is more than most intervals are wide",
)
ATOMS = Thresholds(
    0.01,
    0.5,
    "an action that was clipped to a bound has a probability there, not a density: its weight is wrong by an "
    "unknown factor; 1 % of the rows can carry several per cent of the weight where the target uses the bound",
)
DROPPED = Thresholds(
    0.25, 0.9, "rows dropped at random cost precision only, but nothing says that a quarter is random"
)
EPISODES = Thresholds(
    30, 5, "the interval resamples episodes: from under 30 it is rough, from under 5 a guess", below=True
)
REWARDS = Thresholds(
    0.0,
    0.1,
    "V̂ per step is a weighted mean of rewards: outside their range, and 0 after an end, it is the network's "
    "invention; a tenth of the range is left for rewards that the log did not happen to see",
)
WIDTH = Thresholds(
    0.5,
    1.6,
    "an interval half as wide, to either side, as single episodes scatter is what ten episodes of the target itself "
    "would give, and 1.6 what one would: then try the policy once instead",
)


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and shares of a log that need no estimate."""

    rows: RowCounts
    episode_longest: int  # steps
    episodes_at_longest: int
    episodes_at_longest_terminated: int
    episodes_per_length_below_longest: float  # mean count of episodes at each length just below the longest
    atom_share: float  # of the rows, with an action exactly on an extreme that others share
    atom_shares: list[float]  # the same by action dimension
    reward_mean: float
    reward_std: float
    reward_low: float
    reward_high: float
    return_std: float  # standard deviation of single episodes' (1 − γ) Σ γᵗ r_t


def log_facts(problem: Problem) -> LogFacts:
    """Return what the log shows without any estimate."""
    rewards = np.asarray(problem.rewards, np.float64)
    lengths, terminated = episode_lengths(problem)
    longest = int(lengths.max())
    at_longest = lengths == longest
    below = (lengths < longest) & (lengths >= (1.0 - WINDOW) * longest - 1.0)
    lengths_below = max(1, longest - int(np.ceil((1.0 - WINDOW) * longest - 1.0)))
    on_bound = np.stack([_on_shared_extreme(column) for column in np.asarray(problem.actions).T], axis=1)
    return LogFacts(
        rows=problem.counts,
        episode_longest=longest,
        episodes_at_longest=int(at_longest.sum()),
        episodes_at_longest_terminated=int((at_longest & terminated).sum()),
        episodes_per_length_below_longest=float(below.sum() / lengths_below),
        atom_share=float(on_bound.any(axis=1).mean()),
        atom_shares=on_bound.mean(axis=0).tolist(),
        reward_mean=float(rewards.mean()),
        reward_std=float(rewards.std()),
        reward_low=float(rewards.min()),
        reward_high=float(rewards.max()),
        return_std=float(_discounted_returns(problem).std()),
    )


def episode_lengths(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return every episode's length in logged steps, and whether it terminated.

    A cut episode's last row may be missing from the problem (its next state was not logged): it is counted.
    """
    episode = np.asarray(problem.episode)
    count, c = problem.counts.episodes, problem.counts
    lengths = np.bincount(episode, minlength=count)
    terminated = np.zeros(count, bool)
    terminated[episode[c.nonterminal : c.in_sample]] = True
    has_last_row = terminated.copy()
    has_last_row[episode[c.in_sample :]] = True
    return lengths + ~has_last_row, terminated


def in_time_order(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows episode after episode, each in time order, with their episodes and steps since it began."""
    # A stable sort is enough: the rows of one episode are in order already.
    order = np.argsort(np.asarray(problem.episode), kind="stable")
    episode = np.asarray(problem.episode)[order]
    return order, episode, np.arange(len(order)) - np.searchsorted(episode, episode)


def _discounted_returns(problem: Problem) -> np.ndarray:
    """Return (1 − γ) Σ γᵗ r_t of every logged episode as far as it goes: single draws of a value like V̂'s."""
    gamma, (order, episode, time) = float(problem.gamma), in_time_order(problem)
    rewards = np.asarray(problem.rewards, np.float64)[order]
    return (1.0 - gamma) * np.bincount(episode, gamma**time * rewards, problem.counts.episodes)


def _on_shared_extreme(column: np.ndarray) -> np.ndarray:
    """Return which actions lie exactly on the least or largest value, where several rows share it."""
    flags = np.zeros(len(column), bool)
    if column.min() == column.max():
        return flags  # an action that never varies is another matter: nothing was clipped
    for extreme in (column.min(), column.max()):
        here = column == extreme
        if here.sum() >= ATOM_ROWS:
            flags |= here
    return flags


def log_checks(facts: LogFacts, gamma: float, uses_density: bool) -> list[Check]:
    """Return the checks of a log with these `facts`, discounted by `gamma`.

    `uses_density` says whether the estimator uses the behaviour density, and so learns in-sample.
    """
    of_all = [_time_limit(facts, gamma), _episodes(facts)]
    return [*of_all, _dropped(facts, in_sample=uses_density), _atoms(facts, uses_density=uses_density)]


def value_checks(estimate: Estimate, facts: LogFacts, half_width: float | None) -> list[Check]:
    """Return the checks that hold an `estimate` against the `facts` of its log; none where no seed has a value.

    `half_width` is half the width of V̂'s interval, None where there is no interval.
    """
    if not np.isfinite(estimate.values).any():
        return []
    width = [] if half_width is None else [_width(facts, half_width)]
    return [_reward_range(estimate, facts), *width]


def _time_limit(facts: LogFacts, gamma: float) -> Check:
    ended, longest = facts.episodes_at_longest_terminated, facts.episode_longest
    spike = ended == facts.episodes_at_longest and ended >= max(
        SPIKE_EPISODES,
        SPIKE_SHARE * facts.rows.episodes,
        SPIKE_FACTOR * facts.episodes_per_length_below_longest,
    )
    if not spike:
        finding = "There is no sign that time limits were logged as terminations."
        return TIME_LIMIT.check("time_limit", 0.0, finding, "")
    rate = gamma * ended / facts.rows.used
    lost = rate / (1.0 - gamma + rate)
    return TIME_LIMIT.check(
        "time_limit",
        lost,
        f"All {ended:,} episodes of the longest length, {longest:,} steps, are marked as terminated: if they were "
        f"only cut off there, about {percent(lost)} of the value is hidden.",
        f"If {longest:,} steps is a time limit, mark these ends as timeouts in the log instead of terminals.",
    )


def _episodes(facts: LogFacts) -> Check:
    count = facts.rows.episodes
    finding = f"The log holds {count:,} episode{'s' * (count != 1)}"
    finding += ": too few for their chance differences to average out." if count < EPISODES.care else "."
    advice = f"Log more episodes, at least {EPISODES.care:.0f}; more steps in the same episodes help less."
    return EPISODES.check("episodes", count, finding, advice, shown="{:.0f}".format)


def _dropped(facts: LogFacts, *, in_sample: bool) -> Check:
    rows = facts.rows
    dropped = rows.logged - (rows.in_sample if in_sample else rows.used)
    why = []
    if rows.without_next_state:
        why.append(
            f"{rows.without_next_state:,} whose next state was not logged or whose next rows were lost"
        )
    if in_sample and rows.without_next_action:
        why.append(f"{rows.without_next_action:,} at a cut, whose next action was not logged")
    finding = f"{dropped:,} of {rows.logged:,} rows are not used" + (f": {', '.join(why)}." if why else ".")
    advice = (
        "Log the next state of every row, and longer episodes, so that fewer rows are lost where one is cut."
    )
    return DROPPED.check("rows_dropped", dropped / rows.logged, finding, advice)


def _atoms(facts: LogFacts, *, uses_density: bool) -> Check:
    thresholds = ATOMS if uses_density else unjudged("no density is used, so none is wrong")
    finding = "No logged actions sit together on a bound."
    if facts.atom_share > 0:
        dimensions = [str(j) for j, share in enumerate(facts.atom_shares) if share > 0]
        finding = (
            f"{percent(facts.atom_share)} of the logged actions sit exactly on a bound "
            f"(dimension {', '.join(dimensions)}): they were clipped"
        )
        finding += (
            ", and a density of the unclipped actions gives them wrong weights." if uses_density else "."
        )
    advice = (
        "Log actions as they were drawn, before any clipping, or use an estimator without a density (fqe)."
    )
    return thresholds.check("clipped_actions", facts.atom_share, finding, advice)


def _reward_range(estimate: Estimate, facts: LogFacts) -> Check:
    low, high = facts.reward_low, facts.reward_high
    if facts.rows.terminated:
        low, high = min(low, 0.0), max(high, 0.0)
    beyond = np.maximum(estimate.known - high, low - estimate.known)
    out = max(0.0, float(beyond.max())) / max(high - low, 1e-12 * max(abs(low), abs(high)), 1e-300)
    where = f"the logged rewards, {digits(low)} to {digits(high)}"
    if out == 0.0:
        finding = f"V̂ lies within {where}, as a mean of rewards must."
    else:
        furthest = digits(float(estimate.known[np.argmax(beyond)]))
        finding = (
            f"V̂ of {int((beyond > 0).sum())} of {len(estimate.values)} seeds lies outside {where} (as far as "
            f"{furthest}): a mean of rewards cannot, so Q is diverging."
        )
    return REWARDS.check(
        "reward_range",
        out,
        finding,
        "Lower the learning rate or renew the target network more slowly, or use an estimator that learns from "
        "logged actions only (kmifqe).",
        shown=lambda x: f"{percent(x)} of the range",
    )


def _width(facts: LogFacts, half_width: float) -> Check:
    ratio = half_width / max(facts.return_std, 1e-300)
    worth = (1.645 / max(ratio, 1e-30)) ** 2  # a mean of so many has a 90 % interval as wide
    finding = (
        f"The interval reaches {digits(half_width)} to either side: about what "
        f"{f'{worth:,.0f} episodes' if worth >= 1.5 else 'one episode or less'} of the target itself would give."
    )
    advice = (
        "Log more episodes near the target's actions; a few trials of the target itself would tell as much."
    )
    return WIDTH.check("interval_width", ratio, finding, advice, shown=digits)
