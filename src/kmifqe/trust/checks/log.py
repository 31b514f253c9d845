"""Checks of the log: faults in how it was written, clipped actions, lost rows; and of V̂ against the log's rewards."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from kmifqe.estimators.base import Estimate
from kmifqe.estimators.registry import find_entry
from kmifqe.io.format import digits, percent
from kmifqe.io.logs.fault_signs import LogFaults, log_faults
from kmifqe.io.logs.faults import ORDER_ERRORS, Fault, faults_found
from kmifqe.io.logs.time_order import TimeOrdered
from kmifqe.mdp.problem import Problem, RowCounts
from kmifqe.trust.checks.base import Check, Reach, Thresholds, unjudged

ATOM_ROWS = 5  # rows that must share one extreme value before it is called a bound that actions sit on

TIME_LIMIT = Thresholds(
    0.005,
    0.05,
    "an end that is none cuts off all later reward; with ends at a rate p a step a value loses about "
    "γp/(1 − γ + γp) of itself, and 5 % is more than most intervals are wide",
)
INTERRUPTED = Thresholds(
    0.02,
    math.inf,
    "an interruption that is marked as an end hides what would have followed, like a time limit; but a system may "
    "well end by chance, so the log can only ask",
)
RESET = Thresholds(
    0.005,
    0.05,
    "a wrong next state takes the place of all that follows: with such cuts at a rate p a step, γp/(1 − γ + γp) of "
    "the value belongs to other episodes",
)
ROW_ORDER = Thresholds(
    -math.inf,
    ORDER_ERRORS,
    "in shuffled rows the row before is as good as any other of the episode, and every next state is wrong; what "
    "tells the two apart is then below 3.5 standard errors nearly always, and above 5 in a log in order",
    below=True,
)
MISPLACED = Thresholds(
    0.01,
    0.1,
    "each such row begins an episode that is none and adds a false first state; V̂ is an average over first states",
)
COPIES = Thresholds(
    0.02,
    0.25,
    "copies are no new draws: with a quarter of the rows copied, intervals are 0.87 times as wide as they should be, "
    "and a row that repeats the one before is a step that did not happen",
)
LOST_DIGITS = Thresholds(
    0.0,
    0.5,
    "a column that float32 has flattened tells states apart no longer; where half of them are flat, or the reward "
    "is, nothing that is learned from them can be right",
)
REWARD_SHIFT = Thresholds(
    0.1,
    0.5,
    "a log with two levels of reward gives a value between theirs: a tenth of what single episodes scatter can be "
    "felt, half of it is a large error",
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
CUT = Thresholds(
    0.05,
    0.5,
    "what Q says of a next state is cut to what rewards like those logged can add up to, and what is cut off at each "
    "step adds up over 1/(1 − γ) steps. A good Q near the edge is cut by little; where the sum is half of the range "
    "of the rewards, Q is running away, and V̂ is what the cut leaves of it",
)
WIDTH = Thresholds(
    0.8,
    1.96,
    "an interval that reaches 0.8 of the scatter of single episodes to either side is what six episodes of the "
    "target itself would give, and 1.96 what one would: then try the policy once instead; where episodes hardly "
    "scatter, a twentieth of the range of the rewards takes the place of their scatter",
)
# Returns may hardly scatter, though policies differ by much. The range of the rewards is what V̂ can differ by. |V̂| is
# no measure, because a constant added to all rewards changes it and nothing else.
SPAN_SHARE = 0.05
SPAN_QUANTILES = (0.01, 0.99)  # a single outlying reward does not make the range
# Yet nobody refuses a number that is known to a hundredth of itself: it is at most to be used with care.
PRECISE = 0.01


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and shares of a log that need no estimate."""

    rows: RowCounts
    episode_longest: int  # steps
    atom_share: float  # of the rows, with an action exactly on an extreme that others share
    atom_shares: list[float]  # the same by action dimension
    reward_mean: float
    reward_std: float
    reward_low: float
    reward_high: float
    reward_span: float  # from the 1 % to the 99 % quantile, and 0, where episodes terminate
    return_std: float  # standard deviation of single episodes' (1 − γ) Σ γᵗ r_t
    faults: LogFaults | None = None  # None where nobody looked for them

    @property
    def value_unit(self) -> float:
        """What differences of values are held against: the returns' scatter, or a share of the rewards' range."""
        return max(self.return_std, SPAN_SHARE * self.reward_span, 1e-300)


def log_facts(problem: Problem) -> LogFacts:
    """Return what the log shows without any estimate."""
    rewards = np.asarray(problem.rewards, np.float64)
    low, high = np.quantile(rewards, SPAN_QUANTILES)
    if problem.counts.terminated:
        low, high = min(low, 0.0), max(high, 0.0)
    log = TimeOrdered.of_problem(problem)
    on_bound = np.stack([_on_shared_extreme(column) for column in np.asarray(problem.actions).T], axis=1)
    return LogFacts(
        rows=problem.counts,
        episode_longest=int(log.lengths.max()),
        atom_share=float(on_bound.any(axis=1).mean()),
        atom_shares=on_bound.mean(axis=0).tolist(),
        reward_mean=float(rewards.mean()),
        reward_std=float(rewards.std()),
        reward_low=float(rewards.min()),
        reward_high=float(rewards.max()),
        reward_span=float(high - low),
        return_std=float(_discounted_returns(problem).std()),
        faults=log_faults(log),
    )


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
    found = [] if facts.faults is None else _fault_checks(facts, facts.faults, gamma, uses_density)
    found += [_episodes(facts), _dropped(facts, in_sample=uses_density)]
    return [*found, _atoms(facts, uses_density=uses_density)]


def value_checks(estimate: Estimate, facts: LogFacts, reach: Reach | None) -> list[Check]:
    """Return the checks that hold an `estimate` against the `facts` of its log; none where no seed has a value.

    `reach` is that of V̂'s interval, None where there is no interval.
    """
    if not np.isfinite(estimate.values).any():
        return []
    cut = [_cut(estimate, facts)] if "cut" in estimate.infos else []
    width = [] if reach is None else [_width(facts, reach, estimate.value)]
    return [_reward_range(estimate, facts), *cut, *width]


def _fault_checks(facts: LogFacts, faults: LogFaults, gamma: float, uses_density: bool) -> list[Check]:
    """Return a check for every fault in writing that a log can show; where it shows none, the level is "ok"."""
    found = {fault.name: fault for fault in faults_found(faults)}

    def said(name: str, sound: str, cost: str = "") -> Fault:
        """Return the fault as a sentence with what it costs, or what is said of a `sound` log."""
        fault = found.get(name)
        return Fault(name, sound, "") if fault is None else fault._replace(finding=f"{fault.finding}{cost}.")

    def hidden(name: str, ends: float) -> float:
        """Return the share of the value that lies beyond so many false ends; 0 where the fault was not found."""
        rate = gamma * ends / max(1, facts.rows.used) if name in found else 0.0
        return rate / (1.0 - gamma + rate)

    ended = hidden("time_limit", faults.spike_ended)
    limit = said(
        "time_limit",
        "There is no sign that time limits were logged as terminations.",
        f": if they were only cut off there, about {percent(ended)} of the value is hidden",
    )
    unexplained = hidden("unexplained_ends", faults.ends * (faults.ends_unexplained or 0.0))
    ends = said(
        "unexplained_ends",
        "States and actions tell where episodes end, or too few end to say.",
        f": if they were interrupted there, about {percent(unexplained)} of the value is hidden",
    )
    order = said(
        "row_order",
        "Neighbouring rows belong together, or the log is too small or its states too random to tell.",
    )
    places = said("misplaced_rows", "No row goes on elsewhere in the log.")
    copies = said("copied_rows", "No rows are copies of others.")
    precision = said("lost_digits", "float32 holds how the values vary.")
    moved = abs(faults.reward_shift) * max(faults.reward_shift_from, 1.0 - faults.reward_shift_from)
    shift = said(
        "reward_shift",
        "Rewards at like states and actions stay the same throughout the log.",
        f": that can move V̂ by {digits(moved)}",
    )
    return [
        TIME_LIMIT.check("time_limit", ended, limit.finding, limit.advice),
        INTERRUPTED.check("unexplained_ends", unexplained, ends.finding, ends.advice),
        ROW_ORDER.check(
            "row_order",
            faults.order,
            order.finding,
            order.advice,
            level="bad" if "row_order" in found else "ok",
            shown=digits,
        ),
        MISPLACED.check(
            "misplaced_rows", faults.misplaced / max(1, faults.rows), places.finding, places.advice
        ),
        COPIES.check(
            "copied_rows",
            min(1.0, faults.repeated_rows + faults.copied_rows),
            copies.finding,
            copies.advice,
        ),
        LOST_DIGITS.check("lost_digits", faults.coarse_share, precision.finding, precision.advice),
        REWARD_SHIFT.check(
            "reward_shift", moved / facts.value_unit, shift.finding, shift.advice, shown=digits
        ),
        _reset_states(
            hidden("reset_states", faults.reset_cuts), found.get("reset_states"), uses_density=uses_density
        ),
    ]


def _reset_states(share: float, fault: Fault | None, *, uses_density: bool) -> Check:
    """Judge next states that belong to another episode, through which a `share` of the value passes."""
    finding, advice = "No cut episode goes on with another episode's first state.", ""
    if fault is not None:
        finding, advice = (
            f"{fault.finding}; {percent(share)} of the value is another episode's.",
            fault.advice,
        )
    if uses_density:
        # In-sample learning needs the next action, which a cut row lacks: it never reads a next state there.
        reason = "rows at a cut are not used, so their next states cannot mislead"
        return unjudged(reason).check("reset_states", share, finding, advice, threshold="none")
    return RESET.check("reset_states", share, finding, advice)


def _episodes(facts: LogFacts) -> Check:
    logged = facts.rows.episodes
    count = logged if facts.faults is None else facts.faults.distinct_episodes
    finding = f"The log holds {count:,} episode{'s' * (count != 1)}"
    finding += f" that {'differ' if count != 1 else 'differs'} from the others, {logged:,} in all" * (
        count < logged
    )
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
    entry = find_entry(estimate.estimator)
    follows_episodes = entry is not None and entry.needs_trajectories
    why = "the weights of episodes are far from 1 on average" if follows_episodes else "Q is diverging"
    if out == 0.0:
        finding = f"V̂ lies within {where}, as a mean of rewards must."
    else:
        furthest = digits(float(estimate.known[np.argmax(beyond)]))
        finding = (
            f"V̂ of {int((beyond > 0).sum())} of {len(estimate.values)} seeds lies outside {where} (as far as "
            f"{furthest}): a mean of rewards cannot, so {why}."
        )
    return REWARDS.check(
        "reward_range",
        out,
        finding,
        "Use an estimator whose weights are divided by their mean (wis, wpdis), or one that does not weight episodes "
        "(fqe, kmifqe)."
        if follows_episodes
        else "Lower the learning rate or renew the target network more slowly, or use an estimator that learns from "
        "logged actions only (kmifqe).",
        shown=lambda x: f"{percent(x)} of the range",
    )


def _cut(estimate: Estimate, facts: LogFacts) -> Check:
    """Judge how much of the bootstrap values was cut off to keep them in the range of the rewards, lately."""
    cut = float(np.mean(estimate.infos["cut"][-1][np.isfinite(estimate.values)]))
    share = cut * estimate.gamma / (1.0 - estimate.gamma) / max(facts.reward_span, 1e-300)
    finding = (
        "Q's values at next states are held among what the logged rewards can add up to: on average that takes off "
        f"{digits(cut)}, which adds up to {percent(share)} of the range of the rewards"
    )
    finding += ": Q is diverging." if CUT.level(share) != "ok" else "."
    advice = (
        "Log rows near the target's actions, renew the target network more slowly (smaller tau), or compare with "
        "another estimator."
    )
    return CUT.check("cut_values", share, finding, advice)


def _width(facts: LogFacts, reach: Reach, value: float) -> Check:
    ratio = reach.judged / facts.value_unit
    # A mean of so many has a 95 % interval as wide. Seeds that all agree have an interval without any width.
    least = max(reach.judged, 1e-6 * facts.return_std, 1e-300)
    worth = (1.96 * facts.return_std / least) ** 2
    finding = (
        f"{reach.said[0].upper()}{reach.said[1:]}: about what "
        f"{f'{worth:,.0f} episodes' if worth >= 1.5 else 'one episode or less'} of the target itself would give."
    )
    advice = (
        "Log more episodes near the target's actions; a few trials of the target itself would tell as much."
    )
    level = WIDTH.level(ratio)
    if level == "bad" and reach.judged <= PRECISE * abs(value):
        level = "care"
    return WIDTH.check("interval_width", ratio, finding, advice, shown=digits, level=level)
