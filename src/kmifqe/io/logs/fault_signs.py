"""What a log shows of faults in how it was written, measured on its rows in the order of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from scipy.stats import binom, rankdata

from kmifqe.io.logs.time_order import LOOKED_AT, TimeOrdered
from kmifqe.mdp.columns import row_slices

TANH_UNITS = 48  # of random weights: a nonlinear regression at the cost of a linear one
MOST_PRODUCTS = 250  # of two inputs: with more, only squares are taken
MOST_INPUTS = 200  # further ones are mixed at random into so many
ROWS_PER_FEATURE = 15
RIDGE = 1e-6  # of a feature's mean square

# A time limit shows as a spike of terminations at one length; natural ends spread over the lengths beside it.
SPIKE_EPISODES = 3
SPIKE_FACTOR = 5.0  # times as many ends as at a length beside it
SPIKE_CHANCE = 1e-3  # that so many nearby ends fall on the longest length; a hundredth of it for another
WINDOW, LEAST_WINDOW = 0.1, 5  # of a length, and steps: how far from it other ends are counted for comparison
EXPLAINED = 0.9  # of the pairs of an end and another row, told apart: then the system's state ends episodes

ENDS = 20  # terminations: whether fewer are alike cannot be told
RESET_CHANCE = 1e-3  # that so many cuts lead to the next row's state because states recur
RESET_ROWS = 30  # inside episodes: enough to see that a reset is no step of the system
ORDER_PAIRS = 300  # rows with a predecessor: enough to see a memory that is worth the name
WAVES = 16  # of random directions and phases: what states have in common need not be a mean or a spread
LAGS = (3, 2)  # a row this far back is compared with the row before; the longer one where episodes allow

COPY_WINDOW = 5  # rows: so many in a row are not equal to others by chance, even where sensors are coarse
SAME_RUN = 0.7  # of the runs of equal rows: a writer's fault makes them alike, a plant at rest does not
COARSE = 0.01  # of the states equal to another: a next state may then be found elsewhere by chance

SHIFT_CUTS = 8  # the log is cut after every eighth of its rows
SHIFT_ERRORS = 6.0  # standard errors, over seven cuts
SHIFT_REST, SHIFT_SPREAD = 2.0, 0.05  # of what the regression leaves, or of the rewards' standard deviation
SHIFT_OVERLAP = 0.1  # of a cut's variance that states and actions must leave unexplained
LOST_DIGITS = 0.1  # a float32's step over a column's standard deviation
LARGE_CONSTANT = 1e6  # a column that never leaves it may have moved by less than float32 can hold


class LogFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a log shows of faults in how it was written; a number is None where the log is too small to tell."""

    spike_length: int  # steps at which terminations pile up; 0 where they do not
    spike_is_longest: bool  # whether no episode is longer
    spike_episodes: int  # of that length
    spike_ended: int  # of these, marked as terminated
    ends: int  # terminations, those of the spike left out
    ends_unexplained: float | None  # share of `ends` that neither states nor actions explain
    end_states_logged: (
        bool  # whether the states that these ends led to were logged, and are no other episode's
    )
    rows: int
    cuts: int  # episodes that were cut, with a next state
    reset_cuts: int  # of these, with the next episode's first state as the next state
    misplaced: int  # of these, with the state of a row elsewhere in the log as the next state
    order: (
        float | None
    )  # standard errors by which neighbours differ from rows further apart in how alike they are
    memory: float | None  # standard errors by which the rows of an episode belong together, in whatever order
    repeated_rows: float  # share of the rows that repeat the row before
    copied_rows: float  # share of the rows that are, with their neighbours, equal to others
    distinct_episodes: int
    reward_shift: (
        float  # change of the rewards at like states and actions in the middle of the log; 0: no sign of it
    )
    reward_shift_from: float  # share of the rows before the change
    coarse_states: list[int]  # columns in which float32 leaves few different values beside a large offset
    coarse_actions: list[int]
    coarse_rewards: bool
    coarse_share: (
        float  # of the state columns or of the action columns, the larger; 1 where the rewards are coarse
    )


def log_faults(log: TimeOrdered) -> LogFaults:
    """Return what the log, whose values are all finite, shows of faults in how it was written."""
    measured: dict[str, Any] = {"rows": len(log)}
    for measure in (_ends, _cuts, _row_order, _copies, _reward_shift, _lost_digits):
        measured |= measure(log)
    return LogFaults(**measured)


def _ends(log: TimeOrdered) -> dict[str, Any]:
    """Return where terminations pile up at one length, and how many of the others no state explains."""
    last = np.flatnonzero(log.terminated)
    lengths = log.lengths[log.episode[last]]
    spike = _spike(log, last, lengths)
    others = last[lengths != spike]
    told_apart = _told_apart(log, others) if len(others) >= ENDS else None
    return {
        "spike_length": spike,
        "spike_is_longest": spike == int(log.lengths.max()),
        "spike_episodes": int((log.lengths == spike).sum()) if spike else 0,
        "spike_ended": len(last) - len(others),
        "ends": len(others),
        "ends_unexplained": None if told_apart is None else 2.0 * (1.0 - told_apart),
        "end_states_logged": _end_states_logged(log, others),
    }


def _spike(log: TimeOrdered, last: np.ndarray, lengths: np.ndarray) -> int:
    """Return the length at which terminations pile up, 0 where none is; `lengths` are those of the rows `last`."""
    counts = np.bincount(lengths, minlength=2)
    at_risk = np.cumsum(np.bincount(log.lengths, minlength=len(counts))[::-1])[::-1]
    longest = int(log.lengths.max())
    for length in sorted({*np.flatnonzero(counts >= SPIKE_EPISODES)}, reverse=True):
        reach = max(LEAST_WINDOW, int(np.ceil(WINDOW * length)))
        beside = np.arange(max(1, length - reach), min(len(counts), length + reach + 1))
        beside = beside[beside != length]
        if not len(beside):
            continue
        ended, ends_beside, risk_beside = counts[length], counts[beside].sum(), at_risk[beside].sum()
        share = at_risk[length] / (at_risk[length] + risk_beside)
        chance = binom.sf(ended - 1, ended + ends_beside, share)
        if ended < SPIKE_FACTOR * ends_beside * at_risk[length] / risk_beside or chance > SPIKE_CHANCE:
            continue
        if length == longest:
            return longest
        # Below the longest length ends may pile up because the system itself takes so long: its states show that.
        here = last[lengths == length]
        if chance < 0.01 * SPIKE_CHANCE and (_told_apart(log, here) or 1.0) < EXPLAINED:
            return int(length)
    return 0


def _told_apart(log: TimeOrdered, ends: np.ndarray) -> float | None:
    """Return how well terminal rows are told from others: the share of pairs that a score puts in the right order.

    Scores are single state and action dimensions, their distances from the middle, and a regression that was fitted
    to the other half of the units; the best one counts, at least a half. The state after the last step is looked at
    only where it was logged and is no other episode's first state.
    """
    ends = ends[:: -(-len(ends) // LOOKED_AT)]
    ordinary = log.looked_at[~log.terminated[log.looked_at]]
    if len(ordinary) < ENDS or len(ends) < 2:
        return None
    kinds: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda at: np.concatenate([log.states(at), log.actions(at)], axis=1)
    ]
    if _end_states_logged(log, ends):
        kinds.append(log.next_states)
        ordinary = ordinary[log.has_next_state[ordinary]]
    is_end = np.concatenate([np.zeros(len(ordinary), bool), np.ones(len(ends), bool)])
    even = log.units[np.concatenate([ordinary, ends])] % 2 == 0
    weights = np.where(is_end, 0.5 / len(ends), 0.5 / len(ordinary))
    best = 0.5
    for kind in kinds:
        z = _standardized(np.concatenate([kind(ordinary), kind(ends)]))
        middle = np.median(z, axis=0)
        scores = [*z.T, *np.abs(z - middle).T]
        features = _features(z, min(2 * len(ends), len(ordinary)))
        fitted = np.zeros(len(z))
        for half in (even, ~even):
            if is_end[~half].any() and is_end[half].any():
                fitted[half] = _regression(features[~half], is_end[~half, None], weights[~half])(
                    features[half]
                )[:, 0]
                # The two halves have different regressions: only ranks within a half can be compared.
                fitted[half] = rankdata(fitted[half]) / max(1, half.sum())
        best = max([best, *(_ordered_pairs(score, is_end) for score in (*scores, fitted))])
    return best


def _end_states_logged(log: TimeOrdered, ends: np.ndarray) -> bool:
    """Return whether the states that these rows led to were logged, and most are not the next episode's first."""
    following = log.states(np.minimum(ends + 1, len(log) - 1))
    differ = (log.next_states(ends) != following).any(axis=1)
    return bool(log.has_next_state[ends].all() and 2 * np.count_nonzero(differ) > len(ends))


def _ordered_pairs(score: np.ndarray, is_end: np.ndarray) -> float:
    """Return the share of (end, other) pairs that the score tells apart, whichever way round: at least a half."""
    ends, others = int(is_end.sum()), int((~is_end).sum())
    above = rankdata(score)[is_end].sum() - ends * (ends + 1) / 2.0
    share = float(above / (ends * others))
    return max(share, 1.0 - share)


def _cuts(log: TimeOrdered) -> dict[str, Any]:
    """Return how many cut episodes have a next state that belongs to another row, found by exact comparison."""
    cut = np.flatnonzero(log.is_last & ~log.terminated & log.has_next_state)
    if not len(cut):
        return {"cuts": 0, "reset_cuts": 0, "misplaced": 0}
    hashes = _hashes([log.states], len(log))
    known = np.sort(hashes)
    of_cuts = _hashes([lambda rows: log.next_states(cut[rows])], len(cut))
    place = np.minimum(np.searchsorted(known, of_cuts), len(known) - 1)
    found = known[place] == of_cuts
    follows = (cut + 1 < len(log)) & (hashes[np.minimum(cut + 1, len(log) - 1)] == of_cuts)
    times = np.diff(np.flatnonzero(np.diff(known, prepend=known[0] ^ np.uint64(1))), append=len(known))
    reset, by_chance = int(follows.sum()), float(np.sum((times / len(known)) ** 2))
    if reset and (binom.sf(reset - 1, len(cut), by_chance) > RESET_CHANCE or _goes_on(log, cut[follows])):
        reset = 0
    # Where states recur by chance, or were copied, one that is found elsewhere proves nothing.
    recurring = np.count_nonzero(known[1:] == known[:-1]) > COARSE * len(known)
    misplaced = 0 if recurring else int((found & ~follows).sum())
    return {"cuts": len(cut), "reset_cuts": reset, "misplaced": misplaced}


def _goes_on(log: TimeOrdered, cut: np.ndarray) -> bool:
    """Return whether next states at these cuts follow from states and actions as well as those inside episodes do.

    Then one long stream was cut into pieces, and the first state of the next piece is the true next state.
    """
    cut = cut[:: -(-len(cut) // LOOKED_AT)]
    inside = log.looked_at[log.has_next_state[log.looked_at] & ~log.is_last[log.looked_at]]
    if len(inside) < RESET_ROWS:
        return False
    both = np.concatenate([inside, cut])
    x = _features(_standardized(np.concatenate([log.states(both), log.actions(both)], axis=1)), len(inside))
    moves = _standardized(log.next_states(both).astype(np.float64) - log.states(both))
    residual = moves - _regression(x[: len(inside)], moves[: len(inside)])(x)
    size = np.sum(_standardized(residual) ** 2, axis=1)
    above = rankdata(size)[len(inside) :].sum() - len(cut) * (len(cut) + 1) / 2.0
    share, error = above / (len(inside) * len(cut)), np.sqrt(1.0 / (12.0 * len(cut)))
    return bool(share < 0.5 + max(0.1, 3.0 * error))


def _row_order(log: TimeOrdered) -> dict[str, Any]:
    """Return whether neighbouring rows are more alike than rows two or three apart, in standard errors.

    In shuffled rows they are not: any comparison of the two is then chance. Two are made: how well a state is
    predicted from the earlier row's state and action, and how far it is from the earlier row's state.
    """
    at = log.looked_at
    leads = np.zeros(len(log) + 1, bool)
    leads[at] = log.lead_to(at)
    for lag in LAGS:
        later = at[(at >= lag) & np.all([leads[np.maximum(at - k, 0)] for k in range(lag)], axis=0)]
        if len(later) >= ORDER_PAIRS:
            break
    states = log.states(later)
    if len(later) < ORDER_PAIRS or not _varies(states):
        return {"order": None, "memory": None}
    y, near, far = (_standardized(log.states(later - back)) for back in (0, 1, lag))
    units, even = log.units[later], log.units[later] % 2 == 0
    errors = []
    for back in (1, lag):
        predicted = _predicted(_features(_state_and_action(log, later - back), len(later) // 2), y, even)
        errors.append(np.mean((y - predicted) ** 2, axis=1))
    gaps = [np.mean(np.abs(y - each), axis=1) for each in (near, far)]
    comparisons = (errors[1] - errors[0], gaps[1] - gaps[0])
    return {
        "order": max(abs(_in_standard_errors(each, units)) for each in comparisons),
        "memory": _memory(log),
    }


def _memory(log: TimeOrdered) -> float:
    """Return by how much the rows of a unit are more alike, or more unlike, than chance, in standard errors.

    It is the largest, over the state's dimensions, their squares and some waves, of the mean product of two rows of a
    unit. Shuffling the rows of an episode does not change it; where states have no memory at all it is chance.
    """
    at = log.looked_at
    units, z = log.units[at], _standardized(log.states(at))
    rng = np.random.default_rng(0)
    waves = np.cos(z @ rng.standard_normal((z.shape[1], WAVES)) + rng.uniform(0.0, 2.0 * np.pi, WAVES))
    largest = 0.0
    for column in np.concatenate([z, z**2, waves], axis=1).T:
        column = column - column.mean()
        products = np.bincount(units, weights=column) ** 2 - np.bincount(units, weights=column**2)
        largest = max(largest, abs(float(products.sum())) / max(float(np.sqrt(np.sum(products**2))), 1e-300))
    return largest


def _state_and_action(log: TimeOrdered, at: np.ndarray) -> np.ndarray:
    return _standardized(np.concatenate([log.states(at), log.actions(at)], axis=1))


def _copies(log: TimeOrdered) -> dict[str, Any]:
    """Return how many rows repeat the row before or, with their neighbours, others; and the distinct episodes."""
    n = len(log)
    hashes = _hashes([log.states, log.actions, lambda rows: log.rewards[rows, None]], n)
    # Runs of equal rows, over the borders of episodes too: a row that was written twice may look like an end.
    starts = np.flatnonzero(np.diff(hashes, prepend=hashes[0] ^ np.uint64(1)))
    runs = np.diff(starts, append=n)
    long_runs = runs[runs > 1]
    same = len(long_runs) and np.bincount(long_runs).max() >= SAME_RUN * len(long_runs)
    repeated = float(np.sum(long_runs - 1) / n) if same else 0.0
    first = np.flatnonzero(np.diff(log.episode, prepend=-1))
    length = np.diff(first, append=n)
    position = np.arange(n) - np.repeat(first, length)
    odd = (2 * position + 1).astype(np.uint64)
    whole = np.add.reduceat(_mixed(hashes * odd), first)
    # Windows of rows inside an episode; a shorter episode is one window.
    full = np.arange(n) + COPY_WINDOW <= np.repeat(first + length, length)
    windows = np.zeros(n, np.uint64)
    moving = np.zeros(n, bool)
    for k in range(COPY_WINDOW):
        ahead = hashes[np.minimum(np.arange(n) + k, n - 1)]
        windows += _mixed(ahead * np.uint64(2 * k + 1))
        moving |= ahead != hashes
    short = whole[length < COPY_WINDOW]
    seen = np.concatenate([windows[full & moving], short])
    copied = 1.0 - _distinct(seen) / len(seen) if len(seen) else 0.0
    return {
        "repeated_rows": repeated,
        "copied_rows": copied,
        "distinct_episodes": _distinct(whole) + log.episodes - len(first),
    }


def _reward_shift(log: TimeOrdered) -> dict[str, Any]:
    """Return the change of the rewards' level in the middle of the log that states and actions do not explain.

    The reward is regressed on state, action and next state, together with a step after every eighth of the log. What
    the features say of the step is taken out of it first (Frisch, Waugh and Lovell), so that a behaviour that
    changes in time, and with it the states and actions, leaves no trace.
    """
    none = {"reward_shift": 0.0, "reward_shift_from": 0.0}
    at = log.looked_at[log.has_next_state[log.looked_at]]
    rewards = log.rewards[at].astype(np.float64)
    if len(at) < ORDER_PAIRS or np.ptp(rewards) == 0.0:
        return none
    states = log.states(at).astype(np.float64)
    z = _standardized(np.concatenate([states, log.actions(at), log.next_states(at) - states], axis=1))
    x = _features(z, len(at))
    units = log.units[at]
    places = np.arange(1, SHIFT_CUTS) / SHIFT_CUTS
    # A step falls between two units, so that each lies on one side.
    steps = np.stack([units >= log.units[int(place * len(log))] for place in places], axis=1).astype(
        np.float64
    )
    both = np.concatenate([rewards[:, None], steps], axis=1)
    left = both - _regression(x, both)(x)
    best, found = SHIFT_ERRORS, none
    for k, place in enumerate(places, start=1):
        step, size = left[:, k], float(np.sum(left[:, k] ** 2))
        if size <= max(SHIFT_OVERLAP * len(at) * np.var(both[:, k]), 1e-9):
            continue
        shift = float(step @ left[:, 0]) / size
        rest = left[:, 0] - shift * step
        error = float(np.sqrt(np.sum(np.bincount(units, weights=step * rest) ** 2))) / size
        # What a regression misses may change in time with the behaviour: a small part of what it misses, or of the
        # rewards' spread, is no proof of a shift, however sure.
        beyond = min(SHIFT_REST * float(rest.std()), SHIFT_SPREAD * float(rewards.std()))
        if abs(shift) > max(best * error, beyond):
            best, found = (
                abs(shift) / max(error, 1e-300),
                {"reward_shift": shift, "reward_shift_from": float(place)},
            )
    return found


def _lost_digits(log: TimeOrdered) -> dict[str, Any]:
    """Return the columns whose values lie so far from 0 that float32 leaves few steps within their spread."""
    wide = (log.states(log.looked_at), log.actions(log.looked_at))
    states, actions = (_coarse_columns(values) for values in wide)
    rewards = bool(_coarse_columns(log.rewards[log.looked_at, None]))
    shares = (len(coarse) / values.shape[1] for coarse, values in zip((states, actions), wide))
    return {
        "coarse_states": states,
        "coarse_actions": actions,
        "coarse_rewards": rewards,
        "coarse_share": max(float(rewards), *shares),
    }


def _varies(values: np.ndarray) -> bool:
    """Return whether some column varies, and by more than float32 makes of a large constant."""
    constant = values.shape[1] - int((values != values[0]).any(axis=0).sum())
    return constant + len(_coarse_columns(values[:, (values != values[0]).any(axis=0)])) < values.shape[1]


def _coarse_columns(values: np.ndarray) -> list[int]:
    largest = np.abs(values).max(axis=0, initial=0.0)
    std = values.astype(np.float64).std(axis=0)
    coarse = np.where(std == 0.0, largest >= LARGE_CONSTANT, np.spacing(largest) > LOST_DIGITS * std)
    return [int(j) for j in np.flatnonzero(coarse)]


def _hashes(parts: list[Callable[[slice], np.ndarray]], n: int) -> np.ndarray:
    """Return one number for each of n rows, equal where all `parts` of two rows are."""
    rng = np.random.default_rng(0)
    hashes = np.zeros(n, np.uint64)
    for part in parts:
        width = part(slice(0, 1)).shape[1]
        odd = rng.integers(0, 2**63, width, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        for rows in row_slices(n, 8 * width):
            bits = (part(rows) + np.float32(0.0)).view(np.uint32)  # −0 is 0
            hashes[rows] += _mixed(bits * odd).sum(axis=1, dtype=np.uint64)
    return _mixed(hashes)


def _distinct(numbers: np.ndarray) -> int:
    """Return how many different numbers there are; sorted, which is several times as fast as np.unique."""
    ordered = np.sort(numbers)
    return 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return 64-bit numbers whose every bit depends on the high bits of those given."""
    numbers = (numbers ^ (numbers >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.asarray(numbers ^ (numbers >> np.uint64(32)))


def _scale(values: np.ndarray) -> np.ndarray:
    std = values.astype(np.float64).std(axis=0)
    return np.where(std > 0.0, std, 1.0)


def _standardized(values: np.ndarray) -> np.ndarray:
    """Return the columns with mean 0 and standard deviation 1, at most MOST_INPUTS of them."""
    z = (values - values.mean(axis=0, dtype=np.float64)) / _scale(values)
    if z.shape[1] > MOST_INPUTS:
        mix = np.random.default_rng(0).standard_normal((z.shape[1], MOST_INPUTS))
        z = z @ mix / np.sqrt(z.shape[1])
    return np.asarray(z)


def _features(z: np.ndarray, rows: int) -> np.ndarray:
    """Return [1, z, products of two, tanh of random directions], as many as so many rows can bear."""
    room = rows // ROWS_PER_FEATURE - 1 - z.shape[1]
    parts = [np.ones((len(z), 1)), z]
    i, j = np.triu_indices(z.shape[1])
    if len(i) > min(MOST_PRODUCTS, room):
        i = j = np.arange(z.shape[1])
    if len(i) <= room:
        parts.append(z[:, i] * z[:, j])
        room -= len(i)
    if room > 0:
        rng = np.random.default_rng(0)
        directions = rng.standard_normal((z.shape[1], min(TANH_UNITS, room))) / np.sqrt(z.shape[1])
        parts.append(np.tanh(z @ directions + rng.standard_normal(directions.shape[1])))
    return np.concatenate(parts, axis=1)


def _regression(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the linear regression of `y` on `x`, whose first column is 1, as a function of x."""
    weighted = x * (1.0 / max(1, len(x)) if weights is None else weights[:, None])
    gram = weighted.T @ x
    gram[np.diag_indices_from(gram)] += RIDGE * np.maximum(np.diag(gram), 1e-12)
    coefficients = np.linalg.solve(gram, weighted.T @ y)
    return lambda x: np.asarray(x @ coefficients)


def _predicted(x: np.ndarray, y: np.ndarray, even: np.ndarray) -> np.ndarray:
    """Return y as a regression on the other half of the units predicts it."""
    predicted = np.empty_like(y)
    for half in (even, ~even):
        predicted[half] = _regression(x[~half], y[~half])(x[half])
    return predicted


def _in_standard_errors(values: np.ndarray, units: np.ndarray) -> float:
    """Return the mean over its standard error, whole units taken as single draws; 0 where nothing varies."""
    mean = float(values.mean())
    error = float(np.sqrt(np.sum(np.bincount(units, weights=values - mean) ** 2))) / len(values)
    return mean / error if error > 0.0 else 0.0
